"""Verification: recorded programs replayed on the port and compared value by value."""

from __future__ import annotations

from trtkv.verify.op_machine import OpMachine, OpOutcome, UnsupportedOpError
from trtkv.verify.program import Program, RecordedOp, read_program
from trtkv.verify.program_result import Mismatch, ProgramResult, UnsupportedOp
from trtkv.verify.recorder import TraceRecorder
from trtkv.verify.runner import find_programs, replay_program, verify_program, verify_programs

__all__ = [
    "Mismatch",
    "OpMachine",
    "OpOutcome",
    "Program",
    "ProgramResult",
    "RecordedOp",
    "TraceRecorder",
    "UnsupportedOp",
    "UnsupportedOpError",
    "find_programs",
    "read_program",
    "replay_program",
    "verify_program",
    "verify_programs",
]
