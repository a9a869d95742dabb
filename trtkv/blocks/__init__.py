"""Blocks, the radix tree over their keys, and the sequences that hold them."""
