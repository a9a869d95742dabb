"""Fleets: several replicas, each with a cache of its own, behind a router."""
