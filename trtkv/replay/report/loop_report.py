"""Shows a LoopResult: tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from trtkv.replay.distribution import PERCENTILES
from trtkv.replay.report.json_text import JsonTable, json_text
from trtkv.replay.scheduler_loop.arrival_queue import NS_PER_SECOND
from trtkv.replay.scheduler_loop.utilisation import UtilisationSample

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from trtkv.records.rate import Rate
    from trtkv.replay.scheduler_loop.loop_config import LoopConfig
    from trtkv.replay.scheduler_loop.loop_counts import AdmissionCounts, RequestRecord
    from trtkv.replay.scheduler_loop.loop_result import LoopResult

_NUM_REFUSALS_SHOWN: Final = 5
_NUM_FAULTS_SHOWN: Final = 5

REQUEST_COLUMNS: Final = (
    "id",
    "prompt_tokens",
    "output_tokens",
    "arrival_seconds",
    "queueing_seconds",
    "first_token_seconds",
    "finished_seconds",
    "found_tokens",
    "prefill_steps",
    "computed_tokens",
    "pauses",
    "recompute_prompt_tokens",
    "recompute_found_tokens",
    "recomputed_tokens",
)
"""Of ``per_request``. ``arrival_`` and ``finished_seconds`` are times of the virtual clock, the other two durations."""


def loop_json(result: LoopResult) -> str:
    """The result as JSON text: keys in fixed order, equal for equal runs byte for byte."""
    counts = result.counts
    return json_text(
        {
            "trace": result.trace.name,
            "format": result.trace.format,
            "block_size": result.trace.block_size,
            "trace_requests": len(result.trace.requests),
            "malformed_rows": len(result.trace.faults),
            "settings": _settings_json(result),
            "counts": _counts_json(result),
            "first_admissions": _admissions_json(counts.first),
            "recompute_admissions": _admissions_json(counts.recompute),
            "rates": [rate.to_json() for rate in result.rates],
            "latencies": [latency.to_json() for latency in result.latencies],
            "refused_requests": [refusal._asdict() for refusal in counts.refusals],
            "utilisation_interval_steps": result.utilisation.interval,
            "utilisation": JsonTable(
                ["start_seconds" if name == "start_ns" else name for name in UtilisationSample._fields],
                (_sample_row(sample) for sample in result.utilisation.samples),
            ),
            "per_request": JsonTable(REQUEST_COLUMNS, map(_request_row, result.records)),
        }
    )


def print_loop_report(result: LoopResult, console: Console | None = None) -> None:
    """Print tables of settings, counts, rates and latencies to the console (default: standard output)."""
    from rich.console import Console

    console = console or Console()
    console.print(_counts_table(result))
    console.print(_rates_table(result))
    console.print(_latency_table(result))
    rates = [f"{rate.name}: {rate.definition}" for rate in result.rates]
    latencies = [f"{latency.name}: {latency.definition}" for latency in result.latencies]
    for line in [*rates, *latencies, *loop_notes(result)]:
        console.print(line, markup=False, highlight=False)


def loop_notes(result: LoopResult) -> list[str]:
    """What was left out: refused requests with the reason, malformed rows."""
    refusals, faults = result.counts.refusals, result.trace.faults
    lines = []
    if refusals:
        lines.append(f"{len(refusals)} requests can never run and were refused; no other count includes them:")
        lines += _shortened([refusal.reason for refusal in refusals], _NUM_REFUSALS_SHOWN)
    if faults:
        lines.append(f"{len(faults)} malformed rows were skipped:")
        lines += _shortened(
            [f"{result.trace.name}:{fault.line_number}: {fault.reason}" for fault in faults], _NUM_FAULTS_SHOWN
        )
    return lines


def _shortened(lines: Sequence[str], limit: int) -> list[str]:
    shown = [f"  {line}" for line in lines[:limit]]
    return shown if len(lines) <= limit else [*shown, f"  and {len(lines) - limit} more"]


# -- JSON -------------------------------------------------------------------------------------------


def _settings_json(result: LoopResult) -> dict[str, object]:
    config, cache = result.config, result.config.cache
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
        "primary_blocks": result.stats.max_num_blocks,
        "attention_windows": ["full" if window is None else window for window in cache.windows],
        "partial_reuse": cache.partial_reuse,
        "copy_on_partial_reuse": cache.copy_on_partial_reuse,
        "compatibility": cache.compatibility,
    }


def _counts_json(result: LoopResult) -> dict[str, object]:
    counts = result.counts
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
        "prefill_steps_needed": result.prefill_steps_needed,
        "prefill_steps_saved": result.prefill_steps_saved,
        "computed_prompt_tokens": counts.context_tokens,
        "recomputed_tokens": counts.recomputed_tokens,
        "generated_tokens": counts.generated_tokens,
        "cached_tokens_read": counts.cached_tokens,
        "pauses": counts.pauses,
        "deferrals": counts.deferrals,
        "withdrawals": counts.withdrawals,
        "most_used_blocks": counts.most_used_blocks,
        "allocated_blocks": result.stats.alloc_total_blocks,
    }


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


def _sample_row(sample: UtilisationSample) -> list[object]:
    return [value / NS_PER_SECOND if name == "start_ns" else value for name, value in sample._asdict().items()]


def _request_row(record: RequestRecord) -> list[object]:
    first_token_ns = None if record.first_token_ns is None else record.first_token_ns - record.arrival_ns
    return [
        record.request_id,
        record.prompt_tokens,
        record.output_tokens,
        record.arrival_ns / NS_PER_SECOND,
        _seconds(record.queueing_ns),
        _seconds(first_token_ns),
        _seconds(record.finished_ns),
        record.found_tokens,
        record.prefill_steps,
        record.computed_tokens,
        record.pauses,
        record.recompute_prompt_tokens,
        record.recompute_found_tokens,
        record.recomputed_tokens,
    ]


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / NS_PER_SECOND


# -- tables -----------------------------------------------------------------------------------------


def _counts_table(result: LoopResult) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(f"Scheduler replay of {result.trace.name}"), title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    for row in _settings_rows(result.config):
        table.add_row(*row)
    table.add_section()
    for name, value in _count_rows(result):
        table.add_row(name, _number(value))
    return table


def _settings_rows(config: LoopConfig) -> list[tuple[str, str]]:
    cache, chunking, times = config.cache, config.chunking, config.step_time
    chunks = "never"
    if chunking is not None:
        chunks = f"{_words(chunking.policy.value)}, unit {_number(chunking.chunk_unit_size)}"
    return [
        ("scheduler", _words(config.policy.value)),
        ("requests in a step, at most", _number(config.max_batch_size)),
        ("tokens in a step, at most", _number(config.max_num_tokens)),
        ("prompts cut into chunks", chunks),
        ("arrivals", config.arrivals.value),
        ("time of a step, us", f"{times.base_ns / 1e3:g} + {times.context_ns / 1e3:g} x context tokens"),
        ("", f"+ {times.generation_ns / 1e3:g} x generating + {times.cached_ns / 1e3:g} x cached"),
        ("tokens per block", _number(cache.tokens_per_block)),
        ("capacity, tokens", "unlimited" if cache.capacity_tokens is None else _number(cache.capacity_tokens)),
        ("host tier, tokens", _number(cache.host_tokens)),
    ]


def _count_rows(result: LoopResult) -> Iterable[tuple[str, float]]:
    counts = result.counts
    return [
        ("requests finished", counts.finished_requests),
        ("requests refused", len(counts.refusals)),
        ("steps", counts.steps),
        ("virtual seconds", counts.end_ns / NS_PER_SECOND),
        ("prompt tokens", counts.first.prompt_tokens),
        ("prompt tokens found in the cache", counts.first.found_tokens),
        ("  in blocks of live requests", counts.first.shared_tokens),
        ("prompt tokens computed", counts.context_tokens),
        ("  again, after a pause", counts.recomputed_tokens),
        ("tokens found again, after a pause", counts.recompute.found_tokens),
        ("prefill steps saved, full ones", result.prefill_steps_saved),
        ("tokens generated", counts.generated_tokens),
        ("pauses", counts.pauses),
        ("deferrals for a common prefix", counts.deferrals),
        ("blocks in use, at most", counts.most_used_blocks),
    ]


def _rates_table(result: LoopResult) -> Table:
    from rich.table import Table

    table = Table(title="Rates", title_justify="left")
    table.add_column("rate", no_wrap=True)
    for name in ("value", "numerator", "denominator"):
        table.add_column(name, justify="right", no_wrap=True)
    for rate in result.rates:
        table.add_row(rate.name, _rate_text(rate), _number(rate.numerator), _number(rate.denominator))
    return table


def _latency_table(result: LoopResult) -> Table:
    from rich.table import Table

    table = Table(title="Times of requests, virtual seconds", title_justify="left")
    table.add_column("time", no_wrap=True)
    for name in ("mean", *(f"p{percent}" for percent in PERCENTILES), "max"):
        table.add_column(name, justify="right", no_wrap=True)
    for latency in result.latencies:
        values = (latency.mean, *latency.percentiles, latency.most)
        table.add_row(latency.name, *("-" if value is None else f"{value:,.3f}" for value in values))
    return table


def _rate_text(rate: Rate) -> str:
    if rate.value is None:
        return "-"
    return f"{rate.value:,.3f}" if rate.name.endswith("_per_second") else f"{100 * rate.value:.3f} %"


def _number(number: float) -> str:
    return f"{number:,.3f}" if isinstance(number, float) else f"{number:,}"


def _words(name: str) -> str:
    return name.replace("_", " ")
