"""WindowActivity: what happened to the blocks of a window during a replay."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from trtkv.common import PRIMARY_LEVEL, WindowSize
from trtkv.replay.causes.causes import tier_name

if TYPE_CHECKING:
    from trtkv.replay.causes.window_history import RemovalKind, WindowHistory


class WindowActivity(NamedTuple):
    """What happened to the blocks of a window, in blocks."""

    window_size: WindowSize
    stored: int
    """Blocks that came into the tree."""
    removed: Counter[RemovalKind]
    """Blocks that left it."""
    offloaded: int
    """Cached blocks moved to the host tier."""
    onboarded: int
    """Cached blocks brought back."""
    primary_blocks: int
    secondary_blocks: int
    is_full: bool
    """Whether it holds every sequence."""

    def to_json(self) -> dict[str, object]:
        """Counts in a fixed order."""
        return {
            "window_size": self.window_size,
            "stored": self.stored,
            "removed": [
                {
                    "reason": kind.reason.value,
                    "tier": tier_name(kind.level),
                    "priority": kind.priority,
                    "blocks": count,
                }
                for kind, count in sorted(self.removed.items(), key=lambda item: (-item[1], item[0]))
            ],
            "offloaded": self.offloaded,
            "onboarded": self.onboarded,
        }


def window_activity(window: WindowHistory) -> WindowActivity:
    """What a finished replay leaves in the history of a window."""
    return WindowActivity(
        window_size=window.settings.window_size,
        stored=window.num_stored,
        removed=window.removals,
        offloaded=window.num_moved[1 - PRIMARY_LEVEL],
        onboarded=window.num_moved[PRIMARY_LEVEL],
        primary_blocks=window.settings.num_primary_blocks,
        secondary_blocks=window.settings.num_secondary_blocks,
        is_full=not window.settings.is_swa,
    )
