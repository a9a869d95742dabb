"""Small traces, a manager that only keeps a log, and the closed loop written out round by round."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtkv.records.llm_request import LlmRequest
from trtkv.traces.trace import TokenIds, TraceRequest

DATA = Path(__file__).resolve().parent.parent / "data"

LogEntry = tuple[object, ...]


def make_request(index: int, input_length: int, output_length: int, first_token: int = 0) -> TraceRequest:
    tokens = array("i", range(first_token, first_token + input_length))
    return TraceRequest(index, 0, input_length, output_length, TokenIds(tokens))


@dataclass
class LoggingManager:
    """Has room for everything, finds ``found`` tokens of every prompt of more tokens, and logs each call."""

    found: int = 0
    log: list[LogEntry] = field(default_factory=list)

    def add_sequence_batch(self, infos: Sequence[tuple[int, int, int]], requests: Sequence[LlmRequest]) -> None:
        self.log.append(("add", tuple(infos), tuple(request.max_new_tokens for request in requests)))
        for request in requests:
            if request.prompt_len > self.found:
                request.set_prepopulated_prompt_len(self.found, 1)

    def store_context_blocks(self, request: LlmRequest) -> None:
        self.log.append(
            ("store", request.request_id, int(request.state), request.context_current_position, request.prompt_len)
        )

    def add_token_rounds(self, request_ids: Sequence[int], num_rounds: int) -> None:
        self.log += [("token", request_id) for request_id in request_ids] * num_rounds

    def remove_sequence(self, request_id: int, request: LlmRequest) -> None:
        self.log.append(("remove", request_id, request.get_tokens().tobytes()))


def loop_round_by_round(
    trace: Sequence[TraceRequest], tokens_per_block: int, num_primary_blocks: int, max_live: int
) -> list[LogEntry]:
    """The calls that the protocol asks for, written as its text says, with one decode step a round."""
    log: list[LogEntry] = []
    live: list[list] = []  # [request, tokens, left, need]
    position = 0
    while position < len(trace) or live:
        admitted = []
        while len(live) < max_live and position < len(trace):
            request = trace[position]
            need = (request.input_length + request.output_length) // tokens_per_block + 3
            if sum(entry[3] for entry in live) + need > num_primary_blocks:
                if live:
                    break
                position += 1
                continue
            entry = [request, array("i", request.tokens().tolist()), request.output_length, need]
            live.append(entry)
            admitted.append(entry)
            position += 1
        if admitted:
            infos = tuple((request.index, request.input_length, 1) for request, *_ in admitted)
            log.append(("add", infos, tuple(request.output_length for request, *_ in admitted)))
        for request, *_ in admitted:
            log.append(("store", request.index, 13, request.input_length, request.input_length))
        for request, *_ in live:
            log.append(("token", request.index))
        for entry in live:
            entry[1].append((entry[0].index * 1000003 + entry[2]) & 0x7FFFFFFF)
        for entry in list(live):
            entry[2] -= 1
            if entry[2] <= 0:
                log.append(("remove", entry[0].index, entry[1].tobytes()))
                live.remove(entry)
    return log
