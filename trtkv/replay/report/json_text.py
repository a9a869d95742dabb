"""JSON text with fixed key order, in which a table takes one line a row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JsonTable:
    """Rows of equal columns; written as an object with ``columns`` and ``rows``."""

    columns: Sequence[str]
    rows: Iterable[Sequence[object]]


def json_text(document: Mapping[str, object]) -> str:
    """The document with its keys in the given order; values that are tables are written row by row."""
    parts = [f"  {json.dumps(key)}: {_value_text(value)}" for key, value in document.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _value_text(value: object) -> str:
    if not isinstance(value, JsonTable):
        return json.dumps(value, indent=2).replace("\n", "\n  ")
    rows = ",\n".join(f"      {json.dumps(list(row))}" for row in value.rows)
    body = f"[\n{rows}\n    ]" if rows else "[]"
    return f'{{\n    "columns": {json.dumps(list(value.columns))},\n    "rows": {body}\n  }}'
