"""Streams of trace files: packed or not, and their lines, of which none may be longer than a limit."""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any, Final, cast

from trtkv.checks import check_integer
from trtkv.errors import InvalidInputError, MissingExtraError, TraceFormatError

STDIN_NAME: Final = "-"
DEFAULT_MAX_LINE_BYTES: Final = 256 << 20

_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_CHUNK_BYTES: Final = 1 << 20


@contextmanager
def open_stream(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file, or standard input for ``-``; its first bytes say whether it is gzip or zstd, and it is unpacked."""
    if os.fspath(path) == STDIN_NAME:
        yield _unpacked(sys.stdin.buffer, STDIN_NAME)
        return
    try:
        raw = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise InvalidInputError(f"cannot open trace {os.fspath(path)}: {error.strerror or error}") from error
    with raw:
        yield _unpacked(raw, os.fspath(path))


def starts_with(stream: IO[bytes], magic: bytes) -> bool:
    """Whether the next bytes are these; nothing is read. False for a stream that cannot look ahead."""
    peek = getattr(stream, "peek", None)
    try:
        return peek is not None and peek(len(magic))[: len(magic)] == magic
    except (EOFError, OSError, zlib.error):
        return False  # whoever reads it says what is wrong, and where


class TraceLines:
    """Numbered lines of a stream, read once from front to back; a byte order mark is left out.

    Raises TraceFormatError with the line for what cannot be read, and for a line longer than ``max_line_bytes``.
    """

    def __init__(self, stream: IO[bytes], name: str, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES) -> None:
        if check_integer("max_line_bytes", max_line_bytes) < 1:
            raise InvalidInputError(f"max_line_bytes is {max_line_bytes}; give at least 1")
        self.name = name
        self.max_line_bytes = max_line_bytes
        self._stream = stream
        self._ahead: list[tuple[int, bytes]] = []
        self._line_number = 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Line number, and the line with its end."""
        while True:
            numbered = self._ahead.pop(0) if self._ahead else self._read()
            if numbered is None:
                return
            yield numbered

    def first_filled(self, count: int, max_bytes: int | None = None) -> list[bytes]:
        """The first lines that are not blank, stripped; none is used up. ``max_bytes``: cuts each line."""
        found: list[bytes] = []
        for _, line in self._ahead:
            found += [line.strip()] if line.strip() else []
        while len(found) < count:
            numbered = self._read(max_bytes)
            if numbered is None:
                break
            self._ahead.append(numbered)
            found += [numbered[1].strip()] if numbered[1].strip() else []
        return found

    def complete(self) -> None:
        """Read on to the end of the last line, of which ``first_filled`` may have read the first bytes."""
        if self._ahead and not self._ahead[-1][1].endswith(b"\n"):
            number, line = self._ahead.pop()
            self._line_number = number - 1
            rest = self._read(already=len(line))
            self._ahead.append((number, line + (rest[1] if rest else b"")))
            self._line_number = number

    def chunks(self) -> Iterator[bytes]:
        """Everything that is left, in pieces of no meaning."""
        while self._ahead:
            yield self._ahead.pop(0)[1]
        while chunk := self._call(self._stream.read, _CHUNK_BYTES):
            yield chunk

    def _read(self, max_bytes: int | None = None, *, already: int = 0) -> tuple[int, bytes] | None:
        limit = self.max_line_bytes + 1 - already
        line = self._call(self._stream.readline, limit if max_bytes is None else min(limit - 1, max_bytes))
        if not line:
            return None
        self._line_number += 1
        if len(line) == limit and not line.endswith(b"\n"):
            raise TraceFormatError(
                f"{self.name}:{self._line_number}: the line is longer than {self.max_line_bytes} bytes; "
                "raise the limit with --max-line-bytes if it is meant to be"
            )
        if self._line_number == 1 and not already:
            line = line.removeprefix(_BYTE_ORDER_MARK) or b"\n"
        return self._line_number, line

    def _call(self, read: Any, size: int) -> bytes:
        try:
            return cast("bytes", read(size))
        except (EOFError, OSError, zlib.error) as error:
            raise TraceFormatError(f"{self.name}:{self._line_number + 1}: cannot read on: {error}") from error


def _unpacked(raw: IO[bytes], name: str) -> IO[bytes]:
    if starts_with(raw, _GZIP_MAGIC):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
    return _unpacked_zstd(raw, name) if starts_with(raw, _ZSTD_MAGIC) else raw


def _unpacked_zstd(raw: IO[bytes], name: str) -> IO[bytes]:
    """The standard library's from Python 3.14 on, else the package."""
    try:
        return cast("IO[bytes]", import_module("compression.zstd").ZstdFile(raw))
    except ImportError:
        pass
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError(f'{name} is compressed with zstd: pip install "trtkv[zstd]"') from error
    reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    return io.BufferedReader(_ZstdReader(reader, zstandard.ZstdError), _CHUNK_BYTES)


class _ZstdReader(io.RawIOBase):
    """A reader of the zstandard package whose faults are OSErrors, as those of files are."""

    def __init__(self, reader: Any, fault: type[Exception]) -> None:
        super().__init__()
        self._reader = reader
        self._fault = fault

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer; the number of bytes."""
        try:
            return int(self._reader.readinto(buffer))
        except self._fault as error:
            raise OSError(str(error)) from error
