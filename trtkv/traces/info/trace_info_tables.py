"""Tables of a TraceInfo."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from trtkv.tables.table import Cell, Share, Table, fact_table, list_table
from trtkv.tables.wording import count
from trtkv.traces.info.trace_facts import CacheSize, Lengths, Sharing

if TYPE_CHECKING:
    from trtkv.traces.prefixes.reuse_distance import WorkingSets
    from trtkv.traces.sessions.protocol import SessionFacts


def lengths_table(title: str, lengths: Mapping[str, Lengths], note: str) -> Table:
    """Distributions of counts, by name."""
    return list_table(
        title,
        {"length": lambda row: row[0], **{name: _length(name) for name in Lengths._fields}},
        lengths.items(),
        notes=[note],
    )


def _length(name: str) -> Callable[[tuple[str, Lengths]], Cell]:
    return lambda row: getattr(row[1], name)


def sessions_table(facts: SessionFacts) -> Table:
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


def sharing_table(sharing: Sharing, tokens_per_block: int) -> Table:
    """How prompts share blocks."""
    by_use = {f"  in {name} prompts": number for name, number in sharing.distinct_blocks_by_use.items()}
    return fact_table(
        f"Sharing, in blocks of {tokens_per_block} tokens",
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


def reuse_table(
    lru: Iterable[CacheSize], distances: Mapping[str, int | None], tokens_per_block: int, num_blocks: int
) -> Table:
    """What least-recently-used caches find of ``num_blocks`` prompt blocks; ``distances`` are quantiles in blocks."""
    shown = ", ".join(f"{name} {count(value)}" for name, value in distances.items() if value is not None)
    return list_table(
        "Least-recently-used cache, one request at a time",
        {
            "cache": lambda size: f"{size.share:.0%} of distinct blocks",
            "blocks": lambda size: size.blocks,
            "tokens": lambda size: size.blocks * tokens_per_block,
            "found": lambda size: size.hits,
            "rate": lambda size: Share(size.hits, num_blocks),
        },
        lru,
        notes=[f"reuse distance in blocks: {shown}" if shown else "no block is reused"],
    )


def working_sets_table(working_sets: Iterable[WorkingSets], tokens_per_block: int) -> Table:
    """Distinct blocks that consecutive requests touch."""
    return list_table(
        "Working set: distinct blocks of consecutive requests",
        {
            "requests": lambda row: row.num_requests,
            "mean": lambda row: row.mean,
            "largest": lambda row: row.largest,
            "in tokens": lambda row: row.largest * tokens_per_block,
        },
        working_sets,
        texts=0,
    )
