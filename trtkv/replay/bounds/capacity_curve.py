"""CapacityCurve: how the hit rate of a trace depends on the size of the cache.

Three curves over one axis. The least-recently-used model is exact for all capacities in one pass, but it is a model:
one request at a time, whole blocks, prompts only. What the manager does at a capacity under the settings of the run,
and what a clairvoyant cache could, take a run for each capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from trtkv.checks import check_count
from trtkv.replay import topics
from trtkv.replay.bounds.bounds import found_units
from trtkv.tables.result import Result
from trtkv.tables.table import Share, Table, list_table
from trtkv.traces.prefixes.prefix_tree import PrefixTree
from trtkv.traces.prefixes.reuse_distance import ReuseDistances, measure_reuse
from trtkv.traces.prefixes.symbols import BlockSymbols, prompt_tokens

if TYPE_CHECKING:
    from trtkv.traces.trace import TraceRequest

LRU_MODEL_RATE: Final = (
    "prompt tokens in full blocks of {0} tokens found by a least-recently-used cache of this size that serves one "
    "request at a time and keeps prompts only, never the last token / prompt tokens of all requests"
)
NUM_MODEL_POINTS: Final = 48


class CurvePoint(NamedTuple):
    """One capacity, run."""

    capacity_tokens: int
    requests: int
    skipped_requests: int
    prompt_tokens: int
    """Of the requests run."""
    found_tokens: int
    """By the manager."""
    clairvoyant_tokens: int | None
    """At best; None without a full-attention window."""

    def to_json(self) -> dict[str, object]:
        """The fields in their order, then the rate."""
        rate = self.found_tokens / self.prompt_tokens if self.prompt_tokens else None
        return {**self._asdict(), "token_hit_rate": rate}


class ModelPoint(NamedTuple):
    """One capacity of the least-recently-used model."""

    capacity_tokens: int
    found_tokens: int


@dataclass(frozen=True, slots=True, repr=False)
class CapacityCurve(Result):
    """Points in ascending order of capacity."""

    tokens_per_block: int
    prompt_tokens: int
    """Of all requests; the model never skips one."""
    model: tuple[ModelPoint, ...]
    measured: tuple[CurvePoint, ...]
    run: CurvePoint | None = None
    """The run that the curve is about; also among ``measured`` unless there are none."""

    @property
    def model_definition(self) -> str:
        """What a point of the model says."""
        return LRU_MODEL_RATE.format(self.tokens_per_block)

    def tables(self) -> list[Table]:
        """The runs; the model has too many points for a table."""
        if not self.measured:
            return []
        return [
            list_table(
                "Token hit rate by capacity",
                {
                    "capacity, tokens": lambda point: point.capacity_tokens,
                    "measured": lambda point: Share(point.found_tokens, point.prompt_tokens),
                    "clairvoyant": lambda point: (
                        None
                        if point.clairvoyant_tokens is None
                        else Share(point.clairvoyant_tokens, point.prompt_tokens)
                    ),
                    "requests never run": lambda point: point.skipped_requests,
                },
                self.measured,
                texts=0,
                topic=topics.CURVE,
            )
        ]

    def to_json(self) -> dict[str, object]:
        """Definition, then both curves."""
        return {
            "lru_model": {
                "definition": self.model_definition,
                "prompt_tokens": self.prompt_tokens,
                "points": [point._asdict() for point in self.model],
            },
            "measured": [point.to_json() for point in self.measured],
        }


def prompt_reuse_distances(requests: Sequence[TraceRequest], tokens_per_block: int) -> ReuseDistances:
    """Reuse distances of the full blocks that a prompt may find, all but the one with its last token, in blocks."""
    symbols = BlockSymbols(requests, prompt_tokens, tokens_per_block)
    tree = PrefixTree(symbols.load)
    for position in range(len(requests)):
        tree.insert(symbols.load(position))
    findable = [found_units(request, tokens_per_block) for request in requests]
    distances, _ = measure_reuse(tree, len(requests), num_findable=findable)
    return distances


def model_curve(
    requests: Sequence[TraceRequest], tokens_per_block: int, *, num_points: int = NUM_MODEL_POINTS
) -> CapacityCurve:
    """The model's curve alone, from one pass; its last capacity is that of all different blocks."""
    check_count("tokens_per_block", tokens_per_block, 1)
    check_count("num_points", num_points, 1)
    distances = prompt_reuse_distances(requests, tokens_per_block)
    sizes = spread(1, max(distances.num_distinct, 1), num_points)
    return CapacityCurve(
        tokens_per_block=tokens_per_block,
        prompt_tokens=sum(request.input_length for request in requests),
        model=tuple(ModelPoint(size * tokens_per_block, distances.num_hits(size) * tokens_per_block) for size in sizes),
        measured=(),
    )


def spread(first: int, last: int, count: int) -> list[int]:
    """Different whole numbers from first to last, in equal ratios as far as rounding allows."""
    if count == 1 or first == last:
        return [last]
    ratio = last / first
    return sorted({round(first * ratio ** (step / (count - 1))) for step in range(count)})
