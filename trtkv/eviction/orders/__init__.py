"""Orders in which cached blocks may be evicted, one policy a module, and the registry that finds them by name."""
