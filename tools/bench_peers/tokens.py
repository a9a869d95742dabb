"""Token ids of the benchmark's requests, int32."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

HASH_BLOCK = 512
"""Tokens that one hash id of a Mooncake trace stands for."""

_FIRST_UNIQUE = 1 << 30


class Row(NamedTuple):
    """One request of a trace."""

    input_length: int
    output_length: int
    hash_ids: list[int]

    def prompt(self) -> NDArray[np.int32]:
        """Token j of the block named h is 512 * h + j."""
        starts = np.asarray(self.hash_ids, dtype=np.int32) * np.int32(HASH_BLOCK)
        tokens = starts[:, None] + np.arange(HASH_BLOCK, dtype=np.int32)
        return np.ascontiguousarray(tokens.reshape(-1)[: self.input_length])


def read_rows(path: Path, count: int | None) -> list[Row]:
    """The first rows of a Mooncake trace; None: all. Raises ValueError with file and line for anything else."""
    rows = []
    with path.open(encoding="utf-8") as stream:
        for line_number, line in enumerate(islice(stream, count), 1):
            try:
                row = json.loads(line)
                rows.append(Row(row["input_length"], row["output_length"], row["hash_ids"]))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}:{line_number}: no Mooncake row ({type(error).__name__}: {error})") from None
    return rows


def generated(request_id: int, count: int) -> list[int]:
    """What a request generates: unlike any prompt of a trace."""
    start = _FIRST_UNIQUE + request_id * 8191 % _FIRST_UNIQUE
    return [start + index & 0x7FFFFFFF for index in range(count)]


def unique(number: int, count: int) -> NDArray[np.int32]:
    """A prompt that shares no block with that of another number (as long as number * count stays below 2**30)."""
    return np.arange(number * count, (number + 1) * count, dtype=np.int32)
