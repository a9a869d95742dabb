"""ProgressWatch: ends a loop that works for ever without getting anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from trtkv.errors import LogicError

if TYPE_CHECKING:
    from trtkv.manager.kv_cache_manager import KVCacheManager
    from trtkv.records.llm_request import LlmRequest

_NUM_SHOWN: Final = 16


class ProgressWatch:
    """Counts steps in which no request got further than it had ever been.

    A paused request computes again what it had, at least one token a step, so ``max_num_steps`` must be at
    least the length of the longest request. ``describe`` tells the state for the error.
    """

    def __init__(self, max_num_steps: int, describe: Callable[[], str]) -> None:
        self._max_num_steps = max_num_steps
        self._describe = describe
        self._num_steps = 0

    def note(self, *, has_advanced: bool) -> None:
        """Count a step; raises LogicError after too many without progress."""
        self._num_steps = 0 if has_advanced else self._num_steps + 1
        if self._num_steps > self._max_num_steps:
            raise LogicError(f"no request has advanced for {self._num_steps} steps\n{self._describe()}")

    def fail(self, what: str) -> None:
        """Raise LogicError at once."""
        raise LogicError(f"{what}\n{self._describe()}")


def describe_requests(manager: KVCacheManager, active: Iterable[LlmRequest]) -> str:
    """Free blocks and the first active requests, one a line."""
    requests = list(active)
    free = ", ".join(
        f"{count} of {manager.window_sizes_metadata[window].allotted_primary_blocks} blocks free in window {window}"
        for window, count in manager.num_free_blocks_per_window_size.items()
    )
    lines = [free, *(_describe_request(manager, request) for request in requests[:_NUM_SHOWN])]
    if len(requests) > _NUM_SHOWN:
        lines.append(f"and {len(requests) - _NUM_SHOWN} more active requests")
    return "\n".join(f"  {line}" for line in lines)


def _describe_request(manager: KVCacheManager, request: LlmRequest) -> str:
    sequence = manager.sequences.get(request.request_id)
    held = "no blocks"
    if sequence is not None:
        counts = (f"{len(sequence.get_cache_block_ids(window)[0])}" for window in manager.window_sizes_metadata)
        held = f"{' + '.join(counts)} blocks"
    return (
        f"request {request.request_id}: {request.state.name.lower()}, {request.context_current_position} of "
        f"{request.prompt_len} prompt tokens computed, {request.get_num_tokens()} tokens, "
        f"{request.max_new_tokens} new ones at most, {held}"
    )
