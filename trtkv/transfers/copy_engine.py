"""CopyEngine: what moves the bytes of a block. The manager decides slots and order, an engine copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from trtkv.common import BlockId, KvCacheTransferMode, WindowSize
from trtkv.errors import TrtkvError
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.records.kv_cache_index import KVCacheIndex

OFFLOAD: Final = "offload"
ONBOARD: Final = "onboard"
COPY: Final = "copy"


class BlockCopy(NamedTuple):
    """One transfer between two slots of a window.

    ``kind``: "offload" (primary to secondary), "onboard" (secondary to primary) or "copy" (primary to
    primary). ``num_tokens``: leading tokens to copy; 0 copies the whole block. Slots are those before the
    manager swaps them.
    """

    kind: str
    window_size: WindowSize
    src_index: KVCacheIndex
    dst_index: KVCacheIndex
    src_block_id: BlockId
    dst_block_id: BlockId
    num_tokens: int
    mode: KvCacheTransferMode
    directory: str


class LostBlockError(TrtkvError):
    """What a block held is gone, and the destination was not written.

    The block leaves the tree, and whoever asked for it computes its tokens.
    """


class OffloadFailedError(TrtkvError, OSError):
    """A block could not be put on a colder tier, where nothing was written: the block is given up."""


class CopyEngine(Protocol):
    """Copies blocks in the order of the calls."""

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        """Issue one transfer for every pool of the window; returns the bytes moved.

        LostBlockError and OffloadFailedError cost one block. Everything else reaches the caller of the manager, whose
        call is taken back, and a destination that is cached counts as overwritten.
        """

    def sync_with_buffer_manager(self) -> None:
        """Let transfers issued from now on see all work queued on the compute stream so far."""

    def sync_transfers(self) -> None:
        """Let the compute stream see all transfers issued so far."""


class NullCopyEngine:
    """Moves nothing: for replays and budgets, where only the bookkeeping counts."""

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        """Nothing is moved; the bytes a real engine would move for a whole block are returned."""
        return sum(pool.block_bytes for pool in pools)

    def sync_with_buffer_manager(self) -> None:
        """Nothing to wait for."""

    def sync_transfers(self) -> None:
        """Nothing to wait for."""


class RecordingCopyEngine(NullCopyEngine):
    """Keeps every transfer in ``copies``, in order."""

    def __init__(self) -> None:
        self.copies: list[BlockCopy] = []

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        """Record the transfer."""
        self.copies.append(copy)
        return super().copy_block(copy, pools)
