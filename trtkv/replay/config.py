"""ReplayConfig: how a trace is replayed, and the manager built for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from trtkv.checks import check_integer
from trtkv.common import RECURRENT_STATES, DataType, KeyForm, WindowSize, ceil_div
from trtkv.errors import ConfigurationError
from trtkv.eviction.eviction_choice import DEFAULT_CHOICE, EvictionChoice
from trtkv.eviction.registry import find_eviction
from trtkv.records.cache_settings import (
    CacheSettings,
    EvictionSettings,
    LayerSettings,
    ReuseSettings,
    SequenceLimits,
    WindowsSettings,
)
from trtkv.records.linear_attention import LinearAttentionMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkv.blocks.block_listener import BlockListener
    from trtkv.manager.kv_cache_manager import KVCacheManager
    from trtkv.replay.retention_rules import RetentionRules
    from trtkv.traces.trace import RequestTrace, TraceRequest

EXTRA_BLOCKS_PER_REQUEST: Final = 3
"""Blocks reserved beyond the whole ones of prompt and output: a started one, a copy, a spare."""

EXTRA_TOKENS_PER_SEQUENCE: Final = 2

MAX_BLOCKS: Final = 2**31 - 1
"""Block ids are 32-bit numbers."""


class RecurrentStatesConfig(NamedTuple):
    """Blocks of the window of recurrent states; one layer stands for all that keep them."""

    primary_blocks: int
    secondary_blocks: int
    snapshot_interval: int
    """Tokens between two snapshots of a prompt; a multiple of the tokens per block, 0: none."""

    @property
    def metadata(self) -> LinearAttentionMetadata:
        """As a manager takes it."""
        return LinearAttentionMetadata(states_snapshot_interval=self.snapshot_interval)

    def num_needed(self, prompt_len: int, tokens_per_block: int) -> int:
        """States that a prompt takes up to its first generated token."""
        return self.metadata.count_states(prompt_len, tokens_per_block, True)


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """Settings of a replay; the defaults are full attention, all reuse, an unlimited cache and one live request."""

    tokens_per_block: int = 32
    capacity_tokens: int | None = None
    """Tokens that the primary blocks of a window hold; None: so many that nothing is ever evicted."""
    host_tokens: int = 0
    """Tokens that the secondary (host) blocks of a window hold."""
    live: int = 1
    """Most requests live at a time."""
    block_reuse: bool = True
    """Whether prompts are looked up in the cache at all."""
    partial_reuse: bool = True
    """Whether a prompt may take a part of a cached block."""
    copy_on_partial_reuse: bool = True
    """Whether that part is copied to a fresh block even when the cached block is not in use."""
    windows: tuple[WindowSize | None, ...] = (None,)
    """One layer per entry: its attention window in tokens, or None for full attention."""
    compatibility: bool = False
    """Whether the manager reproduces recorded behaviour of the original, faults included."""
    window_blocks: tuple[tuple[int, int], ...] = ()
    """Primary and secondary blocks of each entry of ``windows``; empty: all alike, from the capacities.

    ``capacity_tokens`` and ``host_tokens`` are then those of the smallest window; see ``with_window_blocks``.
    """
    min_sequence_length: int = 0
    """Longest sequence that a server is built for; a trace with shorter ones does not make its windows narrower."""
    eviction: EvictionChoice = DEFAULT_CHOICE
    """Which free block goes first."""
    retention: RetentionRules | None = None
    """Which tokens of which requests are kept longer; None: the trace is run as it is."""
    states: RecurrentStatesConfig | None = None
    """Recurrent states beside the windows, which must have full attention among them; None: the model keeps none."""

    def __post_init__(self) -> None:
        for name, value, least in (
            ("tokens_per_block", self.tokens_per_block, 1),
            ("host_tokens", self.host_tokens, 0),
            ("live", self.live, 1),
        ):
            check_integer(name, value, least, error=ConfigurationError)
        if self.capacity_tokens is not None:
            check_integer("capacity_tokens", self.capacity_tokens, error=ConfigurationError)
        check_integer("min_sequence_length", self.min_sequence_length, 0, error=ConfigurationError)
        if self.capacity_tokens is not None and self.capacity_tokens < self.tokens_per_block:
            raise ConfigurationError(
                f"capacity_tokens is {self.capacity_tokens}, less than one block of {self.tokens_per_block} tokens; "
                "give room for a block at least"
            )
        for name, tokens in (("capacity_tokens", self.capacity_tokens), ("host_tokens", self.host_tokens)):
            if tokens is not None and tokens // self.tokens_per_block > MAX_BLOCKS:
                raise ConfigurationError(f"{name} is {tokens}, more than {MAX_BLOCKS} blocks; give less")
        if not self.windows:
            raise ConfigurationError("no attention window is given; give at least one")
        for window in self.windows:
            if window is not None:
                check_integer("attention window", window, 1, error=ConfigurationError)
        if self.window_blocks and len(self.window_blocks) != len(self.windows):
            raise ConfigurationError(
                f"blocks are given for {len(self.window_blocks)} windows of {len(self.windows)}; give them for each"
            )
        find_eviction(self.eviction.make(), self.compatibility)
        if self.retention is not None and not self.eviction.is_default:
            raise ConfigurationError(
                f"eviction {self.eviction.name} does not look at priorities, so rules of retention mean nothing; "
                "leave one of them out"
            )
        if self.states is not None and None not in self.windows:
            raise ConfigurationError("recurrent states need a window with full attention beside them; give one")

    def with_window_blocks(
        self, windows: Sequence[WindowSize | None], window_blocks: Sequence[tuple[int, int]], sequence_length: int
    ) -> ReplayConfig:
        """The same settings for a server with these blocks per window; capacities become those of the smallest."""
        return replace(
            self,
            windows=tuple(windows),
            window_blocks=tuple(window_blocks),
            capacity_tokens=min(primary for primary, _ in window_blocks) * self.tokens_per_block,
            host_tokens=min(secondary for _, secondary in window_blocks) * self.tokens_per_block,
            min_sequence_length=sequence_length,
        )

    def with_retention(self, trace: RequestTrace) -> RequestTrace:
        """The trace under the rules of retention, if there are any."""
        return trace if self.retention is None else self.retention.apply(trace)

    def departure_notes(self) -> list[str]:
        """Where the default behaviour may count otherwise than the original; empty where it does not."""
        if self.compatibility:
            return []
        reasons = [
            name
            for name, applies in (
                ("a host tier", self.num_secondary_blocks > 0),
                ("sliding windows", any(window is not None for window in self.windows)),
                ("recurrent states", self.states is not None),
                ("partial reuse off", not self.partial_reuse),
                ("copying off", not self.copy_on_partial_reuse),
            )
            if applies
        ]
        if not reasons:
            return []
        return [
            f"With {', '.join(reasons)}, these counts may differ from TensorRT-LLM's own; --compatibility gives those."
        ]

    def num_needed_blocks(self, request: TraceRequest) -> int:
        """Blocks reserved for a request while it is live."""
        total_length = request.input_length + request.output_length
        return total_length // self.tokens_per_block + EXTRA_BLOCKS_PER_REQUEST

    def num_primary_blocks(self, requests: Sequence[TraceRequest]) -> int:
        """Primary blocks of each window; without a capacity, as many as all requests need together."""
        if self.capacity_tokens is not None:
            return self.capacity_tokens // self.tokens_per_block
        return sum(map(self.num_needed_blocks, requests))

    @property
    def num_secondary_blocks(self) -> int:
        """Secondary blocks of each window."""
        return self.host_tokens // self.tokens_per_block

    def max_sequence_length(self, requests: Sequence[TraceRequest]) -> int:
        """Longest sequence of the trace in whole blocks, and a block more; in tokens."""
        longest = max((request.input_length + request.output_length for request in requests), default=0)
        longest = max(longest, self.min_sequence_length)
        num_blocks = ceil_div(longest + EXTRA_TOKENS_PER_SEQUENCE, self.tokens_per_block) + 1
        return num_blocks * self.tokens_per_block

    def layer_windows(self, requests: Sequence[TraceRequest]) -> list[WindowSize]:
        """The window of each layer in tokens; one as wide as the longest sequence is full attention."""
        full = self.max_sequence_length(requests)
        return [full if window is None else min(window, full) for window in self.windows]

    def build_manager(
        self,
        requests: Sequence[TraceRequest],
        clock: Callable[[], int] | None = None,
        *,
        block_listener: BlockListener | None = None,
    ) -> KVCacheManager:
        """A manager for these requests: one layer per window, one KV head of one int8 element, one beam.

        ``clock``: nanoseconds; without one time stands still, so that results do not depend on the machine.
        """
        from trtkv.manager.kv_cache_manager import KVCacheManager

        windows = self.layer_windows(requests)
        blocks = self.window_blocks or ((self.num_primary_blocks(requests), self.num_secondary_blocks),) * len(windows)
        if self.states is not None:
            windows = [*windows, RECURRENT_STATES]
            blocks = (*blocks, (self.states.primary_blocks, self.states.secondary_blocks))
        settings = CacheSettings(
            tokens_per_block=self.tokens_per_block,
            layers=LayerSettings(
                [1] * len(windows),
                1,
                DataType.INT8,
                linear_attention_metadata=None if self.states is None else self.states.metadata,
            ),
            windows=WindowsSettings(windows, dict(sorted(zip(windows, blocks, strict=True)))),
            limits=SequenceLimits(self.max_sequence_length(requests), self.live),
            reuse=ReuseSettings(
                enable_block_reuse=self.block_reuse,
                enable_partial_reuse=self.partial_reuse,
                copy_on_partial_reuse=self.copy_on_partial_reuse,
                hash_map_order=self.partial_reuse,  # so that equal partial matches are taken as in the original
                key_form=KeyForm.RUNS if any(r.source.has_consecutive_tokens for r in requests) else KeyForm.TOKENS,
            ),
            eviction=EvictionSettings(self.eviction.make()),
            compatibility=self.compatibility,
        )
        return KVCacheManager(settings, clock=clock or _standing_clock, block_listener=block_listener)


def _standing_clock() -> int:
    """Time does not pass in a closed loop, where no block has a duration."""
    return 0
