"""Numbers for blocks behind their prefixes: two prompts have the same number where all before it is equal too."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtkv.traces.prefixes.symbols import BlockSymbols, prompt_tokens

if TYPE_CHECKING:
    from trtkv.traces.trace import TraceRequest


def path_ids(requests: Sequence[TraceRequest], tokens_per_block: int, *, partial: bool = True) -> list[array[int]]:
    """Block numbers of each prompt from the front, in order of first appearance.

    ``partial``: a started last block has a number too, equal only to a started block of the same tokens.
    """
    symbols = BlockSymbols(requests, prompt_tokens, tokens_per_block, partial=partial)
    numbers: dict[tuple[int, int], int] = {}
    prompts = []
    for position in range(len(requests)):
        ids = array("q")
        parent = -1
        for symbol in symbols.load(position).tolist():
            parent = numbers.setdefault((parent, symbol), len(numbers))
            ids.append(parent)
        prompts.append(ids)
    return prompts
