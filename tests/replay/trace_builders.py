"""Small traces for tests, made in memory."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

from trtkv.traces.trace import TokenIds, TraceRequest


def token_request(index: int, tokens: Sequence[int], output_length: int = 0, timestamp: float = 0.0) -> TraceRequest:
    return TraceRequest(index, timestamp, len(tokens), output_length, TokenIds(array("i", tokens)))


def random_requests(
    rng: random.Random, num_requests: int, *, max_length: int = 40, max_output: int = 6, alphabet: int = 3
) -> list[TraceRequest]:
    """Prompts that often continue a prefix of an earlier one."""
    prompts: list[list[int]] = []
    for _ in range(num_requests):
        start: list[int] = []
        if prompts and rng.random() < 0.75:
            source = rng.choice(prompts)
            start = source[: rng.randint(1, len(source))]
        length = rng.randint(0 if start else 1, max_length)
        prompts.append((start + [rng.randrange(alphabet) for _ in range(length)])[:max_length])
    return [token_request(i, prompt, rng.randint(0, max_output)) for i, prompt in enumerate(prompts)]
