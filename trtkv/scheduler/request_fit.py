"""Refusal of requests that the empty pools could not serve."""

from __future__ import annotations

from trtkv.common import WindowSize, ceil_div
from trtkv.errors import OutOfBlocksError
from trtkv.records.linear_attention import has_recurrent_states_cache
from trtkv.records.llm_request import LlmRequest
from trtkv.records.window_size_metadata import PrefixReuseSummary, WindowSizeMetadata
from trtkv.scheduler.budget_protocols import BasePeftCacheManager, KvCacheBudget

_NO_REUSE = PrefixReuseSummary(0, 0)


def check_blocks_can_ever_fit(
    request: LlmRequest, manager: KvCacheBudget, num_steps_look_ahead: int = 1, *, to_completion: bool = True
) -> None:
    """Raise OutOfBlocksError if some window has fewer primary blocks than the request holds at its largest.

    ``to_completion``: whether requests are admitted by their blocks up to completion. Otherwise they may be
    paused at any length and start again with all their tokens as a prompt, of which a sliding window holds
    every block at first. For a request that has not started. Changes nothing.
    """
    for window, metadata in manager.window_sizes_metadata.items():
        required = _count_required_blocks(request, manager, window, metadata, num_steps_look_ahead, to_completion)
        available = metadata.allotted_primary_blocks
        if required > available:
            what = "recurrent states" if has_recurrent_states_cache(window) else f"window {window}"
            raise OutOfBlocksError(
                f"request {request.request_id} ({request.prompt_len} prompt tokens, {request.max_new_tokens} new ones, "
                f"beam width {request.beam_width}) needs {required} blocks of {manager.tokens_per_block} tokens in "
                f"{what}, the whole pool has {available}; shorten the request or enlarge the cache"
            )


def check_pages_can_ever_fit(request: LlmRequest, peft_cache_manager: BasePeftCacheManager) -> None:
    """Raise OutOfBlocksError if the adapter of a request exceeds the whole adapter cache. Changes nothing."""
    if request.lora_task_id is None:
        return
    num_pages = peft_cache_manager.determine_num_pages(request)
    if num_pages > peft_cache_manager.max_device_pages:
        raise OutOfBlocksError(
            f"adapter {request.lora_task_id} of request {request.request_id} needs {num_pages} pages, the adapter "
            f"cache has {peft_cache_manager.max_device_pages}; use a smaller adapter or enlarge its cache"
        )


def _count_required_blocks(
    request: LlmRequest,
    manager: KvCacheBudget,
    window: WindowSize,
    metadata: WindowSizeMetadata,
    num_steps_look_ahead: int,
    to_completion: bool,
) -> int:
    estimate = request.estimated_reusable_tokens
    try:
        required = manager.get_needed_blocks_one_step(request, False, window, _NO_REUSE)
        if to_completion:
            return max(required, manager.get_remaining_blocks_to_completion(request, window, _NO_REUSE))
    finally:
        request.set_estimated_reusable_tokens(estimate)
    if has_recurrent_states_cache(window) or manager.cross_kv:
        return required
    return max(required, _count_last_step_blocks(request, manager, metadata, num_steps_look_ahead))


def _count_last_step_blocks(
    request: LlmRequest, manager: KvCacheBudget, metadata: WindowSizeMetadata, num_steps_look_ahead: int
) -> int:
    """Blocks of all tokens of a request and of what its last step reserves; whole prompt blocks count once."""
    tokens_per_block = manager.tokens_per_block
    num_step_tokens = num_steps_look_ahead * (max(request.num_draft_tokens, manager.draft_token_reserve) + 1)
    num_behind = manager.num_extra_kv_tokens + manager.get_num_final_drafts(request, num_step_tokens - 1)
    num_tokens = request.prompt_len + request.max_new_tokens + num_behind
    num_tokens = min(num_tokens, metadata.max_blocks_per_seq * tokens_per_block)
    num_shared = min(request.prompt_len, num_tokens) // tokens_per_block
    num_own = ceil_div(num_tokens - num_shared * tokens_per_block, tokens_per_block)
    return num_shared + num_own * request.beam_width
