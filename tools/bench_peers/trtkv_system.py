"""This project's KVCacheManager. Variants: default, preallocated, digests, events, events-plain-hash."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench_peers.system import Pool

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from trtkv import DataType, KeyForm, KVCacheManager, LlmRequest, LlmRequestState
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.keys import key_hash
from trtkv.records.llm_request import add_new_token_to_each

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_EVENT_CAPACITY = 1 << 20


class BenchSystem:
    """One layer of one int8 element, one full-attention window, reuse with partial matches unless keys are digests."""

    def __init__(self, pool: Pool, variant: str) -> None:
        width = pool.tokens_per_block
        window = -(-pool.max_tokens // width) * width
        self._batch: Sequence[LlmRequest] = ()
        self._batch_ids: list[int] = []
        self._has_events = variant.startswith("events")
        if variant == "events-plain-hash":
            key_hash.load_compiled_hash = lambda: None
        elif self._has_events:
            key_hash.mix_tokens(b"\0\0\0\0", 0)  # compiled before anything is timed
        self._manager = KVCacheManager.from_arguments(
            [1],
            1,
            width,
            {window: (pool.capacity_tokens // width, 0)},
            pool.live + 1,
            1,
            [window],
            DataType.INT8,
            max_sequence_length=window,
            enable_partial_reuse=variant != "digests",
            key_form=KeyForm.DIGESTS if variant == "digests" else KeyForm.TOKENS,
            preallocate_blocks=variant == "preallocated",
            event_manager=KVCacheEventManager(_EVENT_CAPACITY) if self._has_events else None,
        )

    def prepare(self, tokens: NDArray[np.int32]) -> array[int]:
        """An int32 array."""
        return array("i", tokens.tobytes())

    def add(self, request_id: int, prompt: array[int]) -> tuple[LlmRequest, int]:
        """Keys, match and allocation in one call."""
        request = LlmRequest(request_id, prompt)
        self._manager.add_sequence_batch([(request_id, len(prompt), 1)], [request])
        return request, request.prepopulated_prompt_len

    def store(self, handle: LlmRequest) -> None:
        """The prompt is computed: its full blocks go into the tree."""
        handle.set_context_current_position(handle.prompt_len)
        handle.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
        self._manager.store_context_blocks(handle)

    def decode(self, handle: LlmRequest, tokens: list[int]) -> None:
        """Token by token."""
        add_token, add_new_token, request_id = self._manager.add_token, handle.add_new_token, handle.request_id
        for token in tokens:
            add_token(request_id)
            add_new_token(token)

    def decode_step(self, handles: Sequence[LlmRequest], tokens: list[int]) -> None:
        """One batch call for the blocks and one for the tokens; the ids of an unchanged batch are at hand."""
        if handles is not self._batch:
            self._batch, self._batch_ids = handles, [request.request_id for request in handles]
        self._manager.add_tokens(self._batch_ids)
        add_new_token_to_each(handles, tokens)

    def free(self, handle: LlmRequest) -> None:
        """Stored as far as computed, then released; events are taken, as a router would."""
        self._manager.remove_sequence(handle.request_id, handle)
        if self._has_events:
            self._manager.flush_iteration_events()
            self._manager.get_latest_events(0)
