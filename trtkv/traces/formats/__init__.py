"""Trace formats, one module each, and the registry that tells them apart."""
