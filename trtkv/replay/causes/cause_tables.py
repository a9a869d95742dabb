"""Tables of an explanation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from trtkv.common import RequestId
from trtkv.replay import topics
from trtkv.replay.causes.cause_counts import QUANTILES
from trtkv.replay.causes.causes import CAUSES, Cause, needed_for, tier_name
from trtkv.tables.table import Share, Table, list_table
from trtkv.tables.wording import window

if TYPE_CHECKING:
    from trtkv.replay.causes.cause_counts import EvictionLosses
    from trtkv.replay.causes.window_activity import WindowActivity
    from trtkv.replay.causes.window_history import RemovalKind

AGES: Final = {
    "idle_requests": "unused before it was lost, requests",
    "idle_tokens": "unused before it was lost, tokens allocated",
    "late_requests": "lost before it was wanted, requests",
    "late_tokens": "lost before it was wanted, tokens allocated",
}


def _shares_table(
    title: str, first: str, total: int, *sections: Iterable[tuple[str, int]], topic: str, causes: Iterable[Cause] = ()
) -> Table:
    """Names with tokens, and their share of all."""
    return list_table(
        title,
        {first: lambda row: row[0], "tokens": lambda row: row[1], "share": lambda row: Share(row[1], total)},
        *sections,
        topic=topic,
        definitions=[(cause.label, cause.definition) for cause in causes],
    )


def causes_table(found: Mapping[Cause, int], total: int) -> Table:
    """Prompt tokens by cause."""
    return _shares_table(
        "Every prompt token of the trace by cause",
        "cause",
        total,
        [(cause.label, number) for cause, number in found.items()],
        [("all", total)],
        topic=topics.CAUSES,
        causes=[cause for cause in CAUSES if found[cause]],
    )


def losses_table(losses: EvictionLosses, top_evictors: Iterable[tuple[RequestId, int]]) -> Table:
    """Evicted tokens by how it happened, and by the requests that cost the most."""
    kinds = sorted(losses.by_kind.items(), key=lambda item: (-item[1], item[0]))
    return _shares_table(
        "Evicted tokens: how, and by whose allocation",
        "how",
        losses.num_tokens,
        [
            (f"{kind.reason.value}, {tier_name(kind.level)} tier, for {needed_for(kind.in_decode)} blocks", number)
            for kind, number in kinds
        ],
        [(f"by request {request_id}", number) for request_id, number in top_evictors],
        topic=topics.EVICTIONS,
    )


def ages_table(losses: EvictionLosses) -> Table:
    """How long evicted tokens had been unused, and how much later they were wanted."""
    ages = losses.quantiles()
    return list_table(
        "Evicted tokens: after how long",
        {"age": lambda name: AGES[name], **{quantile: _age_at(quantile, ages) for quantile in QUANTILES}},
        ages,
        topic=topics.EVICTIONS,
    )


def _age_at(quantile: str, ages: Mapping[str, Mapping[str, int]]) -> Callable[[str], int]:
    return lambda name: ages[name][quantile]


def events_table(windows: Iterable[WindowActivity]) -> Table:
    """What a listener of cache events would have heard of."""
    return list_table(
        "Events of cached blocks",
        {
            "window, tokens": _window_name,
            "stored": lambda row: row.stored,
            "removed": lambda row: sum(row.removed.values()),
            "moved to host": lambda row: row.offloaded,
            "moved to primary": lambda row: row.onboarded,
        },
        windows,
        topic=topics.BLOCKS,
    )


def removals_table(windows: Iterable[WindowActivity]) -> Table:
    """Blocks that left the tree, by window, reason, tier and priority."""
    rows: list[tuple[WindowActivity, RemovalKind, int]] = [
        (activity, kind, number)
        for activity in windows
        for kind, number in sorted(activity.removed.items(), key=lambda item: (item[0].priority, item[0]))
    ]
    return list_table(
        "Blocks that left the tree, by priority",
        {
            "window, tokens": lambda row: _window_name(row[0]),
            "why": lambda row: row[1].reason.value,
            "tier": lambda row: tier_name(row[1].level),
            "priority": lambda row: row[1].priority,
            "blocks": lambda row: row[2],
        },
        rows,
        texts=3,
        topic=topics.BLOCKS,
    )


def _window_name(activity: WindowActivity) -> str:
    return window(activity.window_size, is_full=activity.is_full)
