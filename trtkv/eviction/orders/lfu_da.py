"""LFU-DA: LFU with dynamic ageing (Arlitt et al., 1999): the key of an item starts from that of the last evicted."""

from __future__ import annotations

from trtkv.eviction.orders.aged_frequency import AgedFrequencyOrder


class LfuDaOrder(AgedFrequencyOrder):
    """Victim: the smallest (L + uses at its last use, last use, -depth)."""
