"""JSON text with fixed key order, in which a table takes one line per row."""

from __future__ import annotations

import json
from collections.abc import Mapping

_TABLE_KEYS = ("columns", "rows")


def json_text(document: object) -> str:
    """The document with its keys in the given order; a value with columns and rows alone is written row by row."""
    if not isinstance(document, Mapping):
        return json.dumps(document, indent=2) + "\n"
    parts = [f"  {json.dumps(key)}: {_value_text(value)}" for key, value in document.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _value_text(value: object) -> str:
    if not isinstance(value, Mapping) or tuple(value) != _TABLE_KEYS:
        return json.dumps(value, indent=2).replace("\n", "\n  ")
    rows = ",\n".join(f"      {json.dumps(row)}" for row in value["rows"])
    body = f"[\n{rows}\n    ]" if rows else "[]"
    return f'{{\n    "columns": {json.dumps(value["columns"])},\n    "rows": {body}\n  }}'
