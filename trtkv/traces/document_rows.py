"""document_rows: the elements of a JSON document, read piece by piece."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Final

from trtkv.errors import TraceFormatError
from trtkv.traces.rows import Row, json_fault
from trtkv.traces.trace_stream import TraceLines

NumberedRow = tuple[int, Row | str]
"""Line number, and the row or why it is none."""

_SPACE: Final = " \t\r\n"
_NEAR_THE_END: Final = 16
"""Letters; the longest word or number that JSON can break off in the middle is shorter."""


def document_rows(lines: TraceLines) -> Iterator[NumberedRow]:
    """Elements of a file that is one JSON array, or the object that it is.

    No more of the file is held than one element and a piece, and no element may have more letters than
    ``lines.max_line_bytes``.
    """
    text = _DocumentText(lines)
    in_array = text.next_letter() == "["
    if in_array:
        text.skip(1)
    while text.next_letter() not in ("", "]"):
        line_number = text.line_number()
        yield line_number, _as_row(text.element())
        if not in_array:
            break
        separator = text.next_letter()
        if separator == ",":
            text.skip(1)
        elif separator not in ("]", ""):
            raise text.fault("bad JSON: no comma after an element")
    if in_array:
        if text.next_letter() == "":
            raise text.fault("bad JSON: the array is not closed")
        text.skip(1)
    if text.next_letter() != "":
        raise text.fault("bad JSON: something follows the document; write one object a line, or one array of objects")


class _DocumentText:
    """The text of a document from some position on; more of it is read when it is needed."""

    def __init__(self, lines: TraceLines) -> None:
        self._name = lines.name
        self._max_letters = lines.max_line_bytes
        self._chunks = lines.chunks()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._position = 0
        self._line_number = 1
        """Of the position up to which line ends were counted."""
        self._counted = 0

    def next_letter(self) -> str:
        """The next letter that is not white space; empty at the end. It is not passed over."""
        while True:
            text, position = self._text, self._position
            while position < len(text) and text[position] in _SPACE:
                position += 1
            self._position = position
            if position < len(text):
                return text[position]
            if not self._read_on():
                return ""

    def skip(self, count: int) -> None:
        """Pass over letters."""
        self._position += count

    def line_number(self) -> int:
        """Line of the position."""
        self._line_number += self._text.count("\n", self._counted, self._position)
        self._counted = self._position
        return self._line_number

    def fault(self, reason: str) -> TraceFormatError:
        """What is wrong at the position."""
        return TraceFormatError(f"{self._name}:{self.line_number()}: {reason}")

    def element(self) -> object:
        """The element that starts at the position; passes over it."""
        while True:
            try:
                found, end = _DECODER.raw_decode(self._text, self._position)
            except json.JSONDecodeError as error:
                is_cut = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _NEAR_THE_END
                if is_cut and self._read_on():
                    continue
                line_number = self.line_number() + self._text.count("\n", self._position, error.pos)
                raise TraceFormatError(f"{self._name}:{line_number}: bad JSON: {json_fault(error)}") from None
            except RecursionError:
                raise self.fault("bad JSON: nested too deeply") from None
            except ValueError as error:
                raise self.fault(f"bad JSON: {error}") from None
            if end < len(self._text) or not self._read_on():  # a number may go on in the next piece
                self._check_length(end - self._position)
                self._position = end
                return found

    def _check_length(self, num_letters: int) -> None:
        if num_letters > self._max_letters:
            raise self.fault(
                f"an element has more than {self._max_letters} letters; "
                "raise the limit with --max-line-bytes if it is meant to"
            )

    def _read_on(self) -> bool:
        """Drop what was passed over, and read about as much again as is left; False at the end."""
        left = len(self._text) - self._position
        self._check_length(left)
        self.line_number()
        parts = [self._text[self._position :]]
        num_read = 0
        is_end = False
        while num_read <= left and not is_end:
            chunk = next(self._chunks, b"")
            is_end = not chunk
            parts.append(self._decode(chunk))
            num_read += len(parts[-1])
        self._text = "".join(parts)
        self._position = self._counted = 0
        return num_read > 0

    def _decode(self, chunk: bytes) -> str:
        try:
            return self._decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            line_number = self._line_number + self._text.count("\n", self._position)
            line_number += chunk.count(b"\n", 0, error.start)
            raise TraceFormatError(f"{self._name}:{line_number}: a byte is not UTF-8") from None


def _as_row(element: object) -> Row | str:
    return element if isinstance(element, dict) else f"the element is {element!r:.80}, not an object"


def _refuse_constant(constant: str) -> object:
    raise ValueError(f"{constant} is not a number")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)
