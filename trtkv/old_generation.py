"""OldGeneration: where the cyclic garbage collector keeps what lives long; new objects can be put there at once."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class OldGeneration:
    """Takes in objects that will live as long as the process, past the collector's young generations.

    The collector looks at every new object once per young generation, and at all objects again whenever their number
    has grown by a quarter. For hundreds of thousands of blocks, none of which is ever garbage, that costs several times
    what making them costs. Nothing is hidden from it: full collections look at these objects as at all others.
    """

    __slots__ = ("_is_usable",)

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
        gc.collect(1)
        gc.disable()
        try:
            made = make()
            self._is_usable = gc.get_freeze_count() == 0  # not asked again: counting walks all frozen objects
            if self._is_usable:
                gc.freeze()
                gc.unfreeze()
        finally:
            gc.enable()
        return made
