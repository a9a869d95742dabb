"""CallRules: where the recorded behaviour refuses, names or counts something else in a call of a manager."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import ClassVar

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import CacheType, KeyForm, RequestId, TokenId
from trtkv.errors import InvalidInputError
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import KVCacheEvent
from trtkv.keys.key_builder import build_block_keys, build_block_keys_of, build_encoder_keys
from trtkv.keys.key_form import convert_keys
from trtkv.keys.key_hash import hash_key_chain
from trtkv.keys.multimodal_keys import check_multimodal_types
from trtkv.keys.packed_key import PackedKey
from trtkv.manager.sequence_admission import check_same_request
from trtkv.records.cache_settings import CacheSettings
from trtkv.records.llm_request import LlmRequest
from trtkv.records.token_array import to_token_array
from trtkv.window_block_manager import WindowBlockManager


class CallRules:
    """What calls of a manager refuse, name and count. Without state; the recorded rules are a subclass."""

    least_input_length: ClassVar[int] = 1
    copies_states_without_reuse: ClassVar[bool] = True
    """Whether recurrent states are carried on where nothing is reused."""

    def __init__(self, settings: CacheSettings) -> None:
        self._tokens_per_block = settings.tokens_per_block
        self._key_form = settings.reuse.key_form
        self._is_cross = settings.layers.cache_type is CacheType.CROSS

    def check_request(self, request_id: RequestId, llm_request: LlmRequest) -> None:
        """Raise unless a request has the id of the sequence it was given for."""
        check_same_request(request_id, llm_request)

    def build_summary_keys(self, llm_request: LlmRequest, tokens: Sequence[TokenId] | None) -> list[PackedKey]:
        """Keys of the full blocks that a prefix summary is asked for: of a cross cache those of the encoder input."""
        if llm_request.multimodal_input is not None:
            check_multimodal_types(llm_request.multimodal_input)
        if self._is_cross:
            encoder_tokens = llm_request.encoder_tokens or array("i")
            return build_encoder_keys(llm_request, encoder_tokens, self._tokens_per_block, len(encoder_tokens), False)
        return self._build_keys(llm_request, tokens)

    def _build_keys(self, llm_request: LlmRequest, tokens: Sequence[TokenId] | None) -> list[PackedKey]:
        width, key_form = self._tokens_per_block, self._key_form
        if tokens is None or tokens is llm_request.get_tokens(0):
            return build_block_keys(llm_request, width, llm_request.get_num_tokens(0), False, key_form)
        others = to_token_array(tokens)
        return build_block_keys_of(llm_request, others, width, len(others), False, key_form)

    def commit_hashes(self, blocks: Sequence[KVCacheBlock], keys: list[PackedKey]) -> list[int]:
        """Chain hashes of keys of tokens; each block that is not cached takes its key, and a hash where it can."""
        hashes = hash_key_chain(keys)
        stored_keys = convert_keys(keys, self._tokens_per_block, self._key_form)
        for block, key, value in zip(blocks, stored_keys, hashes, strict=True):
            if block.is_detached and not block.is_placeholder:
                block.set_block_key(key, is_full=True)
            if block.block_key == key and not block.is_placeholder and self._key_form is not KeyForm.DIGESTS:
                block.hash_link = value
        return hashes

    def set_rewind_reserve(self, windows: Iterable[WindowBlockManager], num_tokens: int) -> None:
        """Let sliding windows keep this many tokens more."""
        for manager in windows:
            manager.sequences.rewind_reserve = num_tokens

    def count_blocks(self, manager: WindowBlockManager) -> int:
        """Blocks that totals of a window count: those of the primary level."""
        return manager.settings.num_primary_blocks

    def get_latest_events(
        self, event_manager: KVCacheEventManager | None, timeout_ms: float | None
    ) -> list[KVCacheEvent]:
        """Flushed events since the last call; InvalidInputError without an event manager."""
        return get_event_manager(event_manager).get_events(timeout_ms)


def get_event_manager(event_manager: KVCacheEventManager | None) -> KVCacheEventManager:
    """The event manager; InvalidInputError if there is none."""
    if event_manager is None:
        raise InvalidInputError("events are off; give the manager an event_manager (event_buffer_max_size > 0)")
    return event_manager
