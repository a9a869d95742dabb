"""Reference numbers and recorded runs that come with the package, each with its source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.resources import files
from typing import Any, Final, NamedTuple

from trtkv.errors import UnknownIdError
from trtkv.tables.wording import rate, ratio

NUMBERS_FILE: Final = "reference_numbers.json"
RUNS_FILE: Final = "original_runs.json"
RUN_PREFIX: Final = "tensorrt-llm"


class TraceSource(NamedTuple):
    """A public trace that numbers were counted on."""

    name: str
    file: str
    sha256: str
    format: str
    block_size: int | None
    origin: str
    licence: str


class ReferenceNumber(NamedTuple):
    """One published number, and how to find it again."""

    id: str
    trace: str
    source: str
    """Who says so."""
    mark: str
    """``computed`` (counted independently), ``primary source`` or ``secondary source``."""
    what: str
    """Its definition in words."""
    method: str
    """Name of the computation in trtkv.compare.checks; empty: it cannot be repeated here."""
    args: dict[str, Any]
    numerator: int | None
    denominator: int | None
    rate: float | None
    """Given where only a rounded rate is known."""
    tolerance: float
    """Largest difference of the rate that still counts as agreement; 0: integers have to be equal."""

    @property
    def is_rate_only(self) -> bool:
        """Whether no counts are known."""
        return self.numerator is None

    @property
    def text(self) -> str:
        """As people read it: both counts where they are known."""
        return rate(self.value or 0.0) if self.numerator is None else ratio(self.numerator, self.denominator)

    @property
    def value(self) -> float | None:
        """The rate; None for a plain count."""
        if self.rate is not None:
            return self.rate
        return None if self.numerator is None or not self.denominator else self.numerator / self.denominator


def load_traces() -> dict[str, TraceSource]:
    """Public traces by name."""
    return {name: TraceSource(name, **fields) for name, fields in _read(NUMBERS_FILE)["traces"].items()}


def load_numbers() -> list[ReferenceNumber]:
    """All reference numbers, in the order of the file."""
    data = _read(NUMBERS_FILE)
    return [number for series in data["series"] for number in _expand(series, data["sources"])]


def find_number(number_id: str) -> ReferenceNumber:
    """The number of that id. Raises UnknownIdError, naming similar ids."""
    numbers = {number.id: number for number in load_numbers()}
    if number_id not in numbers:
        raise UnknownIdError(unknown_id_text(number_id, numbers))
    return numbers[number_id]


def load_runs() -> dict[str, dict[str, Any]]:
    """Recorded runs of the original manager under the closed loop: id -> columns."""
    data = _read(RUNS_FILE)
    runs = (dict(zip(data["columns"], row, strict=True)) for row in data["rows"])
    return {run_id(run): run for run in runs}


def runs_source() -> str:
    """Where the recorded runs come from."""
    return str(_read(RUNS_FILE)["source"])


def run_id(run: dict[str, Any]) -> str:
    """``tensorrt-llm/<trace>/block<n>/<capacity>+<host>/live<n>`` and what differs from the usual settings."""
    parts = [
        RUN_PREFIX,
        str(run["trace"]),
        f"block{run['tokens_per_block']}",
        f"{run['capacity_tokens']}+{run['host_tokens']}",
        f"live{run['live']}",
    ]
    if run["window"] is not None:
        parts.append(f"window{run['window']}" + ("+full" if run["full_attention_too"] else ""))
    if not run["partial_reuse"]:
        parts.append("no-partial-reuse")
    return "/".join(parts)


def unknown_id_text(wanted: str, known: Any) -> str:
    """What to say about an id that does not exist."""
    similar = get_close_matches(wanted, known, n=3, cutoff=0.5)
    hint = f"; similar: {', '.join(similar)}" if similar else ""
    return f"no bundled reference is called {wanted!r}{hint} (trtkv reference list shows all)"


def _expand(series: dict[str, Any], sources: dict[str, str]) -> Iterator[ReferenceNumber]:
    for point in series["points"]:
        at = point.get("at", {})
        name = "/".join([series["id"], *(f"{key.replace('_', '-')}={value}" for key, value in at.items())])
        yield ReferenceNumber(
            id=name,
            trace=series["trace"],
            source=sources[series["source"]],
            mark=series["mark"],
            what=series["what"],
            method=series["method"],
            args={**series["args"], **at},
            numerator=point.get("numerator"),
            denominator=point.get("denominator"),
            rate=point.get("value"),
            tolerance=series["tolerance"],
        )


def _read(name: str) -> dict[str, Any]:
    text = (files("trtkv.compare") / "data" / name).read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data
