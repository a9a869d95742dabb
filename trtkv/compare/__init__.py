"""Comparison of results with reference numbers, recorded runs, other programs' statistics and earlier results."""
