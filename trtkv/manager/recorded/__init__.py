"""Budgets, admission and growth as recorded, faults included: docs/decisions/0101 to 0121, 0205."""
