"""Looks at a manager from outside: invariants and pictures."""
