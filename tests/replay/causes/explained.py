"""Small replays with causes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.replay.trace_builders import token_request
from trtkv.replay.causes.causes import CAUSES
from trtkv.replay.closed_loop.result import ReplayResult
from trtkv.replay.closed_loop.run import replay_trace
from trtkv.replay.config import ReplayConfig
from trtkv.traces.trace import RequestTrace, TraceRequest

BLOCK = 4


def explained(requests: Sequence[TraceRequest], **settings: Any) -> ReplayResult:
    """A replay with blocks of 4 tokens; ``blocks`` is the capacity in blocks."""
    blocks = settings.pop("blocks", None)
    settings = {"tokens_per_block": BLOCK, **settings}
    capacity = None if blocks is None else blocks * settings["tokens_per_block"]
    config = ReplayConfig(**{"capacity_tokens": capacity, **settings})
    result, _ = replay_trace(RequestTrace("t", "tokens", None, list(requests)), config, explain=True)
    return result


def rows(result: ReplayResult) -> list[dict[str, int]]:
    """Tokens by cause of each request, zeros left out."""
    assert result.explanation is not None
    return [
        {cause.value: number for cause, number in zip(CAUSES, row, strict=True) if number}
        for row in result.explanation.table.tolist()
    ]


def trace_of(*prompts: Sequence[int], output: int = 1) -> list[TraceRequest]:
    """Requests of these prompts that all generate as much."""
    return [token_request(index, prompt, output) for index, prompt in enumerate(prompts)]
