"""compare_facts: two results side by side; definitions and settings have to agree first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from trtkv.compare.facts import PROTOCOL, Fact, Facts
from trtkv.errors import InvalidInputError
from trtkv.tables.result import Result
from trtkv.tables.table import Mark, Table, list_table
from trtkv.tables.wording import signed, signed_share

EQUAL: Final = "equal"
WITHIN: Final = "within tolerance"
DIFFERS: Final = "differs"


class NotComparableError(InvalidInputError):
    """The two sides do not measure the same thing; the text says what differs."""


class Line(NamedTuple):
    """One number on both sides."""

    name: str
    definition: str
    result: Fact
    reference: Fact
    difference: float
    """Result minus reference: of rates, or of counts."""
    tolerance: float
    verdict: str

    @property
    def difference_text(self) -> str:
        """The difference, in percentage points for rates."""
        return signed_share(self.difference) if self.reference.is_rate else signed(self.difference)

    def to_json(self) -> dict[str, object]:
        """Both sides in a fixed order."""
        return {
            "name": self.name,
            "definition": self.definition,
            "result": _side(self.result),
            "reference": _side(self.reference),
            "difference": self.difference,
            "tolerance": self.tolerance,
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Result):
    """All numbers that both sides have."""

    result: str
    reference: str
    source: str
    """Where the reference comes from."""
    settings: dict[str, object]
    """Those that both sides name."""
    unchecked_settings: list[str]
    """Those that only one side names."""
    lines: list[Line]

    def tables(self) -> list[Table]:
        """Both sides of each number."""
        notes = [self.source] if self.source else []
        if PROTOCOL in self.settings:
            notes.append(f"Protocol of both: {self.settings[PROTOCOL]}.")
        if self.unchecked_settings:
            notes.append(f"Known on one side only, not checked: {', '.join(self.unchecked_settings)}.")
        return [
            list_table(
                f"{self.result} beside {self.reference}",
                {
                    "number": lambda line: line.name,
                    "verdict": lambda line: verdict_mark(line.verdict),
                    "result": lambda line: line.result.text,
                    "reference": lambda line: line.reference.text,
                    "difference": lambda line: line.difference_text,
                    "tolerance": lambda line: f"{line.tolerance:g}",
                },
                self.lines,
                texts=4,
                notes=notes,
            )
        ]

    @property
    def agrees(self) -> bool:
        """Whether no number differs beyond its tolerance."""
        return all(line.verdict != DIFFERS for line in self.lines)

    def to_json(self) -> dict[str, object]:
        """Everything, in a fixed order."""
        return {
            "result": self.result,
            "reference": self.reference,
            "source": self.source,
            "settings": self.settings,
            "unchecked_settings": self.unchecked_settings,
            "agrees": self.agrees,
            "lines": [line.to_json() for line in self.lines],
        }


@dataclass(frozen=True, slots=True, repr=False)
class Comparisons(Result):
    """A result beside several references."""

    comparisons: Sequence[Comparison]

    @property
    def agrees(self) -> bool:
        """Whether all of them agree."""
        return all(comparison.agrees for comparison in self.comparisons)

    def to_json(self) -> list[dict[str, object]]:
        """All of them."""
        return [comparison.to_json() for comparison in self.comparisons]

    def tables(self) -> list[Table]:
        """A table for each reference."""
        return [table for comparison in self.comparisons for table in comparison.tables()]


def verdict_mark(verdict: str) -> Mark:
    """A verdict as good or bad news."""
    return Mark(verdict, "good" if verdict == EQUAL else "bad" if verdict == DIFFERS else "warning")


def compare_facts(
    result: Facts,
    reference: Facts,
    *,
    source: str = "",
    tolerance: float = 0.0,
    only: Collection[str] = (),
    ignore_settings: bool = False,
) -> Comparison:
    """Compare the numbers that both sides have, or ``only`` those named.

    ``tolerance``: largest difference of a rate, and of a count as a share of the reference; 0 asks for equality.
    Raises NotComparableError if settings or definitions contradict each other, or nothing is common.
    """
    if not tolerance >= 0:
        raise InvalidInputError(f"tolerance is {tolerance}; give 0 or more")
    if not ignore_settings:
        _check_settings(result, reference)
    names = _common_names(result, reference, only)
    _check_definitions(result, reference, names)
    common = [key for key in result.settings if key in reference.settings]
    return Comparison(
        result=result.label,
        reference=reference.label,
        source=source,
        settings={key: result.settings[key] for key in common if result.settings[key] == reference.settings[key]},
        unchecked_settings=sorted(set(result.settings) ^ set(reference.settings)),
        lines=[_line(result.facts[name], reference.facts[name], tolerance) for name in names],
    )


def _check_settings(result: Facts, reference: Facts) -> None:
    other = [
        f"{key} {result.settings[key]} against {wanted}"
        for key, wanted in reference.settings.items()
        if key in result.settings and result.settings[key] != wanted
    ]
    if other:
        raise NotComparableError(
            f"{result.label} and {reference.label} were found under other settings: {'; '.join(other)} "
            "(--ignore-settings compares them all the same)"
        )


def _common_names(result: Facts, reference: Facts, only: Collection[str]) -> list[str]:
    names = [name for name in reference.facts if name in result.facts and (not only or name in only)]
    missing = [name for name in only if name not in names]
    if missing:
        raise NotComparableError(f"not on both sides: {', '.join(missing)}; {_what_there_is(result, reference)}")
    if not names:
        raise NotComparableError(f"nothing is on both sides: {_what_there_is(result, reference)}")
    return names


def _check_definitions(result: Facts, reference: Facts, names: Sequence[str]) -> None:
    other = [name for name in names if result.facts[name].definition != reference.facts[name].definition]
    if other:
        texts = (
            f'{name} is "{result.facts[name].definition}" in {result.label} and '
            f'"{reference.facts[name].definition}" in {reference.label}'
            for name in other
        )
        raise NotComparableError(f"definitions differ: {'; '.join(texts)} (--only NAME compares the others)")


def _what_there_is(result: Facts, reference: Facts) -> str:
    return f"{result.label} has {', '.join(result.facts)}; {reference.label} has {', '.join(reference.facts)}"


def _line(result: Fact, reference: Fact, tolerance: float) -> Line:
    difference = result.value - reference.value
    allowed = tolerance if reference.is_rate else tolerance * abs(reference.value)
    same = (result.numerator, result.denominator) == (reference.numerator, reference.denominator)
    verdict = EQUAL if same else WITHIN if tolerance and abs(difference) <= allowed else DIFFERS
    return Line(reference.name, reference.definition, result, reference, difference, allowed, verdict)


def _side(fact: Fact) -> dict[str, object]:
    return {"numerator": fact.numerator, "denominator": fact.denominator, "value": fact.value}
