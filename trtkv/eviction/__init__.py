"""Which free block is taken next."""
