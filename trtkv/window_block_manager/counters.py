"""Block counters of one window, and what has been reported of them."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class BlockCounters:
    """Totals since construction; ``snapshot`` and ``since`` give differences."""

    alloc_total: int = 0
    """Blocks taken, placeholders, copies and helpers of onboarding included."""
    alloc_new: int = 0
    """Blocks taken that had never held tokens."""
    reused: int = 0
    full_reused: int = 0
    partial_reused: int = 0
    missed: int = 0
    """Context positions for which a fresh block was taken."""
    gen_alloc: int = 0
    """Decode steps at which a sequence needed a block."""

    def snapshot(self) -> BlockCounters:
        """A copy."""
        return BlockCounters(
            self.alloc_total,
            self.alloc_new,
            self.reused,
            self.full_reused,
            self.partial_reused,
            self.missed,
            self.gen_alloc,
        )

    def restore(self, snapshot: BlockCounters) -> None:
        """Set every count to that of a snapshot."""
        for field in fields(self):
            setattr(self, field.name, getattr(snapshot, field.name))
