"""Files that a command writes: never onto an input, and whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TextIO, TypeAlias

from trtkv.errors import InvalidInputError

STDOUT_NAME: Final = "-"

MaybePath: TypeAlias = "str | os.PathLike[str] | None"
"""None: not asked for. ``-`` is standard input or output."""


def check_outputs(outputs: Iterable[MaybePath], inputs: Iterable[MaybePath] = ()) -> None:
    """Fail before a long run rather than after it. Leaves no new file and no changed one.

    Raises InvalidInputError for an output that is an input, that lies in a folder of inputs under an input's name, that
    is given twice, or that cannot be written.
    """
    taken: dict[str, str] = {}
    for path in _files(inputs):
        for file in path.iterdir() if path.is_dir() else (path,):
            taken[os.path.realpath(file)] = "an input of this command"
    for path in _files(outputs):
        target = os.path.realpath(path)
        if target in taken and not _is_special(target):
            raise InvalidInputError(f"{path} is {taken[target]}; give another name for the output")
        taken[target] = "the name of another output of this command"
        with output_path(path, keep=False) as temporary:
            Path(temporary).touch()


@contextmanager
def output_path(path: str | os.PathLike[str], *, keep: bool = True) -> Iterator[str]:
    """A temporary name in the folder of ``path`` to write to; it gets that name at the end.

    After any error, and without ``keep``, the temporary file is removed and what ``path`` held before is unchanged. A
    device or a pipe is written directly. Raises InvalidInputError with the name of the file if it cannot be written.
    """
    target = os.path.realpath(path)
    if _is_special(target):
        with _told_of(path):
            yield target
        return
    with _told_of(path):
        if os.path.isdir(target):
            raise InvalidInputError(f"cannot write {os.fspath(path)}: it is a folder")
        if os.path.exists(target) and not os.access(target, os.W_OK):
            raise InvalidInputError(f"cannot write {os.fspath(path)}: the file is write-protected")
        folder, name = os.path.split(target)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".tmp", dir=folder)
        os.close(descriptor)
        try:
            os.chmod(temporary, _mode(target))
            yield temporary
            if keep:
                os.replace(temporary, target)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)


@contextmanager
def open_output(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """A text file to write, as ``output_path`` does it; ``-`` is standard output. Line ends are written as given."""
    if os.fspath(path) == STDOUT_NAME:
        yield sys.stdout
        return
    with output_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as stream:
        yield stream


def write_output(path: str | os.PathLike[str], text: str) -> None:
    """Write a whole text, as ``open_output`` does it."""
    with open_output(path) as stream:
        stream.write(text)


@contextmanager
def _told_of(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidInputError(f"cannot write {os.fspath(path)}: {reason}; it is as it was before") from error


def _files(paths: Iterable[MaybePath]) -> list[Path]:
    return [Path(path) for path in paths if path is not None and os.fspath(path) != STDOUT_NAME]


def _is_special(target: str) -> bool:
    return os.path.exists(target) and not os.path.isfile(target) and not os.path.isdir(target)


def _mode(target: str) -> int:
    """Permissions of the file that is replaced, or those of a new one."""
    try:
        return os.stat(target).st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
