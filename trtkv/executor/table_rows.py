"""TableRows: which rows of the offset table belong to which request."""

from __future__ import annotations

from trtkv.errors import check
from trtkv.executor.active_request import ActiveRequest


class TableRows:
    """Hands out rows, one per beam, for as long as a request has a sequence."""

    def __init__(self, num_rows: int) -> None:
        self._free = list(reversed(range(num_rows)))

    def take(self, entry: ActiveRequest) -> None:
        """Give a request its rows, if it has none."""
        if not entry.rows:
            check(len(self._free) >= entry.request.beam_width, "more beams have sequences than the table has rows")
            entry.rows = [self._free.pop() for _ in range(entry.request.beam_width)]

    def give_back(self, entry: ActiveRequest) -> None:
        """Take the rows of a request back; their entries stay until the next owner writes them."""
        self._free += reversed(entry.rows)
        entry.rows = []
