"""RecordedManager: the manager of a TraceRecorder as its driver sees it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from trtkv.common import BlockId, RequestId, TokenId, WindowSize
from trtkv.records.llm_request import LlmRequest
from trtkv.records.pinned_block_ids import PinnedBlockIds

if TYPE_CHECKING:
    from trtkv.records.window_size_metadata import PrefixReuseSummary
    from trtkv.verify.recording import Recording


class RecordedManager:
    """Has every method of the KVCacheManager. Those that change it are written as ops, the others are not.

    Reading events and iteration statistics is not written either: a replay compares neither.
    """

    __slots__ = ("_recorder",)

    def __init__(self, recorder: Recording) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recorder.machine.state.manager, name)

    def _record(self, op: str, **args: object) -> Any:
        return self._recorder.execute(op, args)

    def _record_with(self, op: str, request: LlmRequest, **args: object) -> Any:
        self._recorder.check_own_request(request)
        return self._record(op, id=request.request_id, **args)

    # -- sequences ----------------------------------------------------------------------------------

    def add_sequence(self, request_info: tuple[RequestId, int, int], llm_request: LlmRequest) -> None:
        """Admit one request, written as a batch of one."""
        self.add_sequence_batch([request_info], [llm_request])

    def add_sequence_batch(
        self, request_infos: Sequence[tuple[RequestId, int, int]], llm_requests: Sequence[LlmRequest]
    ) -> None:
        """Admit requests together."""
        for request in llm_requests:
            self._recorder.check_own_request(request)
        self._record("add_sequence_batch", requests=[list(info) for info in request_infos])

    def add_token(self, request_id: RequestId) -> None:
        """One decode step of a sequence."""
        self._record("add_token", id=request_id)

    def add_tokens(self, request_ids: Sequence[RequestId]) -> None:
        """One decode step of each sequence, written one by one."""
        for request_id in request_ids:
            self.add_token(request_id)

    def add_token_rounds(self, request_ids: Sequence[RequestId], num_rounds: int) -> None:
        """Decode steps of each sequence, written one by one."""
        for _ in range(num_rounds):
            self.add_tokens(request_ids)

    def rewind_kv_cache(self, request_id: RequestId, rewind_lengths: int) -> None:
        """Take back the last tokens."""
        self._record("rewind_kv_cache", id=request_id, n=rewind_lengths)

    def remove_sequence(
        self, request_id: RequestId, llm_request: LlmRequest | None = None, pin_on_release: bool = False
    ) -> None:
        """Release a sequence; its blocks are stored for reuse when the request is given."""
        if llm_request is not None:
            self._recorder.check_own_request(llm_request)
        self._record("remove_sequence", id=request_id, with_request=llm_request is not None, pin=pin_on_release)

    # -- storing and pinning --------------------------------------------------------------------------

    def store_context_blocks(self, llm_request: LlmRequest) -> None:
        """Store the full blocks of a prompt."""
        self._record_with("store_context_blocks", llm_request)

    def store_new_block(self, llm_request: LlmRequest) -> None:
        """Store the block that a decode step has filled."""
        self._record_with("store_new_block", llm_request)

    def store_blocks_for_reuse(
        self, request_id: RequestId, llm_request: LlmRequest, pin_blocks: bool = False
    ) -> list[BlockId]:
        """Store all blocks of a sequence and return the pinned ids."""
        pinned: list[BlockId] = self._record_with("store_blocks_for_reuse", llm_request, pin=pin_blocks)
        return pinned

    def pin_blocks(self, request_id: RequestId) -> PinnedBlockIds:
        """Pin the blocks of a sequence."""
        self._record("pin_blocks", id=request_id)
        held = {
            window: [block.block_id for block in manager.releaser.list_held(request_id)]
            for window, manager in self.block_manager.window_block_managers.items()
        }
        return PinnedBlockIds(held.pop(self.max_attention_window), held)

    def unpin_blocks_by_id(self, block_ids: Sequence[BlockId], window_size: WindowSize | None = None) -> None:
        """Unpin blocks, one op for each window."""
        windows: dict[str, WindowSize] = {} if window_size is None else {"window": window_size}
        if window_size is None and isinstance(block_ids, PinnedBlockIds) and block_ids.of_other_windows:
            windows = {"window": self.max_attention_window}
            for window, ids in block_ids.of_other_windows.items():
                self._record("unpin_blocks_by_id", block_ids=list(ids), window=window)
        self._record("unpin_blocks_by_id", block_ids=list(block_ids), **windows)

    def truncate_blocks(self, target_tokens: Sequence[TokenId], num_tokens_to_keep: int) -> None:
        """Drop cached blocks behind a prefix."""
        self._record("truncate_blocks", tokens=list(target_tokens), num_tokens_to_keep=num_tokens_to_keep)

    def reset_reuse_state(self) -> None:
        """Start with an empty tree."""
        self._record("reset_reuse_state")

    def commit_and_get_block_hashes_for_request(self, llm_request: LlmRequest, window_size: WindowSize) -> list[int]:
        """Hashes of a sequence's full blocks."""
        hashes = self._record_with("commit_and_get_block_hashes", llm_request, window=window_size)
        return [int(value, 16) for value in hashes]

    # -- iterations -----------------------------------------------------------------------------------

    def refresh_blocks(self) -> None:
        """Let expired priorities fall back."""
        self._record("refresh_blocks")

    def release_pools(self) -> None:
        """Let go of the tensors; the refresh that belongs to it is written."""
        self.refresh_blocks()
        self._recorder.machine.state.manager.release_pools()

    def sync_transfer_manager_with_buffer_manager(self) -> None:
        """Wait for transfers."""
        self._record("sync_transfer_manager_with_buffer_manager")

    def flush_iteration_events(self) -> None:
        """Hand pending events over."""
        self._record("flush_iteration_events")

    def copy_linear_attention_block(self, llm_request: LlmRequest) -> bool:
        """Copy a recurrent state to the next block."""
        was_copied: bool = self._record_with("copy_linear_attention_block", llm_request)
        return was_copied

    def copy_linear_attention_block_batch(self, llm_requests: Iterable[LlmRequest]) -> bool:
        """Copy the recurrent states of several requests, written one by one."""
        copied = [self.copy_linear_attention_block(request) for request in llm_requests]
        return any(copied)

    # -- budgets and scheduling -------------------------------------------------------------------------

    def start_scheduling(self) -> None:
        """Begin a scheduling simulation."""
        self._record("start_scheduling")

    def scheduling_remove_sequence(self, request_id: RequestId) -> None:
        """Remove a sequence in the simulation."""
        self._record("scheduling_remove_sequence", id=request_id)

    def get_needed_blocks_one_step(
        self,
        llm_request: LlmRequest,
        two_steps_look_ahead: bool,
        window_size: WindowSize,
        cached_summary: PrefixReuseSummary | None = None,
    ) -> int:
        """Blocks of the next step; writes the request's estimate."""
        num_blocks: int = self._record_with(
            "get_needed_blocks_one_step",
            llm_request,
            two_steps_look_ahead=two_steps_look_ahead,
            window=window_size,
            cached_summary=_write_summary(cached_summary),
        )
        return num_blocks

    def get_remaining_blocks_to_completion(
        self, llm_request: LlmRequest, window_size: WindowSize, cached_summary: PrefixReuseSummary | None = None
    ) -> int:
        """Blocks up to the last token; writes the request's estimate."""
        num_blocks: int = self._record_with(
            "get_remaining_blocks_to_completion",
            llm_request,
            window=window_size,
            cached_summary=_write_summary(cached_summary),
        )
        return num_blocks

    def set_spec_decoding_budget(self, num_extra_kv_tokens: int, draft_token_reserve: int) -> None:
        """Set what a step of speculative decoding may take."""
        self._record(
            "set_spec_decoding_budget",
            num_extra_kv_tokens=num_extra_kv_tokens,
            draft_token_reserve=draft_token_reserve,
        )


def _write_summary(summary: PrefixReuseSummary | None) -> list[int] | None:
    return None if summary is None else [summary.reusable_blocks_allocated, summary.reusable_blocks_all]
