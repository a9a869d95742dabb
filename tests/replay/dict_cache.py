"""An unlimited prefix cache in a few lines: what a replay must count when nothing is ever evicted.

It knows no blocks being allocated, shared or evicted, only which token strings have been stored: a dict per block when
reuse is by whole blocks, a dict per token when a block may be reused in part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtkv.traces.trace import TraceRequest


class BlockPrefixes:
    """Reuse by whole blocks: a trie of blocks."""

    def __init__(self, tokens_per_block: int) -> None:
        self._tokens_per_block = tokens_per_block
        self._root: dict[tuple[int, ...], Any] = {}

    def match(self, tokens: tuple[int, ...]) -> int:
        node, length = self._root, 0
        for block in self._full_blocks(tokens):
            if block not in node:
                break
            node = node[block]
            length += self._tokens_per_block
        return length

    def store(self, tokens: tuple[int, ...]) -> None:
        node = self._root
        for block in self._full_blocks(tokens):
            node = node.setdefault(block, {})

    def _full_blocks(self, tokens: tuple[int, ...]) -> list[tuple[int, ...]]:
        size = self._tokens_per_block
        return [tokens[start : start + size] for start in range(0, len(tokens) - size + 1, size)]


class TokenPrefixes:
    """Reuse by tokens: a trie."""

    def __init__(self, tokens_per_block: int) -> None:
        self._root: dict[int, Any] = {}

    def match(self, tokens: tuple[int, ...]) -> int:
        node = self._root
        for length, token in enumerate(tokens):
            if token not in node:
                return length
            node = node[token]
        return len(tokens)

    def store(self, tokens: tuple[int, ...]) -> None:
        node = self._root
        for token in tokens:
            node = node.setdefault(token, {})


def expected_counts(
    requests: Sequence[TraceRequest], tokens_per_block: int, live: int, partial_reuse: bool
) -> dict[str, int]:
    """Counts of a replay with an unlimited cache. The last prompt token is computed always, and never stored alone."""
    cache = (TokenPrefixes if partial_reuse else BlockPrefixes)(tokens_per_block)
    counts = {"prepopulated_tokens": 0, "reused": 0, "missed": 0, "alloc_total": 0}
    waiting, running = list(requests), []
    while waiting or running:
        admitted = waiting[: live - len(running)]
        del waiting[: len(admitted)]
        prompts = [tuple(request.tokens().tolist()) for request in admitted]
        found = [cache.match(prompt[:-1]) for prompt in prompts]  # before anything of this round is stored
        for request, prompt, length in zip(admitted, prompts, found, strict=True):
            num_reused = -(-length // tokens_per_block)
            total_length = len(prompt) + max(request.output_length, 1)
            counts["prepopulated_tokens"] += length
            counts["reused"] += num_reused
            counts["missed"] += -(-len(prompt) // tokens_per_block) - num_reused
            counts["alloc_total"] += -(-total_length // tokens_per_block) - length // tokens_per_block
            cache.store(prompt[: (len(prompt) - 1) // tokens_per_block * tokens_per_block])
            running.append([request, prompt, request.output_length])
        for entry in list(running):
            request, tokens, left = entry
            entry[1] = (*tokens, (request.index * 1000003 + left) & 0x7FFFFFFF)
            entry[2] = left - 1
            if left <= 1:
                cache.store(entry[1][:-1])
                running.remove(entry)
    return counts
