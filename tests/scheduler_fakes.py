"""A cache manager and an adapter cache reduced to the numbers a scheduler asks for, and request builders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trtkv.errors import InvalidInputError, UnknownIdError
from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.records.window_size_metadata import PrefixReuseSummary, WindowSizeMetadata

WINDOW = 1024
TOKENS_PER_BLOCK = 4


def make_request(
    request_id: int,
    prompt_len: int = 8,
    *,
    position: int = 0,
    reusable: int = 0,
    state: LlmRequestState = LlmRequestState.CONTEXT_INIT,
    max_new_tokens: int = 4,
    beam_width: int = 1,
    num_draft_tokens: int = 0,
    lora_task_id: int | None = None,
    encoder_tokens: Sequence[int] | None = None,
) -> LlmRequest:
    request = LlmRequest(
        request_id,
        range(prompt_len),
        max_new_tokens,
        beam_width=beam_width,
        num_draft_tokens=num_draft_tokens,
        lora_task_id=lora_task_id,
        encoder_tokens=encoder_tokens,
        state=state,
    )
    request.set_context_current_position(position)
    request.set_estimated_reusable_tokens(reusable)
    return request


def generating(request_id: int, prompt_len: int = 8, **options: Any) -> LlmRequest:
    """A request past its prompt."""
    request = make_request(request_id, prompt_len, state=LlmRequestState.GENERATION_IN_PROGRESS, **options)
    request.set_context_current_position(prompt_len)
    return request


def ids(requests: Iterable[LlmRequest]) -> list[int]:
    return [request.request_id for request in requests]


class FakeKvCacheManager:
    """Blocks held by sequences are sets of block numbers; what a request needs is told by the test.

    ``needs``: request id -> blocks, the same in every window, of one step and up to completion.
    ``first_new_blocks``: request id -> key of the first block that is not cached (default: none).
    """

    enable_block_reuse = True
    cross_kv = False
    tokens_per_block = TOKENS_PER_BLOCK
    num_extra_kv_tokens = 0
    draft_token_reserve = 0

    def __init__(
        self,
        num_blocks: int | Mapping[int, int],
        *,
        needs: Mapping[int, int] | None = None,
        holds: Mapping[int, Iterable[int]] | None = None,
        first_new_blocks: Mapping[int, str] | None = None,
        reusable: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        self.num_blocks = dict(num_blocks) if isinstance(num_blocks, Mapping) else {WINDOW: num_blocks}
        self.needs = dict(needs or {})
        self.holds = {request_id: list(blocks) for request_id, blocks in (holds or {}).items()}
        self.first_new_blocks = dict(first_new_blocks or {})
        self.reusable = dict(reusable or {})
        self.num_walks = 0
        self._references: dict[int, int] = {}
        self._num_simulated_free: dict[int, int] = {}

    @property
    def is_variable_window(self) -> bool:
        return len(self.num_blocks) > 1

    @property
    def window_sizes_metadata(self) -> dict[int, WindowSizeMetadata]:
        return {
            window: WindowSizeMetadata((count, 0), 0, 1, window, window // TOKENS_PER_BLOCK, count, window, False)
            for window, count in sorted(self.num_blocks.items())
        }

    @property
    def num_free_blocks_per_window_size(self) -> dict[int, int]:
        num_held = len({block for blocks in self.holds.values() for block in blocks})
        return {window: count - num_held for window, count in self.num_blocks.items()}

    def start_scheduling(self) -> None:
        self._references = {}
        for blocks in self.holds.values():
            for block in blocks:
                self._references[block] = self._references.get(block, 0) + 1
        self._num_simulated_free = self.num_free_blocks_per_window_size

    def scheduling_remove_sequence(self, request_id: int) -> None:
        if request_id not in self.holds:
            raise UnknownIdError(f"no sequence {request_id}")
        for block in self.holds[request_id]:
            self._references[block] -= 1
            if self._references[block] == 0:
                for window in self._num_simulated_free:
                    self._num_simulated_free[window] += 1

    def scheduling_has_free_blocks(self, num_required: int, window_size: int) -> bool:
        return num_required <= self._num_simulated_free[window_size]

    def get_needed_blocks_one_step(
        self,
        llm_request: LlmRequest,
        two_steps_look_ahead: bool,
        window_size: int,
        cached_summary: PrefixReuseSummary | None = None,
    ) -> int:
        return self._size(llm_request, cached_summary)

    def get_num_final_drafts(self, llm_request: LlmRequest, num_draft_tokens: int) -> int:
        return 0

    def get_remaining_blocks_to_completion(
        self, llm_request: LlmRequest, window_size: int, cached_summary: PrefixReuseSummary | None = None
    ) -> int:
        return self._size(llm_request, cached_summary)

    def _size(self, request: LlmRequest, summary: PrefixReuseSummary | None) -> int:
        request.set_estimated_reusable_tokens(0)
        needed = self.needs.get(request.request_id, 0)
        if summary is None:
            return needed
        request.set_estimated_reusable_tokens(summary.reusable_blocks_all * TOKENS_PER_BLOCK)
        return needed - summary.reusable_blocks_allocated

    def analyze_prefix_reuse(self, llm_request: LlmRequest, tokens: Sequence[int] | None = None) -> PrefixReuseSummary:
        if self.is_variable_window:
            raise InvalidInputError("a prefix walk needs a single window")
        self.num_walks += 1
        allocated, everything = self.reusable.get(llm_request.request_id, (0, 0))
        return PrefixReuseSummary(allocated, everything, self.first_new_blocks.get(llm_request.request_id))


class FakePeftCacheManager:
    """Adapter cache with a fixed number of pages per adapter."""

    def __init__(self, max_device_pages: int, pages: Mapping[int, int]) -> None:
        self.max_device_pages = max_device_pages
        self._pages = dict(pages)

    def determine_num_pages(self, request: LlmRequest) -> int:
        return 0 if request.lora_task_id is None else self._pages[request.lora_task_id]
