"""Memory of blocks: shapes, tensors, and how many blocks fit."""
