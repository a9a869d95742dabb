"""Admission filters: which missing blocks may enter the cache at all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, Protocol

from trtkv.errors import ConfigurationError


class Admission(Protocol):
    """Decides, block by block, whether a missing block enters. A refused block refuses all after it in its prompt."""

    def asked(self, keys: Sequence[Hashable]) -> None:
        """A request asks for these blocks, found or not."""

    def admits(self, key: Hashable, victim: Hashable | None) -> bool:
        """Whether a missing block may enter; ``victim`` would go for it, None if there is room. Changes nothing."""

    def finished(self, keys: Sequence[Hashable]) -> None:
        """The request that asked for these blocks is over."""


class AdmitAll:
    """Every block enters."""

    def asked(self, keys: Sequence[Hashable]) -> None:
        """Nothing to note."""

    def admits(self, key: Hashable, victim: Hashable | None) -> bool:
        """Always."""
        return True

    def finished(self, keys: Sequence[Hashable]) -> None:
        """Nothing to note."""


class SecondUse:
    """A block enters if an earlier request asked for it. vLLM's offload filter does so over a bounded memory."""

    def __init__(self) -> None:
        self._seen: set[Hashable] = set()

    def asked(self, keys: Sequence[Hashable]) -> None:
        """Counts only once the request is over."""

    def admits(self, key: Hashable, victim: Hashable | None) -> bool:
        """Whether the block was asked for before."""
        return key in self._seen

    def finished(self, keys: Sequence[Hashable]) -> None:
        """Remember the blocks."""
        self._seen.update(keys)


class TinyLfu:
    """TinyLFU (Einziger et al., 2017): a block enters a full cache only if it is asked for more often than the victim.

    All counts are halved when ``10 x capacity`` look-ups were counted. Exact counts instead of a sketch.
    """

    def __init__(self, capacity: int) -> None:
        self._counts: dict[Hashable, int] = {}
        self._num_counted = 0
        self._limit = 10 * capacity

    def asked(self, keys: Sequence[Hashable]) -> None:
        """Count each block once."""
        for key in keys:
            self._counts[key] = self._counts.get(key, 0) + 1
            self._num_counted += 1
            if self._num_counted >= self._limit:
                self._counts = {key: count // 2 for key, count in self._counts.items() if count > 1}
                self._num_counted //= 2

    def admits(self, key: Hashable, victim: Hashable | None) -> bool:
        """Whether there is room, or the block is asked for more often than the victim."""
        return victim is None or self._counts.get(key, 0) > self._counts.get(victim, 0)

    def finished(self, keys: Sequence[Hashable]) -> None:
        """Nothing to note."""


ADMISSIONS: Final[Mapping[str, Callable[[int], Admission]]] = {
    "all": lambda capacity: AdmitAll(),
    "second-use": lambda capacity: SecondUse(),
    "tinylfu": TinyLfu,
}


def make_admission(name: str, capacity: int) -> Admission:
    """The filter of a name, for a cache of ``capacity`` blocks."""
    if name not in ADMISSIONS:
        raise ConfigurationError(f"admission filter {name!r} is not known; choose from {', '.join(ADMISSIONS)}")
    return ADMISSIONS[name](capacity)
