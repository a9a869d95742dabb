"""Scheduling as recorded, faults included: docs/decisions/0201 to 0204."""
