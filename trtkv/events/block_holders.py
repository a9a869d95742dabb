"""BlockHolders: which of many holders have a block, by hash."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence


class BlockHolders:
    """Hash -> holders, as a bit mask, of one window. Holders are small numbers from 0 on.

    A walk over a prompt looks up each hash once, for all holders together. A holder may have several blocks of one
    hash; it is forgotten for that hash when the last is gone.
    """

    __slots__ = ("_masks", "_more")

    def __init__(self) -> None:
        self._masks: dict[Hashable, int] = {}
        self._more: dict[tuple[int, Hashable], int] = {}  # blocks of one holder beyond the first of a hash

    def __len__(self) -> int:
        return len(self._masks)

    def has(self, holder: int, block_hash: Hashable) -> bool:
        """Whether a holder has a block of this hash."""
        return bool(self._masks.get(block_hash, 0) >> holder & 1)

    def count(self, holder: int) -> int:
        """Hashes of a holder. Walks over all."""
        return sum(mask >> holder & 1 for mask in self._masks.values())

    def put(self, holder: int, block_hashes: Iterable[Hashable]) -> None:
        """A holder got one block of each hash. A hot loop."""
        masks, bit = self._masks, 1 << holder
        get = masks.get
        for block_hash in block_hashes:
            mask = get(block_hash, 0)
            if mask & bit:
                self._more[holder, block_hash] = self._more.get((holder, block_hash), 0) + 1
            else:
                masks[block_hash] = mask | bit

    def discard(self, holder: int, block_hashes: Iterable[Hashable]) -> int:
        """A holder lost one block of each hash; returns how many of them it did not have. A hot loop."""
        masks, more, bit = self._masks, self._more, 1 << holder
        num_unknown = 0
        for block_hash in block_hashes:
            mask = masks.get(block_hash, 0)
            if not mask & bit:
                num_unknown += 1
            elif more and (holder, block_hash) in more:
                self._drop_one(holder, block_hash)
            elif mask == bit:
                del masks[block_hash]
            else:
                masks[block_hash] = mask ^ bit
        return num_unknown

    def _drop_one(self, holder: int, block_hash: Hashable) -> None:
        self._more[holder, block_hash] -= 1
        if not self._more[holder, block_hash]:
            del self._more[holder, block_hash]

    def clear(self, holder: int) -> None:
        """A holder has nothing any more. Walks over all hashes."""
        bit = 1 << holder
        for block_hash in [block_hash for block_hash, mask in self._masks.items() if mask & bit]:
            self._masks[block_hash] ^= bit
            if not self._masks[block_hash]:
                del self._masks[block_hash]
        for name in [name for name in self._more if name[0] == holder]:
            del self._more[name]

    def masks_of(self, block_hashes: Iterable[Hashable]) -> list[int]:
        """Who has each of these blocks: bit n for holder n."""
        get = self._masks.get
        return [get(block_hash, 0) for block_hash in block_hashes]

    def count_prefixes(self, block_hashes: Sequence[Hashable]) -> dict[int, int]:
        """Holder -> leading blocks that it has of a chain; those that lack the first are left out. A hot loop."""
        found: dict[int, int] = {}
        if not block_hashes:
            return found
        get = self._masks.get
        alive = get(block_hashes[0], 0)
        for count, block_hash in enumerate(block_hashes):
            mask = get(block_hash, 0)
            if alive & mask != alive:
                _note(found, alive & ~mask, count)
                alive &= mask
                if not alive:
                    return found
        _note(found, alive, len(block_hashes))
        return found


def _note(found: dict[int, int], mask: int, count: int) -> None:
    while mask:
        low = mask & -mask
        found[low.bit_length() - 1] = count
        mask ^= low
