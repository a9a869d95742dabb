"""TorchCopyEngine: moves blocks between the tensors of pools, on the CPU or on a stream of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from trtkv.errors import InvalidInputError
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.pools.pool_tensors import get_primary, get_tensor, is_partial, view_block, view_tokens
from trtkv.records.kv_cache_index import KVCacheIndex, get_level, is_primary

if TYPE_CHECKING:
    from trtkv.transfers.copy_engine import BlockCopy


class TorchCopyEngine:
    """Copies every pool of a block, whole or its first tokens.

    CPU pools are copied before ``copy_block`` returns. On CUDA all copies run in order on one stream: each waits for
    the work that the current stream has been given before, so it reads finished data and overwrites nothing still in
    use. With ``join_every_copy`` the current stream waits for each copy in turn. Without it copies overlap with what
    is launched next, and ``sync_transfers`` must be called before blocks are read or their sources written. The host
    never waits.
    """

    def __init__(self, join_every_copy: bool = True) -> None:
        self._join_every_copy = join_every_copy
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._unjoined: set[torch.device] = set()

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        """Copy ``copy.src_index`` to ``copy.dst_index`` in all pools of one window; returns the bytes moved.

        Changes the destination slot only. Fails before any byte is moved when a pool has no memory or a slot is
        unknown.
        """
        check_copy(copy, pools)
        device = get_primary(pools[0]).device
        if device.type != "cuda":
            return self._copy_pools(copy, pools)
        stream = self._get_stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            moved = self._copy_pools(copy, pools)
        self._unjoined.add(device)
        if self._join_every_copy:
            self.sync_transfers()
        return moved

    def sync_with_buffer_manager(self) -> None:
        """Nothing to do: every copy waits for the current stream by itself."""

    def sync_transfers(self) -> None:
        """Let the current stream of each device wait for the copies made so far; the host does not wait."""
        for device in self._unjoined:
            torch.cuda.current_stream(device).wait_stream(self._streams[device])
        self._unjoined.clear()

    def _get_stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def _copy_pools(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        return sum(copy_pool(copy, pool) for pool in pools)


def check_copy(copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> None:
    """Refuse a copy that could not be carried out to its end."""
    if not pools:
        raise InvalidInputError(f"window {copy.window_size} has no pools to copy in")
    for pool in pools:
        view_block(pool, copy.src_index)
        view_block(pool, copy.dst_index)
    if not 0 <= copy.num_tokens <= pools[0].tokens_per_block:
        raise InvalidInputError(f"{copy.num_tokens} tokens to copy, a block holds {pools[0].tokens_per_block}")


def copy_pool(copy: BlockCopy, pool: KVCacheBlockPool) -> int:
    """Enqueue the copy of one pool on the current stream; returns its bytes."""
    num_tokens = copy.num_tokens
    crosses = get_device(pool, copy.src_index) != get_device(pool, copy.dst_index)
    if crosses and not is_primary(copy.dst_index):
        num_tokens = 0  # what goes to the host goes there whole, as one stretch of memory
    src = view_block(pool, copy.src_index, num_tokens)
    dst = view_block(pool, copy.dst_index, num_tokens)
    if crosses and is_partial(pool, num_tokens):
        _onboard_part(pool, copy, dst)
    elif crosses and pool.layer_first_layout:
        for dst_layer, src_layer in zip(dst, src, strict=True):
            dst_layer.copy_(src_layer, non_blocking=True)
    else:
        dst.copy_(src, non_blocking=True)
    return dst.numel() * dst.element_size()


def get_device(pool: KVCacheBlockPool, index: KVCacheIndex) -> torch.device:
    """Where the memory of an index lies."""
    return get_tensor(pool, get_level(index)).device


def _onboard_part(pool: KVCacheBlockPool, copy: BlockCopy, dst: torch.Tensor) -> None:
    """First tokens of a block from the host: the whole block goes to a device buffer, its first tokens from there.

    Scattered pieces would each be a transfer of their own, or go through pageable memory. The buffer belongs to the
    current stream, so its memory is not given away before the copies out of it have run.
    """
    whole = view_block(pool, copy.src_index)
    buffer = torch.empty_like(whole, device=dst.device)
    buffer.copy_(whole, non_blocking=True)
    dst.copy_(view_tokens(pool, buffer, copy.num_tokens))
