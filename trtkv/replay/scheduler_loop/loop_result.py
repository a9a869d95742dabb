"""LoopResult: what a run of the scheduler loop counted, and the rates made from it, each with its definition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING, Final

from trtkv.common import ceil_div
from trtkv.records.rate import Rate
from trtkv.replay.distribution import Distribution
from trtkv.replay.scheduler_loop.arrival_queue import NS_PER_SECOND, make_arrivals
from trtkv.replay.scheduler_loop.loop_backend import DirectBackend, LoopBackend
from trtkv.replay.scheduler_loop.loop_counts import LoopCounts, RequestRecord
from trtkv.replay.scheduler_loop.refusal import RefusalCheck
from trtkv.replay.scheduler_loop.scheduler_loop import SchedulerLoop, StepObserver

if TYPE_CHECKING:
    from trtkv.records.stats import KvCacheStats
    from trtkv.replay.closed_loop import Progress
    from trtkv.replay.scheduler_loop.loop_config import LoopConfig
    from trtkv.replay.scheduler_loop.utilisation import UtilisationSamples
    from trtkv.traces.trace import RequestTrace

FIRST: Final = "at the first admission of each request"
AGAIN: Final = "at admissions after a pause, generated tokens among the prompt's"

DEFINITIONS: Final = {
    "token_hit_rate": f"prompt tokens found in the cache / prompt tokens, {FIRST} (ratio of sums)",
    "block_hit_rate": f"prompt blocks found, wholly or in part / prompt blocks asked for, over windows, {FIRST}",
    "mean_request_hit_rate": f"sum of (prompt tokens found / prompt tokens), {FIRST} / requests admitted",
    "zero_hit_share": f"requests of which no token was found, {FIRST} / requests admitted",
    "in_flight_share": (
        f"prompt tokens found in whole blocks that another live request held too / prompt tokens found, {FIRST}"
    ),
    "recompute_token_hit_rate": f"prompt tokens found in the cache / prompt tokens, {AGAIN}",
    "recompute_block_hit_rate": f"prompt blocks found, wholly or in part / prompt blocks asked for, {AGAIN}",
    "recomputed_share": "prompt tokens computed that had been computed before a pause / prompt tokens computed",
    "prefill_step_saving": (
        "full steps of max_num_tokens saved / full steps that all prompts need without a cache: per request "
        "ceil(prompt / max_num_tokens) - ceil((prompt - found at first admission) / max_num_tokens)"
    ),
    "block_utilisation": "primary blocks held by requests x time of each step / primary blocks x time of all steps",
    "batch_utilisation": "requests in a step, over all steps / max_batch_size x steps",
    "token_utilisation": "tokens computed, over all steps / max_num_tokens x steps",
    "busy_share": "virtual seconds of all steps / virtual seconds of the run",
    "output_tokens_per_second": "tokens generated / virtual seconds of the run",
    "requests_per_second": "requests finished / virtual seconds of the run",
}

LATENCIES: Final[dict[str, tuple[str, Callable[[RequestRecord], int | None]]]] = {
    "queueing_seconds": (
        "from arrival to the start of the step that gave the request its first blocks",
        lambda record: record.queueing_ns,
    ),
    "first_token_seconds": (
        "from arrival to the end of the step that generated the first token",
        lambda record: None if record.first_token_ns is None else record.first_token_ns - record.arrival_ns,
    ),
    "total_seconds": (
        "from arrival to the end of the step that generated the last token",
        lambda record: None if record.finished_ns is None else record.finished_ns - record.arrival_ns,
    ),
}


@dataclass(frozen=True, slots=True)
class LoopResult:
    """Counts of a finished run. Holds no time of the machine: equal runs give equal results."""

    trace: RequestTrace
    config: LoopConfig
    counts: LoopCounts
    records: tuple[RequestRecord, ...]
    """Requests that were not refused, in order of arrival."""
    utilisation: UtilisationSamples
    stats: KvCacheStats
    """The manager's totals: all admissions, first ones and those after a pause."""

    @property
    def prefill_steps_needed(self) -> int:
        """Full steps of ``max_num_tokens`` that all prompts need without a cache."""
        return sum(ceil_div(record.prompt_tokens, self.config.max_num_tokens) for record in self.records)

    @property
    def prefill_steps_saved(self) -> int:
        """Of these, steps that need not be made because of what first admissions found."""
        limit = self.config.max_num_tokens
        left = (ceil_div(record.prompt_tokens - record.found_tokens, limit) for record in self.records)
        return self.prefill_steps_needed - sum(left)

    @property
    def rates(self) -> list[Rate]:
        """All rates of the run."""
        terms = {**self._hit_terms(), **self._utilisation_terms()}
        return [Rate(name, definition, *terms[name]) for name, definition in DEFINITIONS.items()]

    @property
    def latencies(self) -> list[Distribution]:
        """Times of requests, in virtual seconds."""
        return [
            Distribution.of(name, definition, _seconds(map(measure, self.records)))
            for name, (definition, measure) in LATENCIES.items()
        ]

    def _hit_terms(self) -> dict[str, tuple[float, float]]:
        counts, first, again = self.counts, self.counts.first, self.counts.recompute
        return {
            "token_hit_rate": (first.found_tokens, first.prompt_tokens),
            "block_hit_rate": (first.reused_blocks, first.reused_blocks + first.missed_blocks),
            "mean_request_hit_rate": (fsum(first.hit_rates), first.admissions),
            "zero_hit_share": (first.zero_hits, first.admissions),
            "in_flight_share": (first.shared_tokens, first.found_tokens),
            "recompute_token_hit_rate": (again.found_tokens, again.prompt_tokens),
            "recompute_block_hit_rate": (again.reused_blocks, again.reused_blocks + again.missed_blocks),
            "recomputed_share": (counts.recomputed_tokens, counts.context_tokens),
            "prefill_step_saving": (self.prefill_steps_saved, self.prefill_steps_needed),
        }

    def _utilisation_terms(self) -> dict[str, tuple[float, float]]:
        counts, config = self.counts, self.config
        busy, seconds = counts.busy_ns / NS_PER_SECOND, counts.end_ns / NS_PER_SECOND
        return {
            "block_utilisation": (counts.used_block_ns / NS_PER_SECOND, self.stats.max_num_blocks * busy),
            "batch_utilisation": (counts.scheduled_requests, config.max_batch_size * counts.steps),
            "token_utilisation": (counts.step_tokens, config.max_num_tokens * counts.steps),
            "busy_share": (busy, seconds),
            "output_tokens_per_second": (counts.generated_tokens, seconds),
            "requests_per_second": (counts.finished_requests, seconds),
        }


def replay_with_scheduler(
    trace: RequestTrace,
    config: LoopConfig,
    *,
    seconds_per_unit: float | None = None,
    backend: LoopBackend | None = None,
    after_step: StepObserver | None = None,
    progress: Progress | None = None,
) -> LoopResult:
    """Build what the loop needs, run the trace through it, and read the counters.

    ``seconds_per_unit``: of the trace's timestamps, for arrivals by the trace. ``backend``: instead of a fresh one,
    made for the same trace and settings.
    """
    backend = backend or DirectBackend(config, trace.requests)
    loop = SchedulerLoop(
        backend,
        config.step_time,
        max_active=config.max_batch_size,
        max_sequence_length=config.cache.max_sequence_length(trace.requests),
        find_refusal=RefusalCheck(config, backend.manager).find_reason,
        after_step=after_step,
        progress=progress,
    )
    loop.run(make_arrivals(trace.requests, config.arrivals, seconds_per_unit))
    return LoopResult(
        trace=trace,
        config=config,
        counts=loop.ledger.counts,
        records=tuple(loop.ledger.records.values()),
        utilisation=loop.ledger.utilisation,
        stats=backend.manager.get_kv_cache_stats(),
    )


def _seconds(nanoseconds: Iterable[int | None]) -> Sequence[float]:
    return [value / NS_PER_SECOND for value in nanoseconds if value is not None]
