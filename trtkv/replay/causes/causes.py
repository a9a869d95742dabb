"""Why a prompt token was or was not found: the causes, in the order in which they are shown. docs/explain.md."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Cause(str, Enum):
    """Every prompt token of a run has exactly one."""

    HIT = "hit"
    COLD = "cold"
    OTHER_KEY = "other_key"
    NOT_STORED = "not_stored"
    EVICTED = "evicted"
    DEFERRED = "deferred"
    OUTSIDE_WINDOW = "outside_window"
    PARTIAL_BLOCK = "partial_block"
    LAST_TOKEN = "last_token"
    REFUSED = "refused"

    @property
    def label(self) -> str:
        """A few words for people."""
        return LABELS[self]

    @property
    def definition(self) -> str:
        """What exactly is counted."""
        return DEFINITIONS[self]


CAUSES: Final = tuple(Cause)

LABELS: Final[dict[Cause, str]] = {
    Cause.HIT: "found in the cache",
    Cause.COLD: "never seen before",
    Cause.OTHER_KEY: "seen under another key",
    Cause.NOT_STORED: "computed, not stored yet",
    Cause.EVICTED: "evicted",
    Cause.DEFERRED: "evicted while waiting",
    Cause.OUTSIDE_WINDOW: "outside the window",
    Cause.PARTIAL_BLOCK: "block not reusable in part",
    Cause.LAST_TOKEN: "last-token rule",
    Cause.REFUSED: "request never run",
}

DEFINITIONS: Final[dict[Cause, str]] = {
    Cause.HIT: "tokens that admission took from the cache",
    Cause.COLD: "no earlier request of the run had this token after the same tokens",
    Cause.OTHER_KEY: (
        "an earlier request had the same tokens up to here, but under another salt, LoRA id, extra ids or other "
        "multimodal content"
    ),
    Cause.NOT_STORED: (
        "a request that is live, or one admitted in the same batch, has computed this token, but its block is not in "
        "the tree yet"
    ),
    Cause.EVICTED: (
        "the block was in the tree and has left it, or one before it has, so that it cannot be reached; that includes "
        "blocks that another request took over and continued"
    ),
    Cause.DEFERRED: "as evicted, but it was lost after the request had been turned away for lack of room",
    Cause.OUTSIDE_WINDOW: (
        "other attention windows have the token; this one has let go of it by sliding on, or the windows agree on a "
        "shorter prefix only"
    ),
    Cause.PARTIAL_BLOCK: (
        "a block in the tree begins with these tokens and goes on differently, or ends earlier, and parts of blocks "
        "cannot be taken: partial reuse is off, or copying is off and the block is in use or has children, or it holds "
        "multimodal content"
    ),
    Cause.LAST_TOKEN: (
        "the token is cached, but the last token of a prompt is always computed, and with it the rest of its block "
        "where only whole blocks can be taken"
    ),
    Cause.REFUSED: "tokens of requests that need more blocks than there are",
}

TIERS: Final = ("primary", "host")


def tier_name(level: int) -> str:
    """What a level is called in reports."""
    return TIERS[level]


def needed_for(in_decode: bool) -> str:
    """What an allocation was for."""
    return "output" if in_decode else "prompt"
