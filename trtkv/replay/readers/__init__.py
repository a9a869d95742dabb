"""Readers of trace formats beyond the basic ones, one module each, and the registry that tells them apart."""
