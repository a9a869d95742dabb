"""Program: a recorded file of the trace format, read and checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from trtkv.errors import TraceFormatError
from trtkv.verify.json_kinds import INT, STR, Args, JsonValue, KindError, choice, record
from trtkv.verify.manager_config import CONFIG_KIND
from trtkv.verify.op_table import OPS, check_args

FORMAT: Final = "trtkv.ops"
VERSION: Final = 1
INVALID_ARGUMENT: Final = "invalid_argument"
ERROR_TYPES: Final = ("tllm", "out_of_range", INVALID_ARGUMENT)

_ROW_FIELDS: Final = frozenset({"op", "args", "ret", "obs", "error", "error_type"})
_check_error_type: Final = choice(ERROR_TYPES)
_check_header: Final = record({"format": STR, "version": INT, "group": STR, "seed": INT, "config": CONFIG_KIND})


class RecordedOp(NamedTuple):
    """One op with what it gave when recorded. ``op_index`` counts the lines after the header from 1."""

    op_index: int
    op: str
    args: Args
    ret: JsonValue
    error: str | None
    error_type: str | None
    obs: dict[str, JsonValue] | None

    @property
    def has_failed(self) -> bool:
        """Whether the recorded call raised an error."""
        return self.error_type is not None


class Program(NamedTuple):
    """A recorded program. ``path`` is the file it was read from."""

    path: Path
    group: str
    seed: int
    config: Args
    ops: list[RecordedOp]


def read_program(path: Path) -> Program:
    """Read and check a whole file. Raises TraceFormatError with file, line and reason; a header alone is no program."""
    rows = _read_rows(path)
    line, header = next(rows, (1, None))
    if header is None:
        raise _refuse(path, 1, "the file is empty; the first line must be the header")
    _check_format(path, line, header)
    ops = [_read_op(path, line, row) for line, row in rows]
    if not ops:
        raise _refuse(path, line, "the header is all there is; without operations nothing is verified: record it anew")
    return Program(path, header["group"], header["seed"], header["config"], ops)


def _read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open("rb") as file:
            for line, raw in enumerate(file, 1):
                yield line, _read_row(path, line, raw)
    except OSError as error:
        raise TraceFormatError(f"{path}: cannot be read: {error.strerror}") from error


def _read_row(path: Path, line: int, raw: bytes) -> dict[str, Any]:
    try:
        row = json.loads(raw.decode("ascii"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise _refuse(path, line, f"byte {error.start + 1} is not ASCII; use \\u escapes") from error
    except json.JSONDecodeError as error:
        raise _refuse(path, line, f"not JSON at column {error.colno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise _refuse(path, line, f"no value of this format: {error}") from error
    if type(row) is not dict:
        raise _refuse(path, line, f"a JSON object is needed, this is {type(row).__name__}")
    return row


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _check_format(path: Path, line: int, header: dict[str, Any]) -> None:
    if header.get("format") != FORMAT:
        raise _refuse(
            path,
            line,
            f"format is {header.get('format')!r}; a recorded program starts with format {FORMAT!r} "
            "(trtkv replay --scheduler ... --record FILE makes one)",
        )
    if header.get("version") != VERSION:
        raise _refuse(path, line, f"version is {header.get('version')!r}; only version {VERSION} can be read")
    try:
        _check_header(header)
    except KindError as error:
        raise _refuse(path, line, str(error)) from None


def _read_op(path: Path, line: int, row: dict[str, Any]) -> RecordedOp:
    op = row.get("op")
    if type(op) is not str or op not in OPS:
        raise _refuse(path, line, f"op is {op!r}, which is not an operation of format {FORMAT} version {VERSION}")
    if not _ROW_FIELDS.issuperset(row):
        raise _refuse(path, line, f"{op}: unknown fields {sorted(set(row) - _ROW_FIELDS)}")
    if ("ret" in row) == ("error" in row) or ("error" in row) != ("error_type" in row):
        raise _refuse(path, line, f"{op}: either ret, or error together with error_type, is needed")
    obs = row.get("obs")
    if obs is not None and type(obs) is not dict:
        raise _refuse(path, line, f"{op}: obs is {obs!r}; an object is needed")
    try:
        args = check_args(op, row.get("args"))
        if "error" in row:
            _check_error_type(row["error_type"])
    except KindError as error:
        raise _refuse(path, line, f"{op}: {error}") from None
    return RecordedOp(line - 1, op, args, row.get("ret"), row.get("error"), row.get("error_type"), obs)


def _refuse(path: Path, line: int, reason: str) -> TraceFormatError:
    return TraceFormatError(f"{path}:{line}: {reason}")
