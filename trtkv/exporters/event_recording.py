"""Recordings of event messages: a file of JSON lines with time, number and payload of each."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from os import PathLike
from typing import Any, Final, NamedTuple

from trtkv.errors import InvalidInputError
from trtkv.exporters.event_message import EventMessage

FORMAT: Final = "trtkv.event_messages"
VERSION: Final = 1


class RecordedMessage(NamedTuple):
    """A message and when it arrived, in seconds since the recording began."""

    seconds: float
    message: EventMessage


def header_line() -> str:
    """First line of a recording."""
    return json.dumps({"format": FORMAT, "version": VERSION}) + "\n"


def recorded_line(recorded: RecordedMessage) -> str:
    """The line of a message."""
    seconds, (sequence, payload) = recorded
    row = {"seconds": round(seconds, 6), "sequence": sequence, "payload": base64.b64encode(payload).decode()}
    return json.dumps(row) + "\n"


def read_recording(path: str | PathLike[str]) -> Iterator[RecordedMessage]:
    """Messages in the order of the file. Raises InvalidInputError that names the line for anything else."""
    with open(path, encoding="utf-8", errors="replace") as lines:
        if _parse(path, 1, next(lines, "")) != {"format": FORMAT, "version": VERSION}:
            raise InvalidInputError(f"{path} is not a recording of events; make one with trtkv events record")
        for number, line in enumerate(lines, 2):
            row = _parse(path, number, line)
            try:
                payload = base64.b64decode(row["payload"], validate=True)
                recorded = RecordedMessage(float(row["seconds"]), EventMessage(int(row["sequence"]), payload))
            except (KeyError, TypeError, ValueError, binascii.Error) as error:
                raise InvalidInputError(f"{path}, line {number}: not a recorded message: {error!r}") from error
            if recorded.message.is_end_of_replay:
                raise InvalidInputError(f"{path}, line {number}: a message needs a payload and a number from 0 on")
            yield recorded


def _parse(path: str | PathLike[str], number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InvalidInputError(f"{path}, line {number}: {error}") from error
    if not isinstance(row, dict):
        raise InvalidInputError(f"{path}, line {number}: give an object, not {type(row).__name__}")
    return row
