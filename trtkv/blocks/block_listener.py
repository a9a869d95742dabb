"""BlockListener: is told what is found of prompts, what leaves the tree and why, and which tier a block lies on."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import RequestId, WindowSize


class RemovalReason(str, Enum):
    """Why a block leaves the tree."""

    EVICTED = "evicted"
    """Somebody needed a block."""
    TAKEN_OVER = "taken over"
    """A request that matched its first tokens continues it in place."""
    MOVED = "moved"
    """It goes to another place in the tree, under a longer key."""
    DROPPED = "dropped"
    """The owner asked for it: truncation, rewind, reset."""
    LOST = "lost"
    """Its content is gone: the file that held it is missing or damaged."""


class BlockListener(Protocol):
    """Told synchronously, by blocks instead of hashes; events (KVCacheEventManager) are for other processes.

    An error that a listener raises is logged, and the call goes on; LogicError and AssertionError are raised.
    With a listener the hot loops of admission and storing are left for the plain ones; without one they cost nothing.
    """

    def on_match(
        self, request_id: RequestId, window_size: WindowSize, blocks: Sequence[KVCacheBlock], num_tokens: int
    ) -> None:
        """This window by itself has the first ``num_tokens`` of a prompt that is about to be admitted, in these blocks.

        Every window says so of every request of a batch, the widest window first, before anything is taken. Together
        they may agree on fewer tokens. ``blocks`` has placeholders where a sliding window needs no block; only a part
        of the last one may match.
        """

    def on_allocation(self, request_id: RequestId, window_size: WindowSize) -> None:
        """Blocks of this window are about to be taken for this request."""

    def on_removed(self, block: KVCacheBlock, window_size: WindowSize, reason: RemovalReason) -> None:
        """A block is about to leave the tree; its key, place and priority are still those it had."""

    def on_moved(self, block: KVCacheBlock, window_size: WindowSize, level: int) -> None:
        """The content of a block has moved to this level."""
