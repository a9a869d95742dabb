"""What a trace holds: lengths, how prompts share blocks, reuse distances, working sets. No cache is simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trtkv.checks import check_integer
from trtkv.common import ceil_div
from trtkv.errors import InvalidInputError
from trtkv.records.rate import Rate
from trtkv.tables.result import Result
from trtkv.tables.table import Table, rates_table
from trtkv.tables.wording import count
from trtkv.traces.info.trace_facts import CacheSize, Lengths, SharedRun, Sharing
from trtkv.traces.info.trace_info_tables import (
    lengths_table,
    reuse_table,
    sessions_table,
    sharing_table,
    working_sets_table,
)
from trtkv.traces.prefixes.infinite_matches import infinite_hit_tokens, infinite_matches
from trtkv.traces.prefixes.prefix_tree import PrefixTree
from trtkv.traces.prefixes.reuse_distance import ReuseDistances, WorkingSets, measure_reuse
from trtkv.traces.prefixes.symbols import BlockSymbols, prompt_tokens
from trtkv.traces.sessions.protocol import SessionFacts

if TYPE_CHECKING:
    from trtkv.traces.trace import RequestTrace, TraceRequest

DEFAULT_TOKENS_PER_BLOCK: Final = 32
WINDOW_LENGTHS: Final = (10, 100, 1000)
CACHE_SHARES: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
QUANTILES: Final = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
USE_CLASSES: Final = ((1, 1), (2, 2), (3, 10), (11, 100), (101, None))
NUM_RUNS_SHOWN: Final = 5

BLOCK_RATE: Final = (
    "prompt blocks seen in an earlier prompt after the same prefix / prompt blocks; a started last block counts and "
    "may be found"
)
ENGINE_RATE: Final = (
    "full prompt blocks that begin an earlier prompt, never the last token / prompt blocks, started ones included"
)
TOKEN_RATE: Final = "prompt tokens that begin an earlier prompt, at most all but the last / prompt tokens"
MEAN_TOKEN_RATE: Final = "sum over requests of (prompt tokens that begin an earlier prompt / prompt tokens) / requests"
MEAN_BLOCK_RATE: Final = "sum over requests of (prompt blocks seen in an earlier prompt / prompt blocks) / requests"


@dataclass(frozen=True, slots=True, repr=False)
class TraceInfo(Result):
    """Everything about a trace; the parts that need tokens are None for lengths-only formats."""

    name: str
    format: str
    block_size: int | None
    requests: int
    malformed_rows: int
    span_seconds: float | None
    prompt_tokens: Lengths
    output_tokens: Lengths
    tokens_per_block: int | None = None
    sharing: Sharing | None = None
    rates: tuple[Rate, ...] = ()
    """Of a cache without limit."""
    reuse_distance_blocks: dict[str, int | None] | None = None
    lru: tuple[CacheSize, ...] = ()
    working_sets: tuple[WorkingSets, ...] = ()
    sessions: SessionFacts = field(default_factory=SessionFacts)
    """What the trace says of sessions and outputs, and the protocol under which it was read."""

    def tables(self) -> list[Table]:
        """Lengths, and unless nothing but lengths is known: sharing, rates, cache sizes and working sets."""
        tables = [self._lengths_table()]
        if self.sessions.session_count or self.sessions.outputs_known:
            tables.append(sessions_table(self.sessions))
        if self.sharing is None:
            return tables
        per_block = self.tokens_per_block or 0
        return [
            *tables,
            sharing_table(self.sharing, per_block),
            rates_table("Cache without limit", self.rates),
            reuse_table(self.lru, self.reuse_distance_blocks or {}, per_block, self.sharing.blocks),
            working_sets_table(self.working_sets, per_block),
        ]

    def _lengths_table(self) -> Table:
        span = "" if self.span_seconds is None else f" over {count(self.span_seconds)} s"
        return lengths_table(
            f"{self.name} ({self.format})",
            {"prompt tokens": self.prompt_tokens, "output tokens": self.output_tokens},
            note=f"{count(self.requests)} requests{span}",
        )

    def notes(self) -> list[str]:
        """What is not known, and rows that were skipped."""
        lines = []
        if self.sharing is None:
            lines.append("Only lengths are known: nothing can be said about sharing or reuse.")
        if self.malformed_rows:
            lines.append(f"{count(self.malformed_rows)} malformed rows were skipped.")
        return lines

    def to_json(self) -> dict[str, object]:
        """All of it, in a fixed order."""
        per_block = self.tokens_per_block or 0
        sharing = self.sharing
        return {
            "trace": self.name,
            "format": self.format,
            "block_size": self.block_size,
            "requests": self.requests,
            "malformed_rows": self.malformed_rows,
            **self.sessions.to_json(),
            "span_seconds": self.span_seconds,
            "prompt_tokens": self.prompt_tokens._asdict(),
            "output_tokens": self.output_tokens._asdict(),
            "tokens_per_block": self.tokens_per_block,
            "sharing": None
            if sharing is None
            else {**sharing._asdict(), "runs": [run._asdict() for run in sharing.runs]},
            "infinite_cache": [rate.to_json() for rate in self.rates],
            "reuse_distance_blocks": self.reuse_distance_blocks,
            "lru_cache": [{**size._asdict(), "tokens": size.blocks * per_block} for size in self.lru],
            "working_sets": [
                {**window._asdict(), "largest_tokens": window.largest * per_block} for window in self.working_sets
            ],
        }


def describe_trace(trace: RequestTrace, *, tokens_per_block: int | None = None) -> TraceInfo:
    """Measure a trace in blocks of ``tokens_per_block`` tokens (None: those of its hash ids, else 32)."""
    requests = list(trace.requests)
    if not requests:
        raise InvalidInputError(f"the trace {trace.name} has no requests")
    if tokens_per_block is not None:
        check_integer("tokens_per_block", tokens_per_block)
    per_block = tokens_per_block or trace.block_size or DEFAULT_TOKENS_PER_BLOCK
    if per_block < 1:
        raise InvalidInputError(f"tokens_per_block is {per_block}; give at least 1")
    return TraceInfo(
        name=trace.name,
        format=trace.format,
        block_size=trace.block_size,
        requests=len(requests),
        malformed_rows=len(trace.faults),
        span_seconds=_span(requests, trace.seconds_per_unit),
        prompt_tokens=_lengths([request.input_length for request in requests]),
        output_tokens=_lengths([request.output_length for request in requests]),
        sessions=trace.sessions,
        **(_content(requests, per_block) if trace.has_tokens else {}),
    )


def _content(requests: Sequence[TraceRequest], per_block: int) -> dict[str, Any]:
    symbols = BlockSymbols(requests, prompt_tokens, per_block, partial=True)
    tree = PrefixTree(symbols.load)
    found_blocks = [tree.insert(symbols.load(position)) for position in range(len(requests))]
    windows = (*(length for length in WINDOW_LENGTHS if length < len(requests)), len(requests))
    distances, working_sets = measure_reuse(tree, len(requests), windows)
    matches = infinite_matches(requests, prompt_tokens)
    return {
        "tokens_per_block": per_block,
        "sharing": _sharing(requests, tree, distances, matches),
        "rates": _rates(requests, found_blocks, matches, per_block),
        "reuse_distance_blocks": {name: distances.quantile(share) for name, share in QUANTILES.items()},
        "lru": tuple(_cache_size(distances, share) for share in CACHE_SHARES),
        "working_sets": tuple(working_sets),
    }


def _sharing(
    requests: Sequence[TraceRequest], tree: PrefixTree, distances: ReuseDistances, matches: Sequence[int]
) -> Sharing:
    uses = Counter(edge for position in range(len(requests)) for edge in tree.path(position))
    runs = [SharedRun(number, edge.start, edge.end) for edge, number in uses.items() if number > 1]
    runs.sort(key=lambda run: ((run.requests - 1) * (run.end - run.start), run), reverse=True)
    return Sharing(
        blocks=distances.num_touched,
        distinct_blocks=distances.num_distinct,
        roots=len(tree.root.children),
        forks=sum(len(edge.children) > 1 for edge in uses),
        deepest=max(edge.end for edge in uses),
        distinct_blocks_by_use={
            _class_name(low, high): sum(len(e) for e, n in uses.items() if low <= n and (high is None or n <= high))
            for low, high in USE_CLASSES
        },
        zero_hit_requests=sum(not match for match in matches),
        fully_seen_requests=sum(
            match == request.input_length for request, match in zip(requests, matches, strict=True)
        ),
        runs=runs[:NUM_RUNS_SHOWN],
    )


def _class_name(low: int, high: int | None) -> str:
    return f"over {low - 1}" if high is None else str(low) if low == high else f"{low}-{high}"


def _rates(
    requests: Sequence[TraceRequest], found_blocks: Sequence[int], matches: Sequence[int], per_block: int
) -> tuple[Rate, ...]:
    lengths = [request.input_length for request in requests]
    blocks = [ceil_div(length, per_block) for length in lengths]
    full_blocks = infinite_hit_tokens(requests, matches, per_block) // per_block
    found_tokens = infinite_hit_tokens(requests, matches, 1)
    return (
        Rate("infinite_block_hit_rate", BLOCK_RATE, sum(found_blocks), sum(blocks)),
        Rate("infinite_full_block_hit_rate", ENGINE_RATE, full_blocks, sum(blocks)),
        Rate("infinite_token_hit_rate", TOKEN_RATE, found_tokens, sum(lengths)),
        Rate("infinite_mean_block_hit_rate", MEAN_BLOCK_RATE, _sum_of_ratios(found_blocks, blocks), len(requests)),
        Rate("infinite_mean_token_hit_rate", MEAN_TOKEN_RATE, _sum_of_ratios(matches, lengths), len(requests)),
    )


def _sum_of_ratios(found: Sequence[int], asked: Sequence[int]) -> float:
    return fsum(part / whole for part, whole in zip(found, asked, strict=True))


def _cache_size(distances: ReuseDistances, share: float) -> CacheSize:
    blocks = int(distances.num_distinct * share)
    return CacheSize(share, blocks, distances.num_hits(blocks))


def _span(requests: Sequence[TraceRequest], seconds_per_unit: float | None) -> float | None:
    if seconds_per_unit is None:
        return None
    times = [request.timestamp for request in requests]
    return (max(times) - min(times)) * seconds_per_unit


def _lengths(counts: list[int]) -> Lengths:
    ordered = sorted(counts)
    p50, p90, p99 = (ordered[ceil_div(len(ordered) * percent, 100) - 1] for percent in (50, 90, 99))
    mean = float(np.mean(ordered))
    return Lengths(sum(ordered), mean, ordered[0], p50, p90, p99, ordered[-1])
