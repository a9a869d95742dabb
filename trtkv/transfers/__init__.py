"""What moves the bytes of blocks between slots and tiers."""
