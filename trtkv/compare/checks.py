"""Finds reference numbers again from the public trace files: expected beside got, the difference stated."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from trtkv.common import ceil_div
from trtkv.compare.comparison import DIFFERS, EQUAL, WITHIN, verdict_mark
from trtkv.compare.reference import ReferenceNumber, TraceSource, load_traces
from trtkv.errors import InvalidInputError
from trtkv.replay.bounds.simple_caches import ACCESS_POLICIES, SequentialRules, sequential_hits
from trtkv.tables.result import Result
from trtkv.tables.table import Table, list_table
from trtkv.tables.wording import rate, ratio, signed, signed_share
from trtkv.traces.prefixes.infinite_matches import infinite_hit_tokens, infinite_matches
from trtkv.traces.prefixes.path_ids import path_ids
from trtkv.traces.prefixes.prefix_tree import PrefixTree
from trtkv.traces.prefixes.reuse_distance import ReuseDistances, measure_reuse
from trtkv.traces.prefixes.symbols import BlockSymbols, prompt_tokens
from trtkv.traces.sessions.protocol import OLD_PROTOCOL
from trtkv.traces.trace_reader import read_trace

if TYPE_CHECKING:
    from trtkv.traces.trace import TraceRequest

RULES: Final = {
    "A": SequentialRules(),
    "A1": SequentialRules(keep_last_token=True),
    "B": SequentialRules(full_blocks_only=True, keep_last_token=True),
    "B+out": SequentialRules(full_blocks_only=True, keep_last_token=True, hold_output=True),
}


PROTOCOL_WORDS: Final = f"sessions {OLD_PROTOCOL.sessions.value}, outputs {OLD_PROTOCOL.outputs.value}"
"""Under which all reference numbers were counted."""


class Count(NamedTuple):
    """What was found: a count, or parts of a rate."""

    numerator: float
    denominator: int | None = None

    @property
    def value(self) -> float | None:
        """The rate; None for a plain count."""
        return self.numerator / self.denominator if self.denominator else None


class Check(NamedTuple):
    """A reference number and what was found."""

    number: ReferenceNumber
    got: Count
    difference: float
    """Got minus expected: of the rate where the reference is one, else of the count."""
    verdict: str

    @property
    def got_text(self) -> str:
        """What was found, in the form of the reference."""
        got = self.got
        return rate(got.value or 0.0) if self.number.is_rate_only else ratio(got.numerator, got.denominator)

    @property
    def difference_text(self) -> str:
        """The difference, in percentage points for rates."""
        return signed_share(self.difference) if self.number.is_rate_only else signed(self.difference)

    def to_json(self) -> dict[str, object]:
        """Id, expected and got, in a fixed order."""
        return {
            "id": self.number.id,
            "mark": self.number.mark,
            "source": self.number.source,
            "what": self.number.what,
            "protocol": PROTOCOL_WORDS,
            "expected": {
                "numerator": self.number.numerator,
                "denominator": self.number.denominator,
                "value": self.number.value,
            },
            "got": {**self.got._asdict(), "value": self.got.value},
            "difference": self.difference,
            "tolerance": self.number.tolerance,
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True, repr=False)
class Checks(Result):
    """Reference numbers found again."""

    checks: Sequence[Check]

    @property
    def agrees(self) -> bool:
        """Whether no number differs beyond its tolerance."""
        return all(check.verdict != DIFFERS for check in self.checks)

    def to_json(self) -> list[dict[str, object]]:
        """All of them."""
        return [check.to_json() for check in self.checks]

    def tables(self) -> list[Table]:
        """Expected beside got, and how many agree."""
        verdicts = [check.verdict for check in self.checks]
        return [
            list_table(
                "Reference numbers found again",
                {
                    "number": lambda check: check.number.id,
                    "verdict": lambda check: verdict_mark(check.verdict),
                    "expected": lambda check: check.number.text,
                    "got": lambda check: check.got_text,
                    "off by": lambda check: check.difference_text,
                    "allowed": lambda check: f"{check.number.tolerance:g}",
                },
                self.checks,
                texts=4,
                notes=[
                    ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in (EQUAL, WITHIN, DIFFERS)),
                    f"Protocol of all: {PROTOCOL_WORDS}.",
                ],
            )
        ]


class Measurements:
    """Computations over one trace; what several numbers need is computed once."""

    def __init__(self, requests: list[TraceRequest]) -> None:
        self.requests = requests

    @cached_property
    def matches(self) -> list[int]:
        """Tokens of each prompt that begin an earlier prompt."""
        return infinite_matches(self.requests, prompt_tokens)

    @cached_property
    def num_tokens(self) -> int:
        """Prompt tokens."""
        return sum(request.input_length for request in self.requests)

    def prompts(self, tokens_per_block: int) -> list[array[int]]:
        """Block numbers of each prompt."""
        if tokens_per_block not in self._prompts:
            self._prompts[tokens_per_block] = path_ids(self.requests, tokens_per_block)
        return self._prompts[tokens_per_block]

    def num_blocks(self, tokens_per_block: int) -> int:
        """Prompt blocks, started last ones included."""
        return sum(ceil_div(request.input_length, tokens_per_block) for request in self.requests)

    def reuse(self, tokens_per_block: int, partial: bool) -> tuple[ReuseDistances, list[int]]:
        """Reuse distances, and the blocks that each request finds in a cache without limit."""
        key = (tokens_per_block, partial)
        if key not in self._reuse:
            symbols = BlockSymbols(self.requests, prompt_tokens, tokens_per_block, partial=partial)
            tree = PrefixTree(symbols.load)
            found = [tree.insert(symbols.load(i)) for i in range(len(self.requests))]
            self._reuse[key] = (measure_reuse(tree, len(self.requests))[0], found)
        return self._reuse[key]

    @cached_property
    def _prompts(self) -> dict[int, list[array[int]]]:
        return {}

    @cached_property
    def _reuse(self) -> dict[tuple[int, bool], tuple[ReuseDistances, list[int]]]:
        return {}


def _infinite_tokens(trace: Measurements, tokens_per_block: int, keep_last: bool = True) -> Count:
    found = infinite_hit_tokens(trace.requests, trace.matches, tokens_per_block, keep_last=keep_last)
    return Count(found, trace.num_tokens)


def _infinite_blocks(trace: Measurements, tokens_per_block: int) -> Count:
    distances, _ = trace.reuse(tokens_per_block, partial=True)
    return Count(distances.num_reused, distances.num_touched)


def _infinite_full_of_full(trace: Measurements, tokens_per_block: int) -> Count:
    distances, _ = trace.reuse(tokens_per_block, partial=False)
    return Count(distances.num_reused, distances.num_touched)


def _infinite_capped_blocks(trace: Measurements, tokens_per_block: int) -> Count:
    found = infinite_hit_tokens(trace.requests, trace.matches, tokens_per_block) // tokens_per_block
    return Count(found, trace.num_blocks(tokens_per_block))


def _distinct_blocks(trace: Measurements, tokens_per_block: int) -> Count:
    return Count(trace.reuse(tokens_per_block, partial=True)[0].num_distinct)


def _mean_blocks(trace: Measurements, tokens_per_block: int) -> Count:
    _, found = trace.reuse(tokens_per_block, partial=True)
    lengths = (ceil_div(request.input_length, tokens_per_block) for request in trace.requests)
    return Count(fsum(part / whole for part, whole in zip(found, lengths, strict=True)), len(trace.requests))


def _zero_hit_requests(trace: Measurements) -> Count:
    return Count(sum(not match for match in trace.matches))


def _fully_seen_requests(trace: Measurements) -> Count:
    pairs = zip(trace.requests, trace.matches, strict=True)
    return Count(sum(match == request.input_length for request, match in pairs))


def _sequential(
    trace: Measurements, rule: str, capacity: int, tokens_per_block: int, limit: int | None = None
) -> Count:
    prompts = trace.prompts(tokens_per_block)[:limit]
    found = sequential_hits(trace.requests[:limit], prompts, capacity, tokens_per_block, RULES[rule])
    return Count(found.hits, found.blocks)


def _access(
    trace: Measurements, policy: str, tokens_per_block: int, capacity: int | None = None, share: float | None = None
) -> Count:
    if capacity is None:
        capacity = int(trace.reuse(tokens_per_block, partial=True)[0].num_distinct * (share or 0))
    found = ACCESS_POLICIES[policy](trace.prompts(tokens_per_block), capacity)
    return Count(found.hits, found.blocks)


def _lru(trace: Measurements, capacity_tokens: int, partial: bool, tokens_per_block: int) -> Count:
    distances, _ = trace.reuse(tokens_per_block, partial=partial)
    return Count(distances.num_hits(capacity_tokens // tokens_per_block), distances.num_touched)


METHODS: Final[dict[str, Callable[..., Count]]] = {
    "infinite_tokens": _infinite_tokens,
    "infinite_blocks": _infinite_blocks,
    "infinite_full_of_full": _infinite_full_of_full,
    "infinite_capped_blocks": _infinite_capped_blocks,
    "distinct_blocks": _distinct_blocks,
    "mean_blocks": _mean_blocks,
    "zero_hit_requests": _zero_hit_requests,
    "fully_seen_requests": _fully_seen_requests,
    "sequential": _sequential,
    "access": _access,
    "lru": _lru,
}


def check_number(number: ReferenceNumber, trace: Measurements) -> Check:
    """Find a number again. Raises InvalidInputError if it has no method."""
    if number.method not in METHODS:
        raise InvalidInputError(f"{number.id} cannot be found again here: {number.what}")
    got = METHODS[number.method](trace, **number.args)
    return Check(number, got, *_judge(number, got))


def _judge(number: ReferenceNumber, got: Count) -> tuple[float, str]:
    if number.numerator is not None and not number.tolerance:
        difference = got.numerator - number.numerator
        same_whole = number.denominator is None or number.denominator == got.denominator
        return difference, EQUAL if not difference and same_whole else DIFFERS
    difference = (got.value or 0.0) - (number.value or 0.0)
    if abs(difference) > number.tolerance:
        return difference, DIFFERS
    # A rate known to a few digits is equal if it rounds to the same.
    return difference, EQUAL if number.tolerance < ROUNDING else WITHIN


ROUNDING: Final = 1e-4
"""Tolerances below this are those of rounding to four digits or more."""


def find_traces(folder: Path) -> dict[str, Path]:
    """Public traces in a folder and below, told by file name and checksum: name -> path.

    Raises InvalidInputError for a file of such a name with other content, and if there is none at all.
    """
    if not folder.is_dir():
        raise InvalidInputError(f"{folder} is not a folder")
    known = {source.file: source for source in load_traces().values()}
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        source = known.get(path.name)
        if source is None or source.name in found:
            continue
        _check_content(path, source)
        found[source.name] = path
    if not found:
        raise InvalidInputError(f"no public trace of the references lies in {folder}: {', '.join(sorted(known))}")
    return found


def _check_content(path: Path, source: TraceSource) -> None:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != source.sha256:
        raise InvalidInputError(
            f"{path} is not the file that the references were counted on: sha256 {digest[:16]}..., "
            f"expected {source.sha256[:16]}... ({source.origin})"
        )


def check_numbers(numbers: Iterable[ReferenceNumber], traces: dict[str, Path]) -> Iterator[Check]:
    """Checks of all numbers that can be found again on the traces at hand, one at a time."""
    sources = load_traces()

    @cache
    def measurements(name: str) -> Measurements:
        source = sources[name]
        block_size = source.block_size if source.format == "mooncake" else None
        return Measurements(
            list(
                read_trace(
                    traces[name], format_name=source.format, block_size=block_size, **OLD_PROTOCOL.options
                ).requests
            )
        )

    for number in numbers:
        if number.method and number.trace in traces:
            yield check_number(number, measurements(number.trace))
