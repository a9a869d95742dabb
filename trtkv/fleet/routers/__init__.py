"""Routers, one a module with its rule and source, and the registry that finds them by name."""
