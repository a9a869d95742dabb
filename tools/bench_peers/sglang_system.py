"""SGLang's radix cache with its paged allocator, on the CPU. Variants: radix, unified-python, unified-rust."""

# ruff: noqa: E402 - paths and stand-ins have to be in place before the imports
from __future__ import annotations

import os
import sys
import warnings
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from bench_peers.stand_ins import stand_in_for
from bench_peers.system import Pool

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

for _folder in ("sgl_extra", "sgl_src"):
    sys.path.insert(0, str(Path(os.environ.get("TRTKV_PEERS", ".")) / _folder))
warnings.filterwarnings("ignore")
stand_in_for("sgl_kernel", "IPython", "torchvision", "tvm_ffi", "sentencepiece")

import torch
from sglang.srt.mem_cache.allocation import alloc_paged_token_slots_decode, alloc_paged_token_slots_extend
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

torch.set_num_threads(1)


class _KvInfo(SimpleNamespace):
    """What the caches read about a request's row of slots."""

    req_pool_idx: int | None = None
    cache_protected_len = 0
    cache_inserted_len = 0
    kv_committed_len = 0
    kv_allocated_len = 0
    swa_evict_floor = 0

    @property
    def holds_kv(self) -> bool:
        return self.req_pool_idx is not None

    def get_evicted_seqlen(self, cache: Any) -> int:
        return 0

    def swa_dead_lo(self, page_size: int) -> int:
        return self.cache_protected_len


class _Request:
    """What the caches read about a request."""

    extra_key = cache_salt = priority = session_id = session = kv_rotation_base = swa_branching_seqlen = None
    skip_radix_cache_insert = False
    is_done = False

    def __init__(self, request_id: int, prompt: array[int]) -> None:
        self.rid = str(request_id)
        self.origin_input_ids = self.full_untruncated_fill_ids = prompt
        self.output_ids = array("q")
        self.kv = _KvInfo()
        self.lock: Any = None

    def finished(self) -> bool:
        return self.is_done


class BenchSystem:
    """Token slots, so a prompt costs tensors as long as the prompt."""

    def __init__(self, pool: Pool, variant: str) -> None:
        self._rows = ReqToTokenPool(pool.live + 2, pool.max_tokens, "cpu", False)
        self._allocator = PagedTokenToKVPoolAllocator(
            pool.capacity_tokens, pool.tokens_per_block, torch.bfloat16, "cpu", None, False
        )
        self._allocator.use_triton_kernels = False
        parameters: dict[str, Any] = {
            "disable": False,
            "req_to_token_pool": self._rows,
            "token_to_kv_pool_allocator": self._allocator,
            "page_size": pool.tokens_per_block,
        }
        if variant == "radix":
            self._cache: Any = RadixCache(CacheInitParams(**parameters))
        else:
            from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
            from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

            backend = variant.removeprefix("unified-")
            parameters |= {"tree_components": (ComponentType.FULL,), "tree_core_backend": backend}
            self._cache = UnifiedRadixCache(CacheInitParams(**parameters))
        self._batch: tuple[Any, Any, Any] | None = None

    def prepare(self, tokens: NDArray[np.int32]) -> array[int]:
        """An int64 array."""
        return array("q", tokens.astype("int64").tobytes())

    def add(self, request_id: int, prompt: array[int]) -> tuple[_Request, int]:
        """Match, lock, allocate and fill the request's row."""
        cache, rows, length = self._cache, self._rows, len(prompt)
        request = _Request(request_id, prompt)
        match = cache.match_prefix(MatchPrefixParams(key=RadixKey(token_ids=prompt, limit=length - 1), req=request))
        request.prefix_len = found = match.device_prefix_len
        request.last_node = match.last_device_node
        request.lock = cache.lock(request.last_node)
        request.kv.cache_protected_len = found
        prefix = cache.path_device_indices(request.last_node)[:found]
        request.kv.req_pool_idx = row = rows.alloc_rows(1)[0]
        last = prefix[-1:] if found else torch.full((1,), -1)
        slots = self._extend(found, length, last)
        rows.write((row, slice(0, found)), prefix)
        rows.write((row, slice(found, length)), slots)
        request.kv.kv_allocated_len = request.kv.kv_committed_len = length
        return request, found

    def _extend(self, start: int, end: int, last: Any) -> Any:
        first, final = torch.tensor([start]), torch.tensor([end])
        return alloc_paged_token_slots_extend(self._cache, first, first, final, final, last, end - start)

    def store(self, handle: _Request) -> None:
        """What its scheduler does after a prefill step."""
        self._cache.checkpoint(handle, up_to=handle.kv.kv_allocated_len)

    def decode(self, handle: _Request, tokens: list[int]) -> None:
        """All tokens in one extension: its decode allocator works on batches, and a batch of one is all overhead."""
        rows, row, start = self._rows, handle.kv.req_pool_idx, handle.kv.kv_allocated_len
        end = start + len(tokens)
        last = rows.req_to_token[row, start - 1 : start].to(torch.int64)
        rows.write((row, slice(start, end)), self._extend(start, end, last))
        handle.output_ids.extend(tokens)
        handle.kv.kv_allocated_len = handle.kv.kv_committed_len = end

    def decode_step(self, handles: Sequence[_Request], tokens: list[int]) -> None:
        """One tensor operation for the batch; its tensors stay as long as the batch does."""
        rows = self._rows
        if self._batch is None or self._batch[0] is not handles:
            indices = torch.tensor([request.kv.req_pool_idx for request in handles])
            lengths = torch.tensor([request.kv.kv_allocated_len for request in handles])
            self._batch = (handles, indices, lengths)
        _, indices, lengths = self._batch
        last = rows.req_to_token[indices, lengths - 1].to(torch.int64)
        longer = lengths + 1
        slots = alloc_paged_token_slots_decode(self._cache, longer, longer, last)
        rows.write((indices, lengths), slots.to(torch.int32))
        self._batch = (handles, indices, longer)
        for request, token in zip(handles, tokens, strict=True):
            request.output_ids.append(token)
            request.kv.kv_allocated_len += 1
            request.kv.kv_committed_len += 1

    def free(self, handle: _Request) -> None:
        """Insert what was generated, give the rest of the row back, unlock."""
        cache, kv = self._cache, handle.kv
        handle.is_done = True
        end = kv.kv_allocated_len
        handle.full_untruncated_fill_ids = handle.origin_input_ids + handle.output_ids
        cache.checkpoint(handle, up_to=end)
        cache.free_kv_row(kv, [(kv.cache_protected_len, end)])
        cache.unlock(handle.lock)
        handle.lock = None
        cache.on_release(handle, checkpointed=True)
        self._rows.free_rows([kv.req_pool_idx])
        kv.req_pool_idx = None
