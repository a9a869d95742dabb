"""What a trace holds."""
