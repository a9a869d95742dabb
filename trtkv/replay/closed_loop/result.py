"""ReplayResult: what a replay counted, and the rates made from it, each with its definition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import fsum
from typing import TYPE_CHECKING, NamedTuple

from trtkv.common import RECURRENT_STATES, WindowSize
from trtkv.errors import check
from trtkv.records.rate import Rate
from trtkv.replay import topics
from trtkv.replay.bounds.bounds import bounds_of
from trtkv.replay.bounds.capacity_curve import CurvePoint
from trtkv.replay.closed_loop.outcome import Outcome, describe_smallest
from trtkv.tables.table import Table, fact_table, list_table, rate_cell, rates_table
from trtkv.tables.wording import count, limit, window

if TYPE_CHECKING:
    from trtkv.replay.bounds.bounds import Bounds
    from trtkv.replay.bounds.capacity_curve import CapacityCurve
    from trtkv.replay.causes.explanation import Explanation
    from trtkv.replay.closed_loop.closed_loop import ReplayCounts
    from trtkv.replay.config import ReplayConfig
    from trtkv.traces.trace import RequestTrace

SYSTEM_NAME = "tensorrt-llm"

BLOCK_HIT_RATE = (
    "prompt blocks found in the cache / prompt blocks asked for, summed over windows; "
    "a block found in part counts as found"
)
TOKEN_HIT_RATE = "prompt tokens found in the cache / prompt tokens, of all requests run (ratio of sums)"
MEAN_REQUEST_HIT_RATE = (
    "sum over requests run of (prompt tokens found / prompt tokens of that request) / requests run (mean of ratios)"
)
WINDOW_HIT_RATE = "prompt blocks found in the cache of this window / prompt blocks asked for in it"
ZERO_HIT_SHARE = "requests run of which no prompt token was found / requests run"


class WindowResult(NamedTuple):
    """Counts of one attention window, in blocks."""

    window_size: WindowSize
    full_attention: bool
    primary_blocks: int
    secondary_blocks: int
    alloc_total: int
    reused: int
    full_reused: int
    partial_reused: int
    missed: int
    onboarded: int
    """Blocks brought back from the host tier."""
    offloaded: int
    """Blocks moved to the host tier."""
    copied: int
    """Blocks copied inside the primary tier."""
    orphaning: int = 0
    """Blocks that the eviction policy gave up although a block behind them was cached."""

    @property
    def hit_rate(self) -> Rate:
        """Block hit rate of this window."""
        return Rate("block_hit_rate", WINDOW_HIT_RATE, self.reused, self.reused + self.missed)

    def to_json(self) -> dict[str, object]:
        """All counts in the order of the fields, then the rate; recurrent states have no size of a window."""
        size = None if self.keeps_states else self.window_size
        return {**self._asdict(), "window_size": size, "rates": [self.hit_rate.to_json()]}

    @property
    def keeps_states(self) -> bool:
        """Whether its blocks are recurrent states."""
        return self.window_size == RECURRENT_STATES

    @property
    def name(self) -> str:
        """What tables call it."""
        return "states" if self.keeps_states else window(self.window_size, is_full=self.full_attention)


@dataclass(frozen=True, slots=True, repr=False)
class ReplayResult(Outcome):
    """Counts of a finished replay. Holds no times: equal runs give equal results."""

    trace: RequestTrace
    config: ReplayConfig
    counts: ReplayCounts
    max_sequence_length: int
    alloc_total: int
    """Blocks allocated, summed over windows."""
    reused: int
    """Prompt blocks found in the cache, wholly or in part, summed over windows."""
    missed: int
    """Prompt blocks not found, summed over windows."""
    windows: tuple[WindowResult, ...]
    """In ascending order of the window size."""
    explanation: Explanation | None = None
    """Why tokens were found or not, if that was asked for."""
    bounds: Bounds | None = None
    """What was possible at best, if that was asked for."""
    curve: CapacityCurve | None = None
    """Hit rates at other capacities, if they were asked for."""

    @property
    def num_run(self) -> int:
        """Requests run."""
        return self.counts.requests

    @property
    def num_never_run(self) -> int:
        """Requests that need more blocks than there are."""
        return self.counts.skipped_requests

    def why_never_run(self) -> str:
        """What the smallest request needs, and what there is."""
        states = self.config.states
        if states is not None:
            length = min(request.input_length for request in self.trace.requests)
            needed = states.num_needed(length, self.config.tokens_per_block)
            if needed > states.primary_blocks:
                return (
                    f"the shortest prompt of {length} tokens needs {needed} recurrent states, the memory holds "
                    f"{states.primary_blocks}; enlarge --memory, their share (--window-shares) or --snapshot-interval"
                )
        return describe_smallest(self.trace, self.config.tokens_per_block, self.config.capacity_tokens)

    @property
    def rates(self) -> list[Rate]:
        """All rates of the run as a whole."""
        counts = self.counts
        return [
            Rate("block_hit_rate", BLOCK_HIT_RATE, self.reused, self.reused + self.missed),
            Rate("token_hit_rate", TOKEN_HIT_RATE, counts.prepopulated_tokens, counts.prompt_tokens),
            Rate("mean_request_hit_rate", MEAN_REQUEST_HIT_RATE, fsum(counts.token_hit_rates), counts.requests),
            Rate("zero_hit_share", ZERO_HIT_SHARE, counts.zero_hit_requests, counts.requests),
        ]

    @property
    def requests(self) -> dict[str, object]:
        """Tokens found by each request (0 if it was skipped), the order of admission, and what was skipped."""
        outcomes = self.counts.outcomes
        found = {outcome.request_id: outcome.found_tokens or 0 for outcome in outcomes}
        return {
            "found_by_request": [found[request_id] for request_id in sorted(found)],
            "admitted": [outcome.request_id for outcome in outcomes if outcome.found_tokens is not None],
            "skipped": [outcome.request_id for outcome in outcomes if outcome.found_tokens is None],
        }

    def with_bounds(self, bounds: Bounds) -> ReplayResult:
        """The result with bounds of the same run. Raises LogicError if they are none."""
        counts, found = self.counts, self.counts.prepopulated_tokens
        check(
            (bounds.requests, bounds.prompt_tokens) == (counts.requests, counts.prompt_tokens),
            f"bounds of {bounds.requests} requests for a run of {counts.requests}",
        )
        check(
            found <= bounds.clairvoyant_hit_tokens <= bounds.infinite_hit_tokens,
            f"{found} tokens were found, the bounds say {bounds.clairvoyant_hit_tokens} and "
            f"{bounds.infinite_hit_tokens}",
        )
        return replace(self, bounds=bounds)

    def with_curve(self, curve: CapacityCurve) -> ReplayResult:
        """The result with a curve whose points include the run itself, unless its windows have blocks of their own."""
        if self.config.capacity_tokens is None or self.config.window_blocks:
            return replace(self, curve=curve)
        run = self.curve_point()
        points = {point.capacity_tokens: point for point in (run, *curve.measured)} if curve.measured else {}
        measured = tuple(point for _, point in sorted(points.items()))
        return replace(self, curve=replace(curve, measured=measured, run=run))

    def curve_point(self) -> CurvePoint:
        """The run as a point of a curve over capacity."""
        counts, config = self.counts, self.config
        bounds = self.bounds or bounds_of(self.trace.requests, config)
        return CurvePoint(
            config.capacity_tokens or 0,
            counts.requests,
            counts.skipped_requests,
            counts.prompt_tokens,
            counts.prepopulated_tokens,
            None if bounds is None else bounds.clairvoyant_hit_tokens,
        )

    def to_json(self) -> dict[str, object]:
        """Everything, in a fixed order: the columns of a reference run first, then settings, details and rates."""
        config, counts = self.config, self.counts
        return {
            "trace": self.trace.name,
            "tokens_per_block": config.tokens_per_block,
            "capacity_tokens": "inf" if config.capacity_tokens is None else config.capacity_tokens,
            "host_tokens": config.host_tokens,
            "live": config.live,
            "partial_reuse": config.partial_reuse,
            "requests": counts.requests,
            "prompt_tokens": counts.prompt_tokens,
            "prompt_blocks": counts.prompt_blocks,
            "decode_calls": counts.decode_calls,
            "alloc_total": self.alloc_total,
            "reused": self.reused,
            "missed": self.missed,
            "prepopulated_tokens": counts.prepopulated_tokens,
            "system": SYSTEM_NAME,
            "format": self.trace.format,
            "block_size": self.trace.block_size,
            "trace_requests": len(self.trace.requests),
            "skipped_requests": counts.skipped_requests,
            "malformed_rows": len(self.trace.faults),
            "zero_hit_requests": counts.zero_hit_requests,
            "copy_on_partial_reuse": config.copy_on_partial_reuse,
            "compatibility": config.compatibility,
            "eviction": config.eviction.to_json(),
            **({} if config.retention is None else {"retention": config.retention.name}),
            "attention_windows": ["full" if window is None else window for window in config.windows],
            "max_sequence_length": self.max_sequence_length,
            **({} if config.states is None else {"recurrent_states": config.states._asdict()}),
            **self.trace.sessions.to_json(),
            "rates": [rate.to_json() for rate in self.rates],
            "windows": [window.to_json() for window in self.windows],
            **{name: part.to_json() for name, part in self._optional_parts().items() if part is not None},
        }

    def _optional_parts(self) -> dict[str, Explanation | Bounds | CapacityCurve | None]:
        return {"explanation": self.explanation, "bounds": self.bounds, "curve": self.curve}

    def tables(self) -> list[Table]:
        """Settings and counts, rates, then bounds, causes and the curve if there are any, and blocks."""
        tables = [self._overview(), rates_table("Rates", self.rates, topic=topics.RATES)]
        if self.bounds is not None:
            tables.append(self.bounds.table(next(rate for rate in self.rates if rate.name == "token_hit_rate")))
        for part in (self.explanation, self.curve):
            tables += [] if part is None else part.tables()
        return [*tables, self._windows_table()]

    def notes(self) -> list[str]:
        """Requests and rows left out, a host tier without blocks."""
        lines, config = [], self.config
        if self.counts.skipped_requests:
            lines.append(
                f"{count(self.counts.skipped_requests)} requests need more blocks than the capacity holds and were "
                "never run; no count includes them."
            )
        lines += self.trace.notes()
        lines += config.departure_notes()
        if config.states is not None:
            lines.append(
                "Recurrent states: a prefix is found up to the last position of which the state was kept, and parts "
                "of blocks are not; bounds, causes and the curve are not known for them."
            )
        if config.host_tokens and not config.num_secondary_blocks:
            lines.append(
                f"The host tier of {count(config.host_tokens)} tokens holds no block of "
                f"{count(config.tokens_per_block)} tokens: blocks are dropped, not offloaded."
            )
        return lines

    def _overview(self) -> Table:
        config, counts = self.config, self.counts
        return fact_table(
            f"Replay of {self.trace.name}",
            {
                "format": self.trace.format,
                "tokens per block": config.tokens_per_block,
                "capacity, tokens": limit(config.capacity_tokens),
                "host tier, tokens": config.host_tokens,
                "live requests, at most": config.live,
                "partial reuse": _reuse_words(config),
                "attention windows, tokens": ", ".join(map(window, config.windows)),
                **_states_words(config),
                "eviction": config.eviction.label,
                **({} if config.retention is None else {"retention": config.retention.name}),
                "behaviour": "as recorded, faults included" if config.compatibility else "default",
                **self.trace.session_words(),
            },
            {
                "requests run": counts.requests,
                "requests never run": counts.skipped_requests,
                "malformed rows skipped": len(self.trace.faults),
                "prompt tokens": counts.prompt_tokens,
                "prompt tokens found in the cache": counts.prepopulated_tokens,
                "prompt blocks": counts.prompt_blocks,
                "blocks reused": self.reused,
                "blocks missed": self.missed,
                "blocks allocated": self.alloc_total,
                "decoded tokens": counts.decode_calls,
            },
            topic=topics.RUN,
        )

    def _windows_table(self) -> Table:
        return list_table(
            "Blocks by attention window",
            {
                "window, tokens": lambda row: row.name,
                "hit rate": lambda row: rate_cell(row.hit_rate),
                "reused": lambda row: row.reused,
                "in part": lambda row: row.partial_reused,
                "missed": lambda row: row.missed,
                "allocated": lambda row: row.alloc_total,
                "offloaded": lambda row: row.offloaded,
                "onboarded": lambda row: row.onboarded,
            },
            self.windows,
            topic=topics.BLOCKS,
            definitions=[("hit rate", WINDOW_HIT_RATE)],
        )


def _states_words(config: ReplayConfig) -> dict[str, int]:
    states = config.states
    if states is None:
        return {}
    return {
        "recurrent states in device memory": states.primary_blocks,
        "recurrent states in host memory": states.secondary_blocks,
        "tokens between two snapshots": states.snapshot_interval,
    }


def _reuse_words(config: ReplayConfig) -> str:
    if not config.partial_reuse:
        return "off"
    return "copied" if config.copy_on_partial_reuse else "in place where possible"
