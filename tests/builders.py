"""Requests and managers small enough to draw on paper: blocks of four tokens, one layer, one head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.fake_clock import FakeClock
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.eviction import eviction_policy
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.records.llm_request import LlmRequest, LlmRequestState

IS_COMPILED = not eviction_policy.__file__.endswith(".py")
"""Whether the tests run on the compiled build."""
TOKENS_PER_BLOCK = 4
WINDOW = 64
"""Window and longest sequence of a manager, unless a test says otherwise."""


def make_request(request_id: int = 0, tokens: Iterable[int] | int = 8, **options: Any) -> LlmRequest:
    """A request; a number of tokens stands for the prompt 1, 2, 3, ..."""
    prompt = range(1, tokens + 1) if isinstance(tokens, int) else tokens
    return LlmRequest(request_id, list(prompt), options.pop("max_new_tokens", 16), **options)


def make_kv_cache_manager(
    num_blocks: int = 16,
    num_secondary_blocks: int = 0,
    *,
    window: int = WINDOW,
    windows: Mapping[int, tuple[int, int]] | None = None,
    **options: Any,
) -> KVCacheManager:
    """A manager of one window, or of those given as window -> (primary, secondary) with one layer each."""
    blocks = {window: (num_blocks, num_secondary_blocks)} if windows is None else dict(windows)
    settings: dict[str, Any] = {
        "tokens_per_block": TOKENS_PER_BLOCK,
        "max_num_sequences": 16,
        "max_beam_width": 4,
        "max_sequence_length": WINDOW,
        "clock": FakeClock(),
    }
    settings.update(options)
    return KVCacheManager.from_arguments(
        num_kv_heads_per_layer=[1] * len(blocks),
        size_per_head=1,
        blocks_per_window=blocks,
        max_attention_window_vec=list(blocks),
        **settings,
    )


def make_event_manager(max_kv_event_entries: int = 1024) -> KVCacheEventManager:
    return KVCacheEventManager(max_kv_event_entries)


def make_linear_attention(**options: Any) -> LinearAttentionMetadata:
    """Recurrent states with a snapshot every eight tokens."""
    return LinearAttentionMetadata(**({"states_snapshot_interval": 2 * TOKENS_PER_BLOCK} | options))


def add(manager: KVCacheManager, request: LlmRequest, input_length: int | None = None) -> LlmRequest:
    """Admit one request with its own beam width."""
    length = request.prompt_len if input_length is None else input_length
    manager.add_sequence_batch([(request.request_id, length, request.beam_width)], [request])
    return request


def finish_prompt(request: LlmRequest) -> LlmRequest:
    """Say that the whole prompt is computed."""
    request.set_context_current_position(request.prompt_len)
    request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
    return request


def prefill(manager: KVCacheManager, request: LlmRequest) -> LlmRequest:
    """Admit a request, compute its prompt and store the full blocks."""
    finish_prompt(add(manager, request))
    manager.store_context_blocks(request)
    return request


def decode(manager: KVCacheManager, request: LlmRequest, tokens: Iterable[int]) -> LlmRequest:
    """Generate these tokens, one step each: the token comes out of a step, its state is computed in the next."""
    for token in tokens:
        manager.add_token(request.request_id)
        for beam in range(request.beam_width):
            request.add_new_token(token, beam)
    return request


def serve(manager: KVCacheManager, request: LlmRequest, generated: Iterable[int] = ()) -> LlmRequest:
    """A request from admission to removal, stored for reuse."""
    decode(manager, prefill(manager, request), generated)
    manager.remove_sequence(request.request_id, request)
    return request


def block_ids(manager: KVCacheManager, request_id: int, window: int | None = None) -> list[int]:
    """Block ids of beam 0 in a window, the widest one unless given."""
    return manager.get_cache_block_ids(request_id, manager.max_attention_window if window is None else window)[0]


def num_free(manager: KVCacheManager, window: int | None = None) -> int:
    """Free primary blocks of a window."""
    return manager.num_free_blocks_per_window_size[manager.max_attention_window if window is None else window]
