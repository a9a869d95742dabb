"""TraceRecorder: writes what is done to a manager and its requests as a program that can be verified."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TextIO

from trtkv.common import RequestId, TokenId
from trtkv.errors import InvalidInputError, RetentionRangeError, TrtkvError, UnknownIdError, check
from trtkv.records.llm_request import LlmRequest
from trtkv.verify.clock import VirtualClock
from trtkv.verify.json_kinds import Args, JsonValue, KindError
from trtkv.verify.op_machine import OpMachine, OpOutcome
from trtkv.verify.op_table import check_args
from trtkv.verify.program import FORMAT, INVALID_ARGUMENT, VERSION
from trtkv.verify.recorded_manager import RecordedManager
from trtkv.verify.recorded_request import RecordedRequest


class TraceRecorder:
    """Executes ops on its own manager (virtual clock; compatibility mode by default) and writes each with its outcome.

    A driver may call ``execute`` by op name, or work as usual: ``manager`` looks like the KVCacheManager and
    ``new_request`` returns an LlmRequest; their changing methods are written as ops too. ``config`` has the
    fields of a program's header. The stream stays the caller's to close.
    """

    def __init__(self, stream: TextIO, group: str, config: Mapping[str, JsonValue], seed: int = 0) -> None:
        self._stream = stream
        self._machine = OpMachine(self._make_request)
        self._is_executing = False
        self._write({"format": FORMAT, "version": VERSION, "group": group, "seed": seed, "config": dict(config)})
        self.execute("create", config)

    @property
    def manager(self) -> RecordedManager:
        """The selected manager; its changing methods are recorded."""
        return RecordedManager(self)

    @property
    def machine(self) -> OpMachine:
        """The machine behind it. What is done to its manager directly is not recorded."""
        return self._machine

    @property
    def clock(self) -> VirtualClock:
        """The manager's clock, to be read only; it moves by ``advance_clock_ms``."""
        return self._machine.state.clock

    def advance_clock_ms(self, milliseconds: int) -> None:
        """Move the clock."""
        self.execute("advance_clock_ms", {"ms": milliseconds})

    def new_request(
        self, request_id: RequestId, tokens: Iterable[TokenId], max_new_tokens: int = 0, **fields: JsonValue
    ) -> LlmRequest:
        """Make a request; ``fields`` are the further args of the op ``new_request``."""
        args = {"id": request_id, "tokens": list(tokens), "max_new_tokens": max_new_tokens, **fields}
        self.execute("new_request", args)
        return self._machine.state.requests[request_id]

    def drop_request(self, request_id: RequestId) -> None:
        """Forget a request; its later changes are not recorded."""
        self.execute("drop_request", {"id": request_id})

    def execute(self, op: str, args: Args) -> JsonValue:
        """Run one op, write it, and return its answer or raise its error.

        InvalidInputError for unknown ops and args that the format does not allow; these are not written.
        """
        check(not self._is_executing, f"{op} is executed inside another recorded op")
        try:
            check_args(op, args)
        except KindError as error:
            raise InvalidInputError(f"{op}: {error}") from None
        self._forget_unrecorded_ties()
        self._is_executing = True
        try:
            outcome = self._machine.execute(op, args)
        finally:
            self._is_executing = False
        self._write(_make_row(op, args, outcome))
        if outcome.error is not None:
            raise outcome.error
        return outcome.ret

    def is_recording(self, request: LlmRequest) -> bool:
        """Whether a change of this request is to be written: not inside an op, and not of a dropped request."""
        return not self._is_executing and self._machine.state.requests.get(request.request_id) is request

    def check_own_request(self, request: LlmRequest) -> None:
        """Raise InvalidInputError for a request that a replay would not know."""
        if self._machine.state.requests.get(request.request_id) is not request:
            raise InvalidInputError(
                f"request {request.request_id} was not made by this recorder, or was dropped; make it with new_request"
            )

    def _make_request(self, *args: object, **fields: object) -> LlmRequest:
        return RecordedRequest(self, *args, **fields)

    def _forget_unrecorded_ties(self) -> None:
        """Drop ties counted by queries that went past the recorder; a replay will not see them."""
        self._machine.state.collect_ties()
        self._machine.state.take_ties()

    def _write(self, row: Mapping[str, JsonValue]) -> None:
        self._stream.write(json.dumps(row, separators=(",", ":")) + "\n")


def _make_row(op: str, args: Args, outcome: OpOutcome) -> dict[str, JsonValue]:
    row: dict[str, JsonValue] = {"op": op, "args": dict(args)}
    if outcome.error is None:
        row["ret"] = outcome.ret
    else:
        row["error"] = str(outcome.error)
        row["error_type"] = _get_error_type(outcome.error)
    if outcome.obs is not None:
        row["obs"] = outcome.obs
    return row


def _get_error_type(error: TrtkvError) -> str:
    if isinstance(error, RetentionRangeError):
        return INVALID_ARGUMENT
    return "out_of_range" if isinstance(error, UnknownIdError) else "tllm"
