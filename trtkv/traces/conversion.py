"""Rows of a trace of any format, written as Mooncake or as tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trtkv.errors import InvalidInputError
from trtkv.traces.prefixes.renaming import PrefixRenamer
from trtkv.traces.trace import HashIdTokens, KeyConstraints, RequestTrace, TraceRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEFAULT_BLOCK_SIZE: Final = 32


class TargetFormat(str, Enum):
    """Formats that can be written."""

    MOONCAKE = "mooncake"
    TOKENS = "tokens"


def converted_lines(
    trace: RequestTrace, target: TargetFormat, *, block_size: int | None = None, anonymise: bool = False
) -> Iterator[str]:
    """A line of JSON for each request, in replay order. ``block_size`` is for Mooncake: tokens of a hash id.

    With ``anonymise`` ids, sessions, salts and LoRA ids are renamed in order of first appearance and times count from
    the first arrival; which prompts begin alike, and for how long, stays as it is.
    """
    names = _Names(anonymise)
    make_row = _token_rows(trace, names) if target is TargetFormat.TOKENS else _hash_rows(trace, names, block_size)
    for request in trace.requests:
        yield json.dumps(make_row(request), separators=(", ", ": ")) + "\n"


def hash_block_size(trace: RequestTrace, block_size: int | None) -> int:
    """Tokens of a hash id to write: as asked for, else those of the trace, else DEFAULT_BLOCK_SIZE."""
    found = block_size or trace.block_size or DEFAULT_BLOCK_SIZE
    if found < 1:
        raise InvalidInputError(f"block size is {found}; give at least 1")
    return found


class _Names:
    """Names of sessions and of what keeps prompts apart, renamed or not."""

    def __init__(self, anonymise: bool) -> None:
        self.anonymise = anonymise
        self._numbers: dict[str, dict[Hashable, int]] = {}

    def number(self, kind: str, name: Hashable) -> int:
        """A number for a name, in order of first appearance."""
        numbers = self._numbers.setdefault(kind, {})
        return numbers.setdefault(name, len(numbers))

    def session(self, name: str) -> str:
        """The name to write for a session."""
        return f"s{self.number('session', name)}" if self.anonymise else name

    def constraints(self, constraints: KeyConstraints | None) -> dict[str, object]:
        """Fields for what keeps prompts apart."""
        if constraints is None:
            return {}
        salt, lora = constraints.cache_salt, constraints.lora_task_id
        if self.anonymise:
            salt = None if salt is None else f"salt{self.number('salt', salt)}"
            lora = None if lora is None else self.number("lora", lora)
        fields = {"cache_salt": salt, "lora_task_id": lora}
        return {name: value for name, value in fields.items() if value is not None}


def _token_rows(trace: RequestTrace, names: _Names) -> Callable[[TraceRequest], dict[str, Any]]:
    """Rows of tokens; arrivals are moved so far that sorting by them keeps the replay order."""
    renamer = PrefixRenamer() if names.anonymise else None
    seconds = trace.seconds_per_unit
    first = min((request.timestamp for request in trace.requests), default=0) if names.anonymise else 0
    latest = 0

    def make_row(request: TraceRequest) -> dict[str, Any]:
        nonlocal latest
        own = request.index if seconds is None else round((request.timestamp - first) * seconds * 1e9)
        latest = max(latest, own)
        prompt, output = _tokens(request, renamer)
        row: dict[str, Any] = {
            "input_toks": request.input_length,
            "output_toks": request.output_length,
            "arrival_time_ns": latest,
            "input_tok_ids": prompt.tolist(),
        }
        if output is not None:
            row["output_tok_ids"] = output.tolist()
        if request.session is not None:
            row["session_id"] = names.session(request.session)
            row["intra_session_gap_ns"] = round(request.delay_seconds * 1e9)
        return {**row, **names.constraints(request.constraints)}

    return make_row


def _tokens(request: TraceRequest, renamer: PrefixRenamer | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Tokens of the prompt, and of the output if all of it is known."""
    prompt: NDArray[Any] = request.tokens()
    output: NDArray[Any] | None = None
    if request.output is not None and request.output.length == request.output_length:
        output = request.output.tokens()
    if renamer is None:
        return prompt, output
    whole = renamer.rename(prompt if output is None else np.concatenate((prompt, output)))
    return whole[: len(prompt)], None if output is None else whole[len(prompt) :]


def _hash_rows(
    trace: RequestTrace, names: _Names, asked_block_size: int | None
) -> Callable[[TraceRequest], dict[str, Any]]:
    block_size = hash_block_size(trace, asked_block_size)
    ids_of = _ids_of(trace, names, block_size)
    milliseconds = None if trace.seconds_per_unit is None else trace.seconds_per_unit * 1000
    first = min((request.timestamp for request in trace.requests), default=0) if names.anonymise else 0
    waits_are_named = any(request.predecessors != _last_of_session(trace, request) for request in trace.requests)

    def make_row(request: TraceRequest) -> dict[str, Any]:
        row: dict[str, Any] = {
            "timestamp": 0 if milliseconds is None else _number((request.timestamp - first) * milliseconds),
            "input_length": request.input_length,
            "output_length": request.output_length,
            "hash_ids": ids_of(request),
        }
        if request.session is not None:
            row["session_id"] = names.session(request.session)
        if waits_are_named:
            row["request_id"] = str(request.index)
            row["wait_for"] = [str(index) for index in request.predecessors]
        if request.delay_seconds:
            row["delay"] = _number(request.delay_seconds * 1000)
        return {**row, **names.constraints(request.constraints)}

    return make_row


def _number(milliseconds: float) -> float:
    """Milliseconds to a nanosecond, as an integer where they are one."""
    rounded = round(milliseconds, 6)
    return int(rounded) if rounded == int(rounded) else rounded


def _ids_of(trace: RequestTrace, names: _Names, block_size: int) -> Callable[[TraceRequest], list[int]]:
    """Ids of the blocks of a request: those of the trace where it has ids for such blocks, else one for each prefix."""
    if all(isinstance(r.source, HashIdTokens) and r.source.block_size == block_size for r in trace.requests):

        def own_ids(request: TraceRequest) -> list[int]:
            ids: list[int] = request.source.ids.tolist()  # type: ignore[attr-defined]  # HashIdTokens, checked above
            return [names.number("block", found) for found in ids] if names.anonymise else ids

        return own_ids
    renamer = PrefixRenamer()

    def prefix_ids(request: TraceRequest) -> list[int]:
        renamed = renamer.rename(request.tokens())
        ends = [*range(block_size - 1, len(renamed), block_size)]
        if len(renamed) % block_size:
            ends.append(len(renamed) - 1)
        return [names.number("block", int(renamed[end])) for end in ends]

    return prefix_ids


def _last_of_session(trace: RequestTrace, request: TraceRequest) -> tuple[int, ...]:
    """The request before it in its session, as rows that only name a session would have it."""
    if request.turn == 0 or not request.predecessors:
        return ()
    before = trace.requests[request.predecessors[0]]
    is_chain = before.session == request.session and before.turn == request.turn - 1
    return (before.index,) if is_chain and len(request.predecessors) == 1 else ()
