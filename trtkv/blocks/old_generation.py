"""OldGeneration: where the cyclic garbage collector keeps what lives long; new objects can be put there at once."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_FEW: Final = 16_384
"""So many objects of one owner are made in the usual way."""
_GROWTH: Final = 8
"""By what factor the objects of one owner grow between two full collections."""


class OldGeneration:
    """Takes in the objects of one owner that live as long as it does, past the collector's young generations.

    The collector looks at every new object once per young generation, and at all objects again whenever their number
    has grown by a quarter. For hundreds of thousands of blocks, none of which is garbage before all are, that costs
    several times what making them costs. Nothing is hidden from it: full collections look at these objects as at all
    others. But it does not count what comes here, and starts counting anew each time, so full collections are made
    here too: when the objects stop being few, which frees those of owners that were given up, and with their growth.
    """

    __slots__ = ("_is_usable", "_num_made", "_num_made_at_next")

    def __init__(self) -> None:
        self._is_usable = True
        self._num_made = 0
        self._num_made_at_next = _FEW

    def fill(self, count: int, make: Callable[[], list[T]]) -> list[T]:
        """What ``make`` returns, about ``count`` objects; unless they are few, all it made are old afterwards.

        So is everything else that is alive, for the collector has no way to move single objects; what was garbage in
        the young generations is collected first. Where the collector is off, or ``gc.freeze()`` is in use, which
        moving objects would undo, ``make`` is called and nothing else happens.
        """
        self._num_made += count
        if not gc.isenabled():
            return make()
        is_moved = self._num_made > _FEW and self._is_usable
        if is_moved and self._num_made > self._num_made_at_next:
            self._num_made_at_next = _GROWTH * self._num_made
            gc.collect()
        elif is_moved:
            gc.collect(1)
        gc.disable()  # for few objects too: a finalizer must not ask for some while they are made
        try:
            made = make()
            if is_moved:
                self._is_usable = gc.get_freeze_count() == 0  # not asked again: counting walks all frozen objects
                if self._is_usable:
                    gc.freeze()
                    gc.unfreeze()
        finally:
            gc.enable()
        return made
