"""Headings of a report, in the order of a page."""

from __future__ import annotations

from typing import Final

RATES: Final = "Hit rates"
RUN: Final = "The run"
CAUSES: Final = "Causes"
EVICTIONS: Final = "Evicted tokens"
CURVE: Final = "Capacity and reuse distance"
TIMES: Final = "Over time"
BLOCKS: Final = "Blocks"

TOPICS: Final = (RATES, RUN, CAUSES, EVICTIONS, CURVE, TIMES, BLOCKS)
