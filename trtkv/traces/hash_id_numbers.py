"""HashIdNumbers: hash ids of rows as numbers whose tokens fit 32 bits."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import cast

from trtkv.common import MAX_INT32
from trtkv.errors import TraceFormatError
from trtkv.traces.fields import HashId, hash_ids


class HashIdNumbers:
    """Gives the ids of rows as int64 arrays whose tokens fit int32.

    As long as every id does so by the plain rule (token j of id h is block_size * h + j), ids stay as
    they are. At the first one that does not (negative, too large, a string) all ids, those of earlier
    rows too, become 0, 1, 2, ... in order of first appearance.
    """

    def __init__(self, block_size: int) -> None:
        self._num_plain_ids = (MAX_INT32 + 1) // block_size
        self._arrays: list[array[int]] = []
        self._dense: dict[HashId, int] | None = None

    def add(self, ids: list[object], name: str) -> array[int]:
        """The array of a row; it may change in place when a later row makes ids dense.

        Raises RowFaultError, which calls the ids ``name``, for what is not an id, and keeps nothing of the row then.
        """
        result = self._plain_array(ids)
        if result is None:
            result = self._densify(hash_ids({name: ids}, name))
        self._arrays.append(result)
        return result

    def _plain_array(self, ids: list[object]) -> array[int] | None:
        if self._dense is not None or not set(map(type, ids)) <= {int}:
            return None
        numbers = cast("list[int]", ids)
        fits = not numbers or (min(numbers) >= 0 and max(numbers) < self._num_plain_ids)
        return array("q", numbers) if fits else None

    def _densify(self, ids: list[HashId]) -> array[int]:
        if self._dense is None:
            self._dense = {}
            for earlier in self._arrays:
                earlier[:] = self._dense_array(self._dense, earlier)
        return self._dense_array(self._dense, ids)

    def _dense_array(self, dense: dict[HashId, int], ids: Iterable[HashId]) -> array[int]:
        result = array("q", [dense.setdefault(value, len(dense)) for value in ids])
        if len(dense) > self._num_plain_ids:
            raise TraceFormatError(
                f"the trace has more than {self._num_plain_ids} different hash ids, whose tokens do not fit "
                "32 bits at this block size; replay fewer rows (--limit)"
            )
        return result
