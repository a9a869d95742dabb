"""How many requests of one length fit into a cache, and how much memory a number of them needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from trtkv.checks import check_integer
from trtkv.common import WindowSize, ceil_div
from trtkv.errors import ConfigurationError, InvalidInputError
from trtkv.pools.capacity_estimation import calculate_max_block_requirements
from trtkv.sizing.cache_plan import make_cache_plan, make_layout
from trtkv.sizing.pipeline_stages import split_into_stages

if TYPE_CHECKING:
    from trtkv.sizing.cache_plan import CachePlan, SizingOptions
    from trtkv.sizing.model_shape import ModelShape

MAX_MEMORY_BYTES: Final = 2**60
"""Memory beyond which a search gives up."""


@dataclass(frozen=True, slots=True)
class RequestLength:
    """Tokens of each of the requests."""

    input_length: int
    output_length: int

    def __post_init__(self) -> None:
        check_integer("input length", self.input_length, 1)
        check_integer("output length", self.output_length, 0)

    @property
    def total_length(self) -> int:
        """Prompt and output."""
        return self.input_length + self.output_length

    def check_fits(self, longest: int) -> None:
        """Raises InvalidInputError if it is longer than the longest sequence of a server."""
        if self.total_length > longest:
            raise InvalidInputError(
                f"requests have {self.total_length:,} tokens, but the longest sequence is {longest:,}; choose a longer "
                "one with --max-seq-len"
            )


class WindowNeed(NamedTuple):
    """Blocks of one window that a request holds, pages rounded up."""

    generating: int
    """At most, once it has its first token."""
    admitted: int
    """At its admission, where the prompt is whole in every window."""

    @property
    def most(self) -> int:
        """The larger of both."""
        return max(self.generating, self.admitted)

    def count_requests(self, num_blocks: int) -> int:
        """Requests that fit at a time, the last of which is just being admitted."""
        if num_blocks < self.most:
            return 0
        return (num_blocks - self.most) // self.generating + 1

    def blocks_for(self, num_requests: int) -> int:
        """Blocks that this many requests need."""
        return (num_requests - 1) * self.generating + self.most


class RequestRoom(NamedTuple):
    """What fits of requests of one length."""

    length: RequestLength
    needs: Mapping[WindowSize, WindowNeed]
    num_requests: int
    """At a time in device memory."""
    tightest_window: WindowSize
    """The window that allows no more of them."""
    host_requests: int
    """Whose blocks fit into the host tier besides, to be found again."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all of them at their full length."""
        return self.num_requests * self.length.total_length


def measure_room(plan: CachePlan, length: RequestLength) -> RequestRoom:
    """Requests of this length that fit into a plan. Raises InvalidInputError if they are too long for the server."""
    length.check_fits(plan.max_sequence_length)
    needs = {window.window_size: _need(plan, window.window_size, length) for window in plan.windows}
    counts = {
        window.window_size: needs[window.window_size].count_requests(window.primary_blocks) for window in plan.windows
    }
    tightest = min(counts, key=lambda size: counts[size])
    host = min(window.secondary_blocks // needs[window.window_size].generating for window in plan.windows)
    return RequestRoom(length, needs, counts[tightest], tightest, host)


def _need(plan: CachePlan, window: WindowSize, length: RequestLength) -> WindowNeed:
    tokens_per_block = plan.options.tokens_per_block
    linear = plan.model_config.linear_attention_metadata
    if linear is not None and window == linear.cache_type:
        count = linear.count_states(length.input_length, tokens_per_block, plan.options.block_reuse)
        return WindowNeed(count, count)
    generating = calculate_max_block_requirements(
        length.input_length, length.output_length, 0, window, 1, tokens_per_block
    )
    return WindowNeed(generating, ceil_div(length.input_length, tokens_per_block))


class NeededMemory(NamedTuple):
    """Memory for a number of requests."""

    num_requests: int
    memory_bytes: int
    """Of the cache on each GPU, with the shares of the windows as they are set."""
    plan: CachePlan
    """Of a cache with that memory."""
    shared_bytes: int
    """With ``shares``: no window has more than it needs."""
    shares: tuple[float, ...]
    """Shares of the windows that suit these requests, narrowest first."""


def find_needed_memory(
    shape: ModelShape, options: SizingOptions, length: RequestLength, num_requests: int
) -> NeededMemory:
    """The least device memory in which this many requests of this length fit; ``options.memory_bytes`` is not read.

    Raises ConfigurationError where no amount suffices, such as a window with a share of 0.
    """
    check_integer("number of requests", num_requests, 1)
    stages = [make_layout(stage, options) for stage in split_into_stages(shape, options.pp_size)]
    needed = []
    for layout in stages:
        length.check_fits(layout.model_config.max_sequence_length)
        empty = layout.plan(dict.fromkeys(layout.layers_by_window, (0, 0)))
        needed.append({size: _need(empty, size, length).blocks_for(num_requests) for size in layout.layers_by_window})

    def fits(memory_bytes: int) -> bool:
        try:
            found = [layout.count_primary_blocks(memory_bytes) for layout in stages]
        except ConfigurationError:
            return False  # static states alone take all of it
        return all(blocks[size] >= need[size] for blocks, need in zip(found, needed, strict=True) for size in need)

    memory_bytes = _least(fits)
    plan = make_cache_plan(shape, replace(options, memory_bytes=memory_bytes))
    return NeededMemory(num_requests, memory_bytes, plan, *_suited_shares(plan, length, num_requests))


def _least(fits: Callable[[int], bool]) -> int:
    """The smallest amount for which a rising condition holds."""
    high = 2**20
    while not fits(high):
        high *= 2
        if high > MAX_MEMORY_BYTES:
            raise ConfigurationError("no amount of memory suffices; does every window have a share?")
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _suited_shares(plan: CachePlan, length: RequestLength, num_requests: int) -> tuple[int, tuple[float, ...]]:
    """Bytes that the windows need, and their shares of it, rounded up so that each has enough."""
    sizes = [
        _need(plan, window.window_size, length).blocks_for(num_requests) * window.bytes_per_block
        for window in plan.windows
    ]
    total = sum(sizes)
    return total, tuple(size / total for size in sizes)
