"""CSV files that hold lengths only: good for sizes and times, useless for hit rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from trtkv.errors import InvalidInputError
from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, numbered
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.rows import Row, RowFaultError
from trtkv.traces.trace import TraceRequest
from trtkv.traces.trace_format import TraceFormat

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class NoTokens:
    """Stands for a prompt of which only the length is known."""

    __slots__ = ()

    has_consecutive_tokens = False

    def expand(self, num_tokens: int) -> NDArray[np.int32]:
        """Raises InvalidInputError: nothing is known about the tokens."""
        refuse_hit_rates("the trace")


def refuse_hit_rates(name: str) -> NoReturn:
    """Raise InvalidInputError saying why lengths cannot give a hit rate."""
    raise InvalidInputError(
        f"{name} holds lengths only: nothing says which prompts share a prefix, so a hit rate from it would be 0 by "
        "construction; --scheduler replays lengths for queueing, memory and times, and hit rates need a trace with "
        "token ids or hash ids (trtkv trace info shows what this one has)"
    )


def length_format(name: str, columns: tuple[str, str, str]) -> TraceFormat:
    """A format of CSV files with these columns for the time in seconds, the prompt tokens and the output tokens.

    Requests are read by arrival, equal times in file order; other columns are not used.
    """
    time_column, input_column, output_column = columns

    def convert(row: Row) -> Arrival:
        timestamp = fields.seconds_of(fields.text(row, time_column), time_column)
        input_length = _count(row, input_column, 1)
        output_length = _count(row, output_column, 0)
        fields.check_total_length(input_length, output_length)
        return Arrival(timestamp, input_length, output_length, NoTokens())

    def read(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
        return numbered(rows.records(convert), by_time=True)

    return TraceFormat(name, "lengths only", read, keys=columns, seconds_per_unit=1.0, has_tokens=False)


def _count(row: Row, key: str, minimum: int) -> int:
    written = fields.text(row, key).strip()
    if not (written.isascii() and written.isdigit()):
        raise RowFaultError(f"{key} is {written!r:.80}, not an integer")
    count = int(written)
    if count < minimum:
        raise RowFaultError(f"{key} is {count}, less than {minimum}")
    return count
