"""vLLM's KVCacheManager (V1). Variants: sha256 (its default), xxhash, ... : any of its hash functions."""

# ruff: noqa: E402 - paths and stand-ins have to be in place before the imports
from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bench_peers.stand_ins import stand_in_for
from bench_peers.system import Pool

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

sys.path.insert(0, os.path.join(os.environ.get("TRTKV_PEERS", "."), "vllm_src"))
logging.disable(logging.WARNING)
stand_in_for("xgrammar", "outlines_core", "lmformatenforcer")

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request


class BenchSystem:
    """One group of full attention with prefix caching."""

    def __init__(self, pool: Pool, variant: str) -> None:
        width = pool.tokens_per_block
        hash_function = get_hash_fn_by_name(variant)
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(width, hash_function)
        self._sampling = SamplingParams(max_tokens=pool.max_tokens)
        spec = FullAttentionSpec(block_size=width, num_kv_heads=1, head_size=8, dtype=torch.bfloat16)
        self._manager = KVCacheManager(
            KVCacheConfig(
                num_blocks=pool.capacity_tokens // width + 1,  # one is reserved as null block
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
            ),
            max_model_len=pool.max_tokens,
            scheduler_block_size=width,
            hash_block_size=width,
            enable_caching=True,
        )

    def prepare(self, tokens: NDArray[np.int32]) -> list[int]:
        """A list of ints."""
        return tokens.tolist()

    def add(self, request_id: int, prompt: list[int]) -> tuple[Any, int]:
        """The request hashes its blocks; allocation registers them, so ``store`` has nothing to do."""
        request = Request(str(request_id), prompt, self._sampling, None, arrival_time=0.0, block_hasher=self._hasher)
        blocks, num_found, *_ = self._manager.get_computed_blocks(request)
        allocated = self._manager.allocate_slots(
            request, len(prompt) - num_found, num_new_computed_tokens=num_found, new_computed_blocks=blocks
        )
        if allocated is None:
            raise SystemExit("vLLM is out of blocks; give a larger capacity")
        request.num_computed_tokens = len(prompt)
        return request, num_found

    def store(self, handle: Any) -> None:
        """Done by ``add``."""

    def decode(self, handle: Any, tokens: list[int]) -> None:
        """Token by token."""
        for token in tokens:
            self.decode_step([handle], [token])

    def decode_step(self, handles: Sequence[Any], tokens: list[int]) -> None:
        """As its scheduler does: one call a request."""
        allocate_slots = self._manager.allocate_slots
        for request, token in zip(handles, tokens, strict=True):
            request.append_output_token_ids(token)
            if allocate_slots(request, 1) is None:
                raise SystemExit("vLLM is out of blocks; give a larger capacity")
            request.num_computed_tokens += 1

    def free(self, handle: Any) -> None:
        """Blocks keep their hashes."""
        self._manager.free(handle)
