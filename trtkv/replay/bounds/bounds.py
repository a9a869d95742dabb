"""Bounds of a hit rate that no replacement policy can beat: an unlimited cache, and clairvoyant eviction.

Both are computed from prompts alone, without a manager. docs/bounds.md says what they promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_128_digest

from trtkv.checks import check_integer
from trtkv.records.rate import Rate
from trtkv.replay import topics
from trtkv.replay.bounds.clairvoyant import ClairvoyantCache, UnitRequest
from trtkv.replay.schedule import Admit, Skip, closed_loop_events, num_pool_blocks
from trtkv.tables.result import Result
from trtkv.tables.table import Table, rates_table
from trtkv.traces.prefixes.prefix_tree import PrefixTree
from trtkv.traces.prefixes.symbols import BlockSymbols, TokenSymbols, stored_tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trtkv.replay.config import ReplayConfig
    from trtkv.traces.trace import KeyConstraints, TraceRequest

INFINITE: Final = "infinite"
CLAIRVOYANT: Final = "clairvoyant"

INFINITE_RATE: Final = (
    "prompt tokens that begin some earlier request's prompt and output, {unit}, at most all but the last token / "
    "prompt tokens, of all requests run"
)
CLAIRVOYANT_RATE: Final = (
    "prompt tokens found by a cache of the same capacity that knows the future, {unit} / prompt tokens, of all "
    "requests run"
)


def unit_text(tokens_per_block: int, *, partial_reuse: bool) -> str:
    """What counts, for the definitions."""
    return "counted by tokens (partial reuse)" if partial_reuse else f"full blocks of {tokens_per_block} tokens only"


@dataclass(frozen=True, slots=True, repr=False)
class Bounds(Result):
    """Prompt tokens that could at best be found, of the requests that run under the closed loop."""

    tokens_per_block: int
    capacity_tokens: int | None
    live: int
    partial_reuse: bool
    requests: int
    skipped_requests: int
    prompt_tokens: int
    infinite_hit_tokens: int
    clairvoyant_hit_tokens: int

    @property
    def rates(self) -> list[Rate]:
        """Both bounds as token hit rates, each with its definition."""
        unit = unit_text(self.tokens_per_block, partial_reuse=self.partial_reuse)
        infinite, clairvoyant = INFINITE_RATE.format(unit=unit), CLAIRVOYANT_RATE.format(unit=unit)
        return [
            Rate(f"{INFINITE}_token_hit_rate", infinite, self.infinite_hit_tokens, self.prompt_tokens),
            Rate(f"{CLAIRVOYANT}_token_hit_rate", clairvoyant, self.clairvoyant_hit_tokens, self.prompt_tokens),
        ]

    def tables(self) -> list[Table]:
        """Both bounds."""
        return [self.table()]

    def table(self, *measured: Rate) -> Table:
        """Both bounds below what was measured."""
        return rates_table("Bounds of the token hit rate", [*measured, *reversed(self.rates)], topic=topics.RATES)

    def to_json(self) -> dict[str, object]:
        """Settings, counts and rates in a fixed order."""
        return {
            "tokens_per_block": self.tokens_per_block,
            "capacity_tokens": "inf" if self.capacity_tokens is None else self.capacity_tokens,
            "live": self.live,
            "partial_reuse": self.partial_reuse,
            "requests": self.requests,
            "skipped_requests": self.skipped_requests,
            "prompt_tokens": self.prompt_tokens,
            "infinite_hit_tokens": self.infinite_hit_tokens,
            "clairvoyant_hit_tokens": self.clairvoyant_hit_tokens,
            "rates": [rate.to_json() for rate in self.rates],
        }


def compute_bounds(
    requests: Sequence[TraceRequest],
    *,
    tokens_per_block: int,
    capacity_tokens: int | None = None,
    host_tokens: int = 0,
    live: int = 1,
    partial_reuse: bool = False,
) -> Bounds:
    """Both bounds for the closed loop with these settings and full attention.

    ``partial_reuse``: whether parts of blocks can be found, so that single tokens count; else full blocks only. Host
    blocks add to the capacity. Without a capacity the clairvoyant bound is the infinite one, found independently.
    """
    check_integer("host_tokens", host_tokens, 0)
    check_integer("tokens_per_block", tokens_per_block, 1)
    if capacity_tokens is not None:
        check_integer("capacity_tokens", capacity_tokens)
    num_blocks = num_pool_blocks(requests, tokens_per_block, capacity_tokens)
    events = list(closed_loop_events(requests, tokens_per_block=tokens_per_block, num_blocks=num_blocks, live=live))
    run = [request for event in events if isinstance(event, Admit) for request in event.requests]
    unit = 1 if partial_reuse else tokens_per_block
    tree, found = _build_tree(run, unit)
    cache = ClairvoyantCache(
        [UnitRequest(tree.path(i), found_units(request, unit), request.input_length) for i, request in enumerate(run)],
        events,
        unit=unit,
        capacity=(num_blocks + host_tokens // tokens_per_block) * (tokens_per_block // unit),
    )
    cache.run()
    rests = 0 if partial_reuse else _count_whole_rests(run, tokens_per_block)
    return Bounds(
        tokens_per_block=tokens_per_block,
        capacity_tokens=capacity_tokens,
        live=live,
        partial_reuse=partial_reuse,
        requests=len(run),
        skipped_requests=sum(isinstance(event, Skip) for event in events),
        prompt_tokens=sum(request.input_length for request in run),
        infinite_hit_tokens=sum(found) * unit + rests,
        clairvoyant_hit_tokens=cache.num_hits * unit + rests,
    )


def has_bounds(requests: Sequence[TraceRequest], config: ReplayConfig) -> bool:
    """Whether bounds can be given for these settings: some window must be as wide as the longest sequence.

    Windows with different numbers of blocks are out of reach: one of them admits requests, another one keeps prefixes.
    So are recurrent states, which decide where a prefix may end.
    """
    if config.states is not None:
        return False
    return len(set(config.window_blocks)) <= 1 and max(config.layer_windows(requests)) >= config.max_sequence_length(
        requests
    )


def bounds_of(requests: Sequence[TraceRequest], config: ReplayConfig) -> Bounds | None:
    """The bounds for a replay with these settings; None without a full-attention window.

    Sliding windows beside a full one can only lower what is found. Without one, blocks that left the window need not be
    cached at all, and more may be found than these bounds say.
    """
    if not has_bounds(requests, config):
        return None
    return compute_bounds(
        requests,
        tokens_per_block=config.tokens_per_block,
        capacity_tokens=config.capacity_tokens,
        host_tokens=config.host_tokens,
        live=config.live,
        partial_reuse=config.partial_reuse,
    )


def found_units(request: TraceRequest, unit: int) -> int:
    """Units of a prompt that can be found: the last token is always computed."""
    return (request.input_length - 1) // unit


def _count_whole_rests(requests: Sequence[TraceRequest], tokens_per_block: int) -> int:
    """Tokens after the last full block that are found although parts of blocks are not: they are a started block whole.

    That is so for a prompt which without its last token is exactly what an earlier request left.
    """
    left: set[tuple[KeyConstraints | None, bytes]] = set()
    num_tokens = 0
    for request in requests:
        if (request.constraints, _digest(request.tokens()[:-1])) in left:
            num_tokens += (request.input_length - 1) % tokens_per_block
        left.add((request.constraints, _digest(stored_tokens(request))))
    return num_tokens


def _digest(tokens: NDArray[np.int32]) -> bytes:
    return xxh3_128_digest(tokens.astype("<i4", copy=False).tobytes())


def _build_tree(requests: Sequence[TraceRequest], unit: int) -> tuple[PrefixTree, list[int]]:
    """The tree of all stored sequences in units, and what each request finds in a cache without limit.

    Edges end where the part of a prompt that can be found ends, and where its full units end.
    """
    symbols = TokenSymbols(requests, stored_tokens) if unit == 1 else BlockSymbols(requests, stored_tokens, unit)
    tree = PrefixTree(symbols.load)
    found = []
    for i, request in enumerate(requests):
        limit = found_units(request, unit)
        found.append(min(tree.insert(symbols.load(i), (limit, request.input_length // unit)), limit))
    return tree, found
