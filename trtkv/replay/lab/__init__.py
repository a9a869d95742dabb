"""Caches of one unit a block over a prefix tree: policies, admission filters and tiers reduced to their rules."""
