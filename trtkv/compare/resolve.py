"""What the second argument of ``trtkv compare`` names: a file, a bundled id, or everything bundled that fits."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from trtkv.compare.comparison import Comparison, NotComparableError, compare_facts
from trtkv.compare.facts import Facts, facts_of, load_facts
from trtkv.compare.number_facts import fits, number_facts
from trtkv.compare.reference import (
    ReferenceNumber,
    load_numbers,
    load_runs,
    runs_source,
    unknown_id_text,
)
from trtkv.errors import UnknownIdError

BUNDLED: Final = "bundled"


def compare_with(
    result: Facts,
    reference: str,
    *,
    tolerance: float = 0.0,
    only: Collection[str] = (),
    ignore_settings: bool = False,
) -> list[Comparison]:
    """Compare a result with a file, a bundled reference, or (``bundled``) with all bundled ones that fit it.

    Raises NotComparableError where the two sides are about different things, UnknownIdError for an id that is neither
    a file nor bundled.
    """
    compare = partial(compare_facts, result, only=only, ignore_settings=ignore_settings)
    if Path(reference).is_file():
        other = load_facts(Path(reference))
        return [compare(other, source=f"file {reference}", tolerance=tolerance)]
    if reference == BUNDLED:
        found = [
            compare(facts, source=source, tolerance=max(tolerance, own)) for facts, source, own in _fitting(result)
        ]
        if not found:
            raise NotComparableError(f"no bundled reference fits {result.label} with {_shown(result)}")
        return found
    facts, source, own = _bundled(result, reference)
    return [compare(facts, source=source, tolerance=max(tolerance, own))]


def _bundled(result: Facts, reference: str) -> tuple[Facts, str, float]:
    runs = load_runs()
    if reference in runs:
        return facts_of(runs[reference], reference), runs_source(), 0.0
    numbers = {number.id: number for number in load_numbers()}
    if reference not in numbers:
        raise UnknownIdError(unknown_id_text(reference, [*numbers, *runs]) + "; it is not a file either")
    return _of_number(numbers[reference], result)


def _fitting(result: Facts) -> Iterator[tuple[Facts, str, float]]:
    for name, run in load_runs().items():
        facts = facts_of(run, name)
        if _same_kind(result, facts) and all(result.settings.get(key) == want for key, want in facts.settings.items()):
            yield facts, runs_source(), 0.0
    for number in load_numbers():
        if fits(number, result):
            yield _of_number(number, result)


def _same_kind(result: Facts, run: Facts) -> bool:
    """Whether blocks are counted alike, so that a run of the other system is not taken for a reference."""
    ours, theirs = result.facts.get("reused"), run.facts["reused"]
    return ours is not None and ours.definition == theirs.definition


def _of_number(number: ReferenceNumber, result: Facts) -> tuple[Facts, str, float]:
    return number_facts(number, result), f"{number.source} [{number.mark}]", number.tolerance


def _shown(result: Facts) -> str:
    return ", ".join(f"{key} {value}" for key, value in result.settings.items()) or "no settings"
