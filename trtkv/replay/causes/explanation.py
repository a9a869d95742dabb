"""Explanation: all prompt tokens of a replay by cause, with what is known of evictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from trtkv.common import RequestId
from trtkv.errors import check
from trtkv.replay.causes.cause_tables import ages_table, causes_table, events_table, losses_table, removals_table
from trtkv.replay.causes.causes import CAUSES, Cause, needed_for, tier_name
from trtkv.replay.causes.window_activity import WindowActivity, window_activity
from trtkv.tables.result import Result
from trtkv.tables.table import Column, Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trtkv.replay.causes.cause_counts import EvictionLosses, WindowUse
    from trtkv.replay.causes.cause_observer import CauseObserver
    from trtkv.traces.trace import TraceRequest

NUM_EVICTORS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Result):
    """Causes of a finished replay. Equal runs give equal explanations."""

    request_ids: Sequence[RequestId]
    """All requests of the trace, those never run included."""
    table: NDArray[Any]
    """Prompt tokens, int64, shape [requests, causes], columns as in CAUSES."""
    losses: EvictionLosses
    same_batch_tokens: int
    """Of the tokens not stored yet, those that only requests admitted together had computed."""
    uses: Sequence[tuple[int, tuple[WindowUse, ...]]]
    """(requests admitted, use of each window, the widest first) behind each admission."""
    windows: Sequence[WindowActivity]
    """The widest first."""

    @property
    def tokens(self) -> dict[Cause, int]:
        """Prompt tokens by cause; together all prompt tokens of the trace."""
        return dict(zip(CAUSES, self.table.sum(axis=0).tolist(), strict=True))

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of the trace."""
        return int(self.table.sum())

    def top_evictors(self, count: int = NUM_EVICTORS_SHOWN) -> list[tuple[RequestId, int]]:
        """Requests whose allocations cost the most prompt tokens, with that number."""
        return sorted(self.losses.by_request.items(), key=lambda item: (-item[1], item[0]))[:count]

    def to_json(self) -> dict[str, object]:
        """Tokens by cause with definitions, details of evictions, activity of windows; in a fixed order."""
        tokens, total = self.tokens, self.prompt_tokens
        return {
            "prompt_tokens": total,
            "causes": [
                {
                    "cause": cause.value,
                    "definition": cause.definition,
                    "tokens": tokens[cause],
                    "share": tokens[cause] / total if total else None,
                }
                for cause in CAUSES
            ],
            "not_stored_same_batch_tokens": self.same_batch_tokens,
            "evictions": {
                "tokens": self.losses.num_tokens,
                "by_kind": [
                    {
                        "reason": kind.reason.value,
                        "tier": tier_name(kind.level),
                        "needed_for": needed_for(kind.in_decode),
                        "tokens": count,
                    }
                    for kind, count in sorted(self.losses.by_kind.items(), key=lambda item: (-item[1], item[0]))
                ],
                "ages": self.losses.quantiles(),
                "top_evictors": [{"request": request_id, "tokens": count} for request_id, count in self.top_evictors()],
            },
            "windows": [window.to_json() for window in self.windows],
        }

    def tables(self) -> list[Table]:
        """Causes, evictions if there are any, and what happened to cached blocks."""
        tables = [causes_table(self.tokens, self.prompt_tokens)]
        if self.losses.num_tokens:
            tables += [losses_table(self.losses, self.top_evictors()), ages_table(self.losses)]
        return [*tables, events_table(self.windows), removals_table(self.windows)]

    def requests_table(self) -> Table:
        """A row for each request of the trace: its number, its prompt tokens, and tokens by cause."""
        columns = tuple(map(Column, ("request", "prompt_tokens", *(cause.value for cause in CAUSES))))
        rows = zip(self.request_ids, self.table.tolist(), strict=True)
        return Table("Causes of each request", columns, (tuple([number, sum(row), *row] for number, row in rows),))


def explain(observer: CauseObserver, requests: Sequence[TraceRequest]) -> Explanation:
    """What an observer has seen of a replay of these requests."""
    counts = observer.counts
    ids = [request.index for request in requests]
    lengths = [request.input_length for request in requests]
    table = counts.table(ids, lengths)
    check(table.sum(axis=1).tolist() == lengths, "the causes of a request do not sum to its prompt")
    return Explanation(
        request_ids=ids,
        table=table,
        losses=counts.losses,
        same_batch_tokens=counts.same_batch_tokens,
        uses=counts.uses,
        windows=[window_activity(window) for window in observer.windows],
    )
