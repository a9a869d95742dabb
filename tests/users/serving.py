"""What every test of a report needs: admit, compute, remove; and a memory that notices foreign content."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.builders import WINDOW, make_kv_cache_manager, make_request
from tests.fake_memory import FakeMemory
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest, LlmRequestState


def admit(manager: KVCacheManager, *requests: LlmRequest) -> None:
    manager.add_sequence_batch([(r.request_id, r.prompt_len, r.beam_width) for r in requests], requests)


def compute(manager: KVCacheManager, request: LlmRequest, memory: FakeMemory | None = None) -> None:
    """Run the prompt of an admitted request."""
    if memory is not None:
        memory.write(manager, request, request.context_current_position, request.prompt_len)
    request.set_context_current_position(request.prompt_len)
    request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)


def decode(manager: KVCacheManager, request: LlmRequest, tokens: Iterable[int]) -> None:
    """Generate the given tokens."""
    for token in tokens:
        manager.add_token(request.request_id)
        request.add_new_token(token)


def serve(
    manager: KVCacheManager,
    request_id: int,
    tokens: Iterable[int] | int,
    memory: FakeMemory | None = None,
    **options: Any,
) -> LlmRequest:
    """One request from admission to removal; its blocks are cached."""
    request = make_request(request_id, tokens, **options)
    admit(manager, request)
    compute(manager, request, memory)
    manager.remove_sequence(request_id, request)
    return request


def make_manager_with_memory(*args: Any, **options: Any) -> tuple[KVCacheManager, FakeMemory]:
    memory = FakeMemory()
    return make_kv_cache_manager(*args, copy_engine=memory, **options), memory


def count_queued(manager: KVCacheManager, window: int = WINDOW) -> list[int]:
    """Block ids in the free queues, every level."""
    policy = manager.block_manager.window_block_managers[window].eviction_policy
    return [block_id for _, _, ids in policy.free_queues() for block_id in ids]


def get_state(manager: KVCacheManager) -> object:
    """Everything that a failed or a looking call must leave as it was."""
    managers = manager.block_manager.window_block_managers.values()
    return (
        [m.eviction_policy.free_queues() for m in managers],
        [
            [(b.block_id, b.ref_count, b.priority, b.is_primary, b.is_detached) for b in m.block_objects()]
            for m in managers
        ],
        {i: s.num_tokens for i, s in manager.sequences.items()},
        [m.counters.snapshot() for m in managers],
    )
