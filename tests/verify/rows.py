"""Lines of small recorded programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "tokens_per_block": 4,
    "num_kv_heads_per_layer": [1],
    "blocks_per_window": [[16, 4, 0]],
    "max_attention_window_vec": [16],
    "max_sequence_length": 16,
}
HEADER: dict[str, Any] = {"format": "trtkv.ops", "version": 1, "group": "g", "seed": 7, "config": CONFIG}
BUBBLE: dict[str, Any] = {
    "op": "get_sink_bubble_length",
    "args": {"sink_token_length": 5, "tokens_per_block": 4},
    "ret": 3,
}


def write_lines(path: Path, *rows: object) -> Path:
    """Write rows as lines of JSON; a string is written as it is."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path
