"""Runs files of small worked cases and compares each with the outcome it states.

A file is a JSON list; what a case is about can be told by its keys. FORMS holds one function a kind of case.

Run: ``python tools/check_cases.py FILE...``; prints how many outcomes of each file are equal, and the first
differences; exit code 1 if one differs, 2 if a file cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from trtkv.errors import TrtkvError
from trtkv.fleet.fleet_case import run_decision_case, run_fleet_case
from trtkv.replay.lab.policy_case import run_policy_case

MAX_SHOWN: Final = 10


class Outcome(NamedTuple):
    """One stated outcome beside the one found."""

    name: str
    expected: object
    found: object


class Form(NamedTuple):
    """One kind of case."""

    name: str
    keys: frozenset[str]
    """Keys that only such a case has, all of them."""
    run: Callable[[dict[str, Any]], Iterator[tuple[str, object, object]]]
    """(name, expected, found) of every outcome that a case states."""


FORMS: Final = (
    Form("policies", frozenset({"capacity_blocks", "policies"}), run_policy_case),
    Form("fleet", frozenset({"replicas", "routers"}), run_fleet_case),
    Form("decisions", frozenset({"replicas", "scores"}), run_decision_case),
)


def find_form(case: object) -> Form:
    """The form of a case; raises ValueError if no form has its keys."""
    if isinstance(case, dict):
        for form in FORMS:
            if form.keys <= case.keys():
                return form
        raise ValueError(f"a case with the keys {', '.join(sorted(case))} is of no form known here")
    raise ValueError(f"a case is a JSON object, not {type(case).__name__}")


def check_file(path: Path) -> list[Outcome]:
    """All outcomes of a file."""
    cases = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(cases, list):
        raise ValueError("a file of cases is a JSON list")
    return [
        Outcome(f"{case.get('name', 'unnamed')}: {name}", expected, found)
        for case in cases
        for name, expected, found in find_form(case).run(case)
    ]


def main(arguments: Sequence[str]) -> int:
    """Check the files; 0 if all outcomes are equal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    all_equal = True
    for path in parser.parse_args(arguments).files:
        try:
            outcomes = check_file(path)
        except (OSError, ValueError, KeyError, TypeError, TrtkvError) as error:
            print(f"error: {path}: {error}", file=sys.stderr)
            return 2
        different = [outcome for outcome in outcomes if outcome.expected != outcome.found]
        all_equal &= bool(outcomes) and not different
        print(f"{path}: {len(outcomes) - len(different)} of {len(outcomes)} outcomes equal")
        for outcome in different[:MAX_SHOWN]:
            print(f"  {outcome.name}\n    expected {outcome.expected}\n    found    {outcome.found}")
    return 0 if all_equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
