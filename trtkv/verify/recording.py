"""Recording: what the recorded manager and its requests ask of the recorder behind them."""

from __future__ import annotations

from typing import Protocol

from trtkv.records.llm_request import LlmRequest
from trtkv.verify.json_kinds import Args, JsonValue
from trtkv.verify.op_machine import OpMachine


class Recording(Protocol):
    """Runs ops and writes them; ``TraceRecorder`` does."""

    @property
    def machine(self) -> OpMachine:
        """The machine that runs the ops."""

    def execute(self, op: str, args: Args) -> JsonValue:
        """Run one op, write it, and return its answer or raise its error."""

    def is_recording(self, request: LlmRequest) -> bool:
        """Whether a change of this request is to be written."""

    def check_own_request(self, request: LlmRequest) -> None:
        """Raise InvalidInputError for a request that a replay would not know."""
