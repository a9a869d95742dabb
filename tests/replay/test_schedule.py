"""The events of the closed loop are those that the loop over a manager goes through."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.replay.trace_builders import random_requests, token_request
from trtkv.errors import InvalidInputError
from trtkv.records.llm_request import LlmRequest
from trtkv.replay.closed_loop.closed_loop import ClosedLoop
from trtkv.replay.schedule import (
    Admit,
    Decode,
    Release,
    Skip,
    closed_loop_events,
    num_needed_blocks,
    num_pool_blocks,
)
from trtkv.traces.trace import TraceRequest
from trtkv.traces.trace_reader import read_trace


class RecordingManager:
    """Writes down what the loop asks for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []

    def add_sequence_batch(self, request_infos: Sequence[tuple[int, int, int]], requests: Sequence[LlmRequest]) -> None:
        self.calls.append(("admit", [info[0] for info in request_infos]))

    def store_context_blocks(self, request: LlmRequest) -> None:
        pass

    def add_token_rounds(self, request_ids: Sequence[int], num_rounds: int) -> None:
        self.calls.append(("decode", list(request_ids) * num_rounds))

    def remove_sequence(self, request_id: int, request: LlmRequest) -> None:
        self.calls.append(("release", [request_id]))


def calls_of_the_loop(requests: list[TraceRequest], num_blocks: int, live: int) -> list[tuple[str, list[int]]]:
    manager = RecordingManager()
    loop = ClosedLoop(
        manager,
        tokens_per_block=4,
        num_primary_blocks=num_blocks,
        live=live,
        num_needed_blocks=lambda request: num_needed_blocks(request, 4),
    )
    loop.run(requests)
    return manager.calls


def calls_of_the_events(requests: list[TraceRequest], num_blocks: int, live: int) -> list[tuple[str, list[int]]]:
    calls: list[tuple[str, list[int]]] = []
    running: list[int] = []
    for event in closed_loop_events(requests, tokens_per_block=4, num_blocks=num_blocks, live=live):
        if isinstance(event, Admit):
            running += [request.index for request in event.requests]
            calls.append(("admit", [request.index for request in event.requests]))
        elif isinstance(event, Decode):
            calls.append(("decode", running * event.num_rounds))
        elif isinstance(event, Release):
            for request in event.requests:
                running.remove(request.index)
                calls.append(("release", [request.index]))
    return calls


@pytest.mark.parametrize("seed", range(30))
def test_events_are_the_calls_of_the_loop(seed: int) -> None:
    rng = random.Random(seed)
    requests = random_requests(rng, 30)
    num_blocks, live = rng.randint(4, 40), rng.randint(1, 6)
    assert calls_of_the_events(requests, num_blocks, live) == calls_of_the_loop(requests, num_blocks, live)


def test_request_that_never_fits_is_skipped_once_nothing_runs() -> None:
    requests = [token_request(0, [1] * 4, 2), token_request(1, [1] * 40), token_request(2, [1] * 4)]
    events = list(closed_loop_events(requests, tokens_per_block=4, num_blocks=5, live=3))
    assert events == [
        Admit([requests[0]]),
        Decode(2),
        Release([requests[0]]),
        Skip(requests[1]),
        Admit([requests[2]]),
        Decode(1),
        Release([requests[2]]),
    ]


def test_pool_without_a_capacity_has_room_for_all_needs() -> None:
    requests = [token_request(0, [1] * 9, 3), token_request(1, [1])]
    assert num_pool_blocks(requests, 4, None) == (3 + 3) + (0 + 3)
    assert num_pool_blocks(requests, 4, 41) == 10


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_senseless_sizes_are_refused(sizes: tuple[int, int, int]) -> None:
    tokens_per_block, num_blocks, live = sizes
    with pytest.raises(InvalidInputError, match="must be at least 1"):
        closed_loop_events([], tokens_per_block=tokens_per_block, num_blocks=num_blocks, live=live)


def test_events_reproduce_what_recorded_runs_count_without_a_manager(shared_dir: Path) -> None:
    trace = read_trace(shared_dir / "traces" / "sharegpt" / "sharegpt-llama-3.1-8b-300-sps10.jsonl")
    runs = json.loads((shared_dir / "reference" / "reference_runs.json").read_text())
    runs = [run for run in (runs if isinstance(runs, list) else runs["runs"]) if run["trace"] == "sharegpt-llama"]
    assert runs
    for run in runs:
        tokens_per_block = run["tokens_per_block"]
        capacity = None if run["capacity_tokens"] in (None, "inf") else run["capacity_tokens"]
        num_blocks = num_pool_blocks(trace.requests, tokens_per_block, capacity)
        num_requests = num_tokens = num_decoded = num_live = 0
        for event in closed_loop_events(
            trace.requests, tokens_per_block=tokens_per_block, num_blocks=num_blocks, live=run["live"]
        ):
            if isinstance(event, Admit):
                num_requests += len(event.requests)
                num_live += len(event.requests)
                num_tokens += sum(request.input_length for request in event.requests)
            elif isinstance(event, Decode):
                num_decoded += event.num_rounds * num_live
            elif isinstance(event, Release):
                num_live -= len(event.requests)
        assert (num_requests, num_tokens, num_decoded) == (run["requests"], run["prompt_tokens"], run["decode_calls"])
