"""A trace through the schedulers, step by step on a virtual clock."""
