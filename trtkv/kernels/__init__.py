"""Device kernels: offset tables, block copies, page tables. Each has a plain torch twin in ``reference``."""

from __future__ import annotations
