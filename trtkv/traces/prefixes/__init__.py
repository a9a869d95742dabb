"""Shared prefixes of the requests of a trace, without any cache."""
