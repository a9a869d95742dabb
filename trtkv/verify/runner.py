"""Runner: replays programs on the port and compares every answer, error and observation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

from trtkv.errors import InvalidInputError, RetentionRangeError, TrtkvError
from trtkv.verify.compare import ABSENT, Difference, find_difference
from trtkv.verify.json_kinds import JsonValue
from trtkv.verify.observation import LARGE_LOOKUPS
from trtkv.verify.op_machine import OpMachine, OpOutcome, UnsupportedOpError
from trtkv.verify.program import INVALID_ARGUMENT, Program, RecordedOp, read_program
from trtkv.verify.program_result import Mismatch, ProgramResult, UnsupportedOp

Result = TypeVar("Result")

PROGRAM_SUFFIX = ".jsonl"
_CHUNK_OF_PROGRAMS = 4


def verify_program(path: Path | str) -> ProgramResult:
    """Replay one file. Raises TraceFormatError when it is no program."""
    return replay_program(read_program(Path(path)))


def replay_program(program: Program) -> ProgramResult:
    """Replay a program that has been read. The whole program runs, also behind a mismatch."""
    machine = OpMachine()
    num_mismatches = 0
    first_mismatch: Mismatch | None = None
    unsupported_op: UnsupportedOp | None = None
    for recorded in program.ops:
        try:
            difference = replay_op(machine, recorded)
        except UnsupportedOpError as error:
            unsupported_op = UnsupportedOp(recorded.op_index, recorded.op, str(error))
            break
        if difference is not None:
            num_mismatches += 1
            first_mismatch = first_mismatch or make_mismatch(machine, recorded, difference)
    return ProgramResult(
        path=program.path,
        group=program.group,
        seed=program.seed,
        num_ops=len(program.ops),
        num_mismatches=num_mismatches,
        num_unsupported=0 if unsupported_op is None else len(program.ops) - unsupported_op.op_index + 1,
        first_mismatch=first_mismatch,
        unsupported_op=unsupported_op,
    )


def replay_op(machine: OpMachine, recorded: RecordedOp) -> Difference | None:
    """Run one op and compare what it gave with what was recorded. Raises UnsupportedOpError."""
    return compare_outcome(recorded, run_op(machine, recorded))


def run_op(machine: OpMachine, recorded: RecordedOp) -> OpOutcome | Exception:
    """Run one op; an exception that the port does not raise on purpose is its bug, and returned as it is."""
    try:
        return machine.execute(recorded.op, recorded.args)
    except UnsupportedOpError:
        raise
    except Exception as crash:
        return crash


def compare_outcome(recorded: RecordedOp, outcome: OpOutcome | Exception) -> Difference | None:
    """The first difference between what an op gave and what was recorded; a crash is a difference of its error."""
    if isinstance(outcome, Exception):
        return Difference("error", _describe_recorded_error(recorded), f"crash: {_describe_error(outcome)}")
    error = outcome.error
    if recorded.has_failed != (error is not None):
        got = "no error" if error is None else _describe_error(error)
        return Difference("error", _describe_recorded_error(recorded), got)
    if error is not None:
        is_invalid_argument = recorded.error_type == INVALID_ARGUMENT
        if is_invalid_argument != isinstance(error, RetentionRangeError):
            return Difference("error_type", recorded.error_type, type(error).__name__)
    else:
        difference = find_difference(recorded.ret, outcome.ret)
        if difference is not None:
            return difference._replace(path=f"ret{difference.path}")
    return _compare_observations(recorded.obs, outcome.obs)


def _compare_observations(expected: JsonValue, got: JsonValue) -> Difference | None:
    if expected is None and got is None:
        return None
    if expected is None or got is None:
        return Difference("obs", ABSENT if expected is None else expected, ABSENT if got is None else got)
    if LARGE_LOOKUPS not in expected:  # not every recorder writes them
        got = {name: value for name, value in got.items() if name != LARGE_LOOKUPS}
    difference = find_difference(expected, got)
    return None if difference is None else difference._replace(path=f"obs{difference.path}")


def _describe_recorded_error(recorded: RecordedOp) -> str:
    return f"{recorded.error_type}: {recorded.error}" if recorded.has_failed else "no error"


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def make_mismatch(machine: OpMachine, recorded: RecordedOp, difference: Difference) -> Mismatch:
    """A difference with its op and the free queues after it."""
    return Mismatch(
        op_index=recorded.op_index,
        op=recorded.op,
        field=difference.path,
        expected=difference.expected,
        got=difference.got,
        free_queues=machine.describe_free_queues(),
    )


def find_programs(paths: Sequence[Path]) -> list[Path]:
    """The files among the paths, and every ``*.jsonl`` below the folders, each once and in natural order.

    Raises InvalidInputError for a path that does not exist and for a folder without programs.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            programs = sorted(path.rglob(f"*{PROGRAM_SUFFIX}"), key=_natural_order)
            if not programs:
                raise InvalidInputError(f"{path}: no {PROGRAM_SUFFIX} file in this folder or below it")
            found.update(dict.fromkeys(programs))
        elif path.exists():
            found[path] = None
        else:
            raise InvalidInputError(f"{path}: no such file or folder")
    return list(found)


def _natural_order(path: Path) -> list[tuple[int, int | str]]:
    """Sort key with numbers by value: g02-10 comes behind g02-9."""
    pieces = re.split(r"(\d+)", str(path))
    return [(0, int(piece)) if piece.isdecimal() else (1, piece) for piece in pieces]


def verify_programs(programs: Sequence[Path], jobs: int = 1) -> Iterator[ProgramResult]:
    """Results in the order of the files, computed by up to ``jobs`` processes."""
    return map_programs(verify_program, programs, jobs)


def map_programs(verify: Callable[[Path], Result], programs: Sequence[Path], jobs: int) -> Iterator[Result]:
    """``verify`` of each file, in their order, by up to ``jobs`` processes."""
    if jobs < 1:
        raise InvalidInputError(f"jobs is {jobs}; at least 1 process is needed")
    num_workers = min(jobs, len(programs))
    if num_workers <= 1:
        yield from map(verify, programs)
        return
    with ProcessPoolExecutor(num_workers) as pool:
        try:
            yield from pool.map(verify, programs, chunksize=_CHUNK_OF_PROGRAMS)
        except TrtkvError:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
