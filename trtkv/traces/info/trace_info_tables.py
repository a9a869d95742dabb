"""Tables of a TraceInfo."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trtkv.tables.table import Cell, Share, Table, fact_table, list_table, rates_table
from trtkv.tables.wording import count

if TYPE_CHECKING:
    from trtkv.traces.info.trace_info import Lengths, Sharing, TraceInfo
    from trtkv.traces.sessions.protocol import SessionFacts


def trace_info_tables(info: TraceInfo) -> list[Table]:
    """Lengths; and if more is known: sharing, rates, cache sizes and working sets."""
    lengths = [_lengths(info)]
    if info.sessions.session_count or info.sessions.outputs_known:
        lengths.append(_sessions(info.sessions))
    if info.sharing is None:
        return lengths
    rates = rates_table("Cache without limit", info.rates)
    return [*lengths, _sharing(info, info.sharing), rates, _reuse(info, info.sharing), _working_sets(info)]


def _lengths(info: TraceInfo) -> Table:
    span = "" if info.span_seconds is None else f" over {count(info.span_seconds)} s"
    return list_table(
        f"{info.name} ({info.format})",
        {"length": lambda row: row[0], **{name: _length(name) for name in info.prompt_tokens._fields}},
        [("prompt tokens", info.prompt_tokens), ("output tokens", info.output_tokens)],
        notes=[f"{count(info.requests)} requests{span}"],
    )


def _length(name: str) -> Callable[[tuple[str, Lengths]], Cell]:
    return lambda row: getattr(row[1], name)


def _sessions(facts: SessionFacts) -> Table:
    """What a replay under the same options waits for and generates."""
    return fact_table(
        f"Sessions and outputs, read with --sessions {facts.protocol.sessions.value} "
        f"--outputs {facts.protocol.outputs.value}",
        {
            "sessions": facts.session_count,
            "requests that wait for another": facts.requests_with_predecessor,
            "  inferred from prompts": facts.inferred_predecessors,
            "predecessors that the trace lacks": facts.missing_predecessors,
            "requests of whose output tokens are known": facts.outputs_known,
            "output tokens known": facts.output_tokens_known,
            "  listed or named by the trace": facts.from_ids,
            "  told by the next prompt of the session": facts.from_continuation,
        },
    )


def _sharing(info: TraceInfo, sharing: Sharing) -> Table:
    by_use = {f"  in {name} prompts": number for name, number in sharing.distinct_blocks_by_use.items()}
    return fact_table(
        f"Sharing, in blocks of {info.tokens_per_block} tokens",
        {
            "blocks of all prompts": sharing.blocks,
            "distinct blocks": sharing.distinct_blocks,
            **by_use,
            "distinct first blocks": sharing.roots,
            "forks": sharing.forks,
            "longest prompt": sharing.deepest,
            "requests that share nothing with earlier ones": sharing.zero_hit_requests,
            "requests seen before as a whole": sharing.fully_seen_requests,
        },
        [
            (f"blocks {count(run.start)} to {count(run.end - 1)} shared by", f"{count(run.requests)} requests")
            for run in sharing.runs
        ],
    )


def _reuse(info: TraceInfo, sharing: Sharing) -> Table:
    quantiles = (info.reuse_distance_blocks or {}).items()
    shown = ", ".join(f"{name} {count(value)}" for name, value in quantiles if value is not None)
    return list_table(
        "Least-recently-used cache, one request at a time",
        {
            "cache": lambda size: f"{size.share:.0%} of distinct blocks",
            "blocks": lambda size: size.blocks,
            "tokens": lambda size: size.blocks * (info.tokens_per_block or 0),
            "found": lambda size: size.hits,
            "rate": lambda size: Share(size.hits, sharing.blocks),
        },
        info.lru,
        notes=[f"reuse distance in blocks: {shown}" if shown else "no block is reused"],
    )


def _working_sets(info: TraceInfo) -> Table:
    return list_table(
        "Working set: distinct blocks of consecutive requests",
        {
            "requests": lambda row: row.num_requests,
            "mean": lambda row: row.mean,
            "largest": lambda row: row.largest,
            "in tokens": lambda row: row.largest * (info.tokens_per_block or 0),
        },
        info.working_sets,
        texts=0,
    )
