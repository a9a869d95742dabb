"""LoopResult: what a run of the scheduler loop counted, and the rates made from it, each with its definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING, Any, Final

from trtkv.common import ceil_div
from trtkv.records.rate import Rate
from trtkv.replay import topics
from trtkv.replay.closed_loop.outcome import Outcome
from trtkv.replay.scheduler_loop.arrival_queue import NS_PER_SECOND
from trtkv.replay.scheduler_loop.distribution import PERCENTILES, Distribution
from trtkv.tables.table import Cell, Table, fact_table, list_table, rates_table
from trtkv.tables.wording import FULL, count, limit, shortened, window

if TYPE_CHECKING:
    from trtkv.records.stats import KvCacheStats
    from trtkv.replay.scheduler_loop.loop_config import LoopConfig
    from trtkv.replay.scheduler_loop.loop_counts import AdmissionCounts, LoopCounts, RequestRecord
    from trtkv.replay.utilisation import UtilisationSample, UtilisationSamples
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

NEED_TOKENS: Final = frozenset(
    (
        "token_hit_rate",
        "block_hit_rate",
        "mean_request_hit_rate",
        "zero_hit_share",
        "in_flight_share",
        "recompute_token_hit_rate",
        "recompute_block_hit_rate",
        "prefill_step_saving",
    )
)
"""Those that mean nothing where only the lengths of prompts are known."""

REUSE_UNKNOWN: Final = (
    "Only lengths are known, so reuse is unknown: every prompt was computed whole. Queueing, times and memory are "
    "those of a server that finds nothing in its cache."
)

LATENCIES: Final[dict[str, tuple[str, Callable[[RequestRecord], int | None]]]] = {
    "queueing_seconds": (
        "from arrival to the start of the step that gave the request its first blocks",
        lambda record: record.queueing_ns,
    ),
    "first_token_seconds": (
        "from arrival to the end of the step that generated the first token",
        lambda record: record.since_arrival(record.first_token_ns),
    ),
    "total_seconds": (
        "from arrival to the end of the step that generated the last token",
        lambda record: record.since_arrival(record.finished_ns),
    ),
}

REQUEST_COLUMNS: Final[dict[str, Callable[[RequestRecord], Any]]] = {
    "id": lambda record: record.request_id,
    "prompt_tokens": lambda record: record.prompt_tokens,
    "output_tokens": lambda record: record.output_tokens,
    "arrival_seconds": lambda record: _seconds(record.arrival_ns),
    "queueing_seconds": lambda record: _seconds(record.queueing_ns),
    "first_token_seconds": lambda record: _seconds(record.since_arrival(record.first_token_ns)),
    "finished_seconds": lambda record: _seconds(record.finished_ns),
    "found_tokens": lambda record: record.found_tokens,
    "prefill_steps": lambda record: record.prefill_steps,
    "computed_tokens": lambda record: record.computed_tokens,
    "pauses": lambda record: record.pauses,
    "recompute_prompt_tokens": lambda record: record.recompute_prompt_tokens,
    "recompute_found_tokens": lambda record: record.recompute_found_tokens,
    "recomputed_tokens": lambda record: record.recomputed_tokens,
}
"""Of ``per_request``. ``arrival_`` and ``finished_seconds`` are times of the virtual clock, the other two durations."""

SAMPLE_COLUMNS: Final[dict[str, Callable[[UtilisationSample], Any]]] = {
    "step": lambda sample: sample.step,
    "start_seconds": lambda sample: _seconds(sample.start_ns),
    "used_blocks": lambda sample: sample.used_blocks,
    "context_requests": lambda sample: sample.context_requests,
    "generation_requests": lambda sample: sample.generation_requests,
    "tokens": lambda sample: sample.tokens,
    "active_requests": lambda sample: sample.active_requests,
    "waiting_requests": lambda sample: sample.waiting_requests,
}


@dataclass(frozen=True, slots=True, repr=False)
class LoopResult(Outcome):
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
    def num_run(self) -> int:
        """Requests that have all their tokens."""
        return self.counts.finished_requests

    @property
    def num_never_run(self) -> int:
        """Requests that were refused."""
        return len(self.counts.refusals)

    @property
    def over_time(self) -> UtilisationSamples:
        """Steps over time."""
        return self.utilisation

    def why_never_run(self) -> str:
        """Why the shortest refused request was refused."""
        refusals = self.counts.refusals
        return min(refusals, key=lambda refusal: refusal.prompt_tokens + refusal.output_tokens).reason

    @property
    def rates(self) -> list[Rate]:
        """All rates of the run."""
        terms = {**self._hit_terms(), **self._utilisation_terms()}
        return [
            Rate(name, definition, *terms[name])
            for name, definition in DEFINITIONS.items()
            if self.trace.has_tokens or name not in NEED_TOKENS
        ]

    @property
    def latencies(self) -> list[Distribution]:
        """Times of requests, in virtual seconds."""
        return [
            Distribution.of(
                name,
                definition,
                [ns / NS_PER_SECOND for record in self.records if (ns := measure(record)) is not None],
            )
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

    def to_json(self) -> dict[str, object]:
        """Everything, in a fixed order: settings, counts, rates, times, then the long lists."""
        counts = self.counts
        return {
            "trace": self.trace.name,
            "format": self.trace.format,
            "block_size": self.trace.block_size,
            "trace_requests": len(self.trace.requests),
            **self.trace.sessions.to_json(),
            "malformed_rows": len(self.trace.faults),
            "reuse": "counted" if self.trace.has_tokens else "unknown",
            "settings": self._settings_json(),
            "counts": self._counts_json(),
            "first_admissions": _admissions_json(counts.first),
            "recompute_admissions": _admissions_json(counts.recompute),
            "rates": [rate.to_json() for rate in self.rates],
            "latencies": [latency.to_json() for latency in self.latencies],
            "refused_requests": [refusal._asdict() for refusal in counts.refusals],
            "utilisation_interval_steps": self.utilisation.interval,
            "utilisation": list_table("Steps", SAMPLE_COLUMNS, self.utilisation.samples).to_json(),
            "per_request": list_table("Requests", REQUEST_COLUMNS, self.records).to_json(),
        }

    def _settings_json(self) -> dict[str, object]:
        config, cache = self.config, self.config.cache
        chunking = config.chunking
        return {
            "scheduler": config.policy.value,
            "max_batch_size": config.max_batch_size,
            "max_num_tokens": config.max_num_tokens,
            "chunk_policy": None if chunking is None else chunking.policy.value,
            "chunk_unit": None if chunking is None else chunking.chunk_unit_size,
            "arrivals": config.arrivals.value,
            "step_time": config.step_time.to_json(),
            "tokens_per_block": cache.tokens_per_block,
            "capacity_tokens": "inf" if cache.capacity_tokens is None else cache.capacity_tokens,
            "host_tokens": cache.host_tokens,
            "primary_blocks": self.stats.max_num_blocks,
            "attention_windows": [FULL if size is None else size for size in cache.windows],
            "partial_reuse": cache.partial_reuse,
            "copy_on_partial_reuse": cache.copy_on_partial_reuse,
            "compatibility": cache.compatibility,
        }

    def _counts_json(self) -> dict[str, object]:
        counts = self.counts
        return {
            "finished_requests": counts.finished_requests,
            "refused_requests": len(counts.refusals),
            "steps": counts.steps,
            "context_steps": counts.context_steps,
            "generation_steps": counts.generation_steps,
            "idle_steps": counts.idle_steps,
            "virtual_seconds": counts.end_ns / NS_PER_SECOND,
            "prompt_tokens": counts.first.prompt_tokens,
            "prefill_tokens_saved": counts.first.found_tokens,
            "prefill_steps_needed": self.prefill_steps_needed,
            "prefill_steps_saved": self.prefill_steps_saved,
            "computed_prompt_tokens": counts.context_tokens,
            "recomputed_tokens": counts.recomputed_tokens,
            "generated_tokens": counts.generated_tokens,
            "cached_tokens_read": counts.cached_tokens,
            "pauses": counts.pauses,
            "deferrals": counts.deferrals,
            "withdrawals": counts.withdrawals,
            "most_used_blocks": counts.most_used_blocks,
            "allocated_blocks": self.stats.alloc_total_blocks,
        }

    def tables(self) -> list[Table]:
        """Settings and counts, rates, times of requests."""
        return [self._overview(), rates_table("Rates", self.rates, topic=topics.RATES), self._latency_table()]

    def notes(self) -> list[str]:
        """Refused requests with the reason, rows left out."""
        refusals, lines = self.counts.refusals, []
        if refusals:
            lines.append(
                f"{count(len(refusals))} requests can never run and were refused; no other count includes them:"
            )
            lines += shortened([refusal.reason for refusal in refusals])
        if not self.trace.has_tokens:
            lines.append(REUSE_UNKNOWN)
        return [*lines, *self.trace.notes(), *self.config.cache.departure_notes()]

    def _overview(self) -> Table:
        config, cache, counts = self.config, self.config.cache, self.counts
        chunking, times = config.chunking, config.step_time
        first, again = counts.first.found_tokens, counts.recompute.found_tokens
        in_flight, steps_saved = counts.first.shared_tokens, self.prefill_steps_saved
        known: Callable[[int], Cell] = (lambda found: found) if self.trace.has_tokens else (lambda found: "unknown")
        chunks = "never"
        if chunking is not None:
            chunks = f"{_words(chunking.policy.value)}, unit {count(chunking.chunk_unit_size)}"
        return fact_table(
            f"Scheduler replay of {self.trace.name}",
            {
                "format": self.trace.format,
                **self.trace.session_words(),
                "scheduler": _words(config.policy.value),
                "requests in a step, at most": config.max_batch_size,
                "tokens in a step, at most": config.max_num_tokens,
                "prompts cut into chunks": chunks,
                "arrivals": config.arrivals.value,
                "time of a step, us": f"{times.base_ns / 1e3:g} + {times.context_ns / 1e3:g} x context tokens",
                "": f"+ {times.generation_ns / 1e3:g} x generating + {times.cached_ns / 1e3:g} x cached",
                "tokens per block": cache.tokens_per_block,
                "capacity, tokens": limit(cache.capacity_tokens),
                "host tier, tokens": cache.host_tokens,
                "attention windows, tokens": ", ".join(map(window, cache.windows)),
            },
            {
                "requests finished": counts.finished_requests,
                "requests refused": len(counts.refusals),
                "steps": counts.steps,
                "virtual seconds": counts.end_ns / NS_PER_SECOND,
                "prompt tokens": counts.first.prompt_tokens,
                "prompt tokens found in the cache": known(first),
                "  in blocks of live requests": known(in_flight),
                "prompt tokens computed": counts.context_tokens,
                "  again, after a pause": counts.recomputed_tokens,
                "tokens found again, after a pause": known(again),
                "prefill steps saved, full ones": known(steps_saved),
                "tokens generated": counts.generated_tokens,
                "pauses": counts.pauses,
                "deferrals for a common prefix": counts.deferrals,
                "blocks in use, at most": counts.most_used_blocks,
            },
            topic=topics.RUN,
        )

    def _latency_table(self) -> Table:
        return list_table(
            "Times of requests, virtual seconds",
            {
                "time": lambda latency: latency.name,
                "mean": lambda latency: latency.mean,
                **{f"p{percent}": _percentile(at) for at, percent in enumerate(PERCENTILES)},
                "max": lambda latency: latency.most,
            },
            self.latencies,
            topic=topics.TIMES,
            definitions=[(latency.name, latency.definition) for latency in self.latencies],
        )


def _admissions_json(counts: AdmissionCounts) -> dict[str, object]:
    return {
        "admissions": counts.admissions,
        "prompt_tokens": counts.prompt_tokens,
        "found_tokens": counts.found_tokens,
        "in_flight_tokens": counts.shared_tokens,
        "reused_blocks": counts.reused_blocks,
        "missed_blocks": counts.missed_blocks,
        "zero_hits": counts.zero_hits,
    }


def _percentile(at: int) -> Callable[[Distribution], float | None]:
    return lambda latency: latency.percentiles[at]


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / NS_PER_SECOND


def _words(name: str) -> str:
    return name.replace("_", " ")
