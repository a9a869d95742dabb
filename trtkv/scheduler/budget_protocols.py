"""What the schedulers ask of a cache manager and of an adapter cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from trtkv.common import RequestId, TokenId, WindowSize
from trtkv.records.llm_request import LlmRequest
from trtkv.records.window_size_metadata import PrefixReuseSummary, WindowSizeMetadata


class KvCacheBudget(Protocol):
    """The part of a KVCacheManager that the capacity scheduler uses.

    Budget calls write the request's estimate of reusable tokens. Only the scheduling simulation of the
    manager changes, never a block.
    """

    @property
    def enable_block_reuse(self) -> bool:
        """Whether prompts are looked up in the cache."""
        ...

    @property
    def is_variable_window(self) -> bool:
        """Whether there are several windows."""
        ...

    @property
    def cross_kv(self) -> bool:
        """Whether this is the cache of an encoder's output, which never grows."""
        ...

    @property
    def tokens_per_block(self) -> int:
        """Tokens of one block."""
        ...

    @property
    def num_extra_kv_tokens(self) -> int:
        """Slots behind every prompt."""
        ...

    @property
    def draft_token_reserve(self) -> int:
        """Drafts to budget for at least."""
        ...

    @property
    def window_sizes_metadata(self) -> Mapping[WindowSize, WindowSizeMetadata]:
        """Windows in ascending order."""
        ...

    @property
    def num_free_blocks_per_window_size(self) -> Mapping[WindowSize, int]:
        """Free primary blocks, cached ones included, of every window."""
        ...

    def start_scheduling(self) -> None:
        """Begin a simulation from the present reference counts."""
        ...

    def scheduling_remove_sequence(self, request_id: RequestId) -> None:
        """Release a sequence in the simulation only."""
        ...

    def scheduling_has_free_blocks(self, num_required: int, window_size: WindowSize) -> bool:
        """Whether that many blocks are free in the simulation."""
        ...

    def get_needed_blocks_one_step(
        self,
        llm_request: LlmRequest,
        two_steps_look_ahead: bool,
        window_size: WindowSize,
        cached_summary: PrefixReuseSummary | None = None,
    ) -> int:
        """Blocks the next step takes."""
        ...

    def get_remaining_blocks_to_completion(
        self, llm_request: LlmRequest, window_size: WindowSize, cached_summary: PrefixReuseSummary | None = None
    ) -> int:
        """Blocks still to be taken until the last token; may be negative."""
        ...

    def get_num_final_drafts(self, llm_request: LlmRequest, num_draft_tokens: int) -> int:
        """How many of so many drafts have slots behind the last token."""
        ...

    def analyze_prefix_reuse(
        self, llm_request: LlmRequest, tokens: Sequence[TokenId] | None = None
    ) -> PrefixReuseSummary:
        """Read-only walk over the cached prefix of a request."""
        ...


class BasePeftCacheManager(Protocol):
    """Pages of an adapter (LoRA) cache. C++: BasePeftCacheManager."""

    @property
    def max_device_pages(self) -> int:
        """Pages the device holds."""
        ...

    def determine_num_pages(self, request: LlmRequest) -> int:
        """Pages the adapter of a request takes."""
        ...
