"""OldGeneration: where the cyclic garbage collector keeps what lives long; new objects can be put there at once."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import ClassVar, Final, TypeVar

T = TypeVar("T")

_FEWEST_MADE: Final = 100_000
"""Objects made between two full collections, at least."""


class OldGeneration:
    """Takes in objects that will live as long as the process, past the collector's young generations.

    The collector looks at every new object once per young generation, and at all objects again whenever their number
    has grown by a quarter. For hundreds of thousands of blocks, none of which is ever garbage, that costs several times
    what making them costs. Nothing is hidden from it: full collections look at these objects as at all others.

    The collector does not count what comes here, and starts counting anew each time, so it would never find the blocks
    of caches that are given up one after the other. A full collection is therefore made here whenever as many objects
    were made as were alive after the last one.
    """

    __slots__ = ("_is_usable",)

    _num_made: ClassVar[int] = 0  # by all of this class, since its last full collection
    _num_alive: ClassVar[int] = 0  # after that collection

    def __init__(self) -> None:
        self._is_usable = True

    def fill(self, make: Callable[[], list[T]]) -> list[T]:
        """What ``make`` returns; it and all it made are in the oldest generation afterwards.

        So is everything else that is alive, for the collector has no way to move single objects; what was garbage in
        the young generations is collected first. Where the collector is off, or somebody uses ``gc.freeze()``, which
        moving objects would undo, ``make`` is called and nothing else happens.
        """
        if not gc.isenabled() or not self._is_usable:
            return make()
        self._collect()
        try:
            gc.disable()
            made = make()
            self._is_usable = gc.get_freeze_count() == 0  # not asked again: counting walks all frozen objects
            if self._is_usable:
                OldGeneration._num_made += len(made)
                gc.freeze()
                gc.unfreeze()
        finally:
            gc.enable()
        return made

    @staticmethod
    def _collect() -> None:
        if OldGeneration._num_made < max(_FEWEST_MADE, OldGeneration._num_alive):
            gc.collect(1)
            return
        gc.collect()
        OldGeneration._num_made = 0
        OldGeneration._num_alive = len(gc.get_objects(2))
