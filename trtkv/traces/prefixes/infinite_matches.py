"""What a cache without limit would find of each prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trtkv.traces.prefixes.prefix_tree import PrefixTree
from trtkv.traces.prefixes.symbols import TokenString, TokenSymbols, stored_tokens

if TYPE_CHECKING:
    from trtkv.traces.trace import TraceRequest


def infinite_matches(requests: Sequence[TraceRequest], tokens: TokenString = stored_tokens) -> list[int]:
    """For each request, the tokens its prompt has in common with the best earlier prompt and output, up to all of it.

    A cache without limit finds min(match, prompt - 1) tokens, rounded down to full blocks where only those count.
    ``tokens`` says what an earlier request has left; prompt_tokens leaves outputs out.
    """
    symbols = TokenSymbols(requests, tokens)
    tree = PrefixTree(symbols.load)
    return [min(tree.insert(symbols.load(i)), request.input_length) for i, request in enumerate(requests)]


def infinite_hit_tokens(
    requests: Sequence[TraceRequest], matches: Iterable[int], tokens_per_block: int, *, keep_last: bool = True
) -> int:
    """Tokens found in full blocks, given infinite_matches. ``keep_last``: the last prompt token is always computed."""
    pairs = zip(requests, matches, strict=True)
    return sum(
        min(match, request.input_length - keep_last) // tokens_per_block * tokens_per_block for request, match in pairs
    )
