"""Keys of the multimodal items that overlap a block."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Final, cast

from trtkv.common import MAX_INT32
from trtkv.errors import InvalidInputError, check
from trtkv.keys.packed_key import MmKey, PlacedMmKey
from trtkv.records.llm_request import MultimodalInput, check_encodable

_MASK32: Final = (1 << 32) - 1


def generate_block_hash_extra_keys(mm: MultimodalInput, start_token_idx: int, end_token_idx: int) -> list[MmKey]:
    """Multimodal keys of the block [start, end). C++: generateBlockHashExtraKeys.

    Complete and well-formed run data decide; otherwise positions and lengths do, if there are as many as items. One
    item without a proper place leaves the request without any such key; ``check_multimodal_input`` refuses it.
    """
    if _has_valid_runs(mm):
        return _run_keys(mm, start_token_idx, end_token_idx)
    positions, lengths = mm.positions, mm.lengths
    if not positions or not lengths or not len(mm.hashes) == len(positions) == len(lengths):
        return []
    if not _are_valid_runs(positions, lengths):
        return []
    return [
        MmKey(_hash_bytes(mm.hashes[item]), max(0, start_token_idx - position), _uuid(mm, item))
        for item, (position, length) in enumerate(zip(positions, lengths, strict=True))
        if end_token_idx > position and start_token_idx < position + length
    ]


def generate_placed_keys(mm: MultimodalInput, start_token_idx: int, end_token_idx: int) -> tuple[PlacedMmKey, ...]:
    """``generate_block_hash_extra_keys`` with the place of each item in the block.

    Without it an image that begins one token later, before or after equal placeholder tokens, has the same key.
    """
    return tuple(
        PlacedMmKey(
            _hash_bytes(mm.hashes[item]),
            item_offset + max(start_token_idx, begin) - begin,
            _uuid(mm, item),
            max(0, begin - start_token_idx),
            min(end, end_token_idx) - max(begin, start_token_idx),
        )
        for item, item_offset, begin, end in _list_runs(mm)
        if end_token_idx > begin and start_token_idx < end
    )


def _list_runs(mm: MultimodalInput) -> Iterator[tuple[int, int, int, int]]:
    """Item, offset in the item, first and last + 1 token of each run; of well-formed input only."""
    if _has_valid_runs(mm):
        offsets = cast("Sequence[int]", mm.item_run_cu_offsets)
        positions, lengths = cast("Sequence[int]", mm.run_positions), cast("Sequence[int]", mm.run_lengths)
        for item in range(len(mm.hashes)):
            item_offset = 0
            for run in range(offsets[item], offsets[item + 1]):
                yield item, item_offset, int(positions[run]), int(positions[run] + lengths[run])
                item_offset += int(lengths[run])
        return
    positions, lengths = mm.positions or (), mm.lengths or ()
    if len(positions) == len(lengths) == len(mm.hashes) and _are_valid_runs(positions, lengths):
        for item, (position, length) in enumerate(zip(positions, lengths, strict=True)):
            yield item, 0, int(position), int(position + length)


def check_multimodal_input(mm: MultimodalInput, num_tokens: int | None = None) -> None:
    """Raise InvalidInputError unless every item has a place, so that its content becomes part of some key.

    The reference drops the keys of items without one, and then takes prompts with different images for the same.
    ``num_tokens``: length of the prompt, in which all items must begin.
    """
    check_multimodal_types(mm)
    if mm.uuids is not None and len(mm.uuids) > len(mm.hashes):
        raise InvalidInputError(f"{len(mm.uuids)} names for {len(mm.hashes)} multimodal items; give one per item")
    if not mm.hashes:
        return
    if not _has_valid_runs(mm):
        counts = [None if values is None else len(values) for values in (mm.positions, mm.lengths)]
        if counts != [len(mm.hashes)] * 2:
            raise InvalidInputError(
                f"{len(mm.hashes)} multimodal items have {counts[0]} positions and {counts[1]} lengths; "
                "give one of each per item"
            )
        for item, (position, length) in enumerate(zip(mm.positions or (), mm.lengths or (), strict=True)):
            if not _are_valid_runs((position,), (length,)):
                raise InvalidInputError(
                    f"multimodal item {item} has position {position} and length {length}; give a position from 0, a "
                    f"length from 1 and an end of at most {MAX_INT32}"
                )
    _check_places(mm, num_tokens)


def _check_places(mm: MultimodalInput, num_tokens: int | None) -> None:
    """Raise unless each item has a run, and all runs begin in the prompt."""
    runs = list(_list_runs(mm))
    missing = sorted(set(range(len(mm.hashes))) - {item for item, *_ in runs})
    if missing:
        raise InvalidInputError(f"multimodal item {missing[0]} has no runs; give each item at least one")
    for item, _, begin, _ in runs:
        if num_tokens is not None and begin >= num_tokens:
            raise InvalidInputError(
                f"multimodal item {item} begins at token {begin}, the prompt has {num_tokens}; "
                "give places inside the prompt"
            )


def check_multimodal_types(mm: MultimodalInput) -> None:
    """Raise InvalidInputError unless hashes, places and names are of types that keys can be made of."""
    if not isinstance(mm, MultimodalInput):
        raise InvalidInputError(f"multimodal_input is {mm!r}; give a MultimodalInput")
    if not _is_list(mm.hashes) or not all(_is_list(words) for words in mm.hashes):
        raise InvalidInputError(f"multimodal hashes are {mm.hashes!r}; give a list of 8 words of 32 bits per item")
    for words in mm.hashes:
        _check_integers("words of a hash", words)
        _hash_bytes(words)
        if any(not -(2**31) <= word <= _MASK32 for word in words):
            raise InvalidInputError(
                f"a multimodal hash has words beyond 32 bits: {list(words)}; give 8 words of 32 bits"
            )
    for name in ("positions", "lengths", "item_run_cu_offsets", "run_positions", "run_lengths"):
        values = getattr(mm, name)
        if values is not None:
            _check_integers(name, values)
    if mm.uuids is not None:
        if not _is_list(mm.uuids):
            raise InvalidInputError(f"multimodal uuids are {mm.uuids!r}; give a list with a text or None per item")
        for uuid in mm.uuids:
            if uuid is not None:
                check_encodable("a name of a multimodal item", uuid)


def _is_list(values: object) -> bool:
    """Whether something can be counted and indexed, and is not a text."""
    return hasattr(values, "__len__") and hasattr(values, "__getitem__") and not isinstance(values, (str, bytes, dict))


def _check_integers(name: str, values: Sequence[int]) -> None:
    try:
        if _is_list(values):
            for value in values:
                operator.index(value)
            return
    except TypeError:
        pass
    raise InvalidInputError(f"multimodal {name} are {values!r}; give a list of integers")


def _has_valid_runs(mm: MultimodalInput) -> bool:
    offsets, positions, lengths = mm.item_run_cu_offsets, mm.run_positions, mm.run_lengths
    if not mm.hashes or offsets is None or positions is None or lengths is None:
        return False
    return (
        len(offsets) == len(mm.hashes) + 1
        and offsets[0] == 0
        and offsets[-1] == len(positions) == len(lengths)
        and all(begin <= end for begin, end in itertools.pairwise(offsets))
        and _are_valid_runs(positions, lengths)
    )


def _are_valid_runs(positions: Sequence[int], lengths: Sequence[int]) -> bool:
    """Whether each run begins at a token, has tokens, and ends at a number of 32 bits."""
    return all(
        position >= 0 and length > 0 and position + length <= MAX_INT32
        for position, length in zip(positions, lengths, strict=True)
    )


def _run_keys(mm: MultimodalInput, start_token_idx: int, end_token_idx: int) -> list[MmKey]:
    offsets = cast("Sequence[int]", mm.item_run_cu_offsets)
    positions = cast("Sequence[int]", mm.run_positions)
    lengths = cast("Sequence[int]", mm.run_lengths)
    result = []
    for item, content in enumerate(mm.hashes):
        item_offset = 0
        for run in range(offsets[item], offsets[item + 1]):
            begin, end = positions[run], positions[run] + lengths[run]
            if end_token_idx > begin and start_token_idx < end:
                offset = item_offset + max(start_token_idx, begin) - begin
                result.append(MmKey(_hash_bytes(content), offset, _uuid(mm, item)))
            item_offset += lengths[run]
    return result


def _uuid(mm: MultimodalInput, item: int) -> str | None:
    return mm.uuids[item] if mm.uuids is not None and item < len(mm.uuids) else None


def _hash_bytes(words: Sequence[int]) -> bytes:
    if len(words) != 8:
        raise InvalidInputError(f"a multimodal hash has {len(words)} words; give 8 words of 32 bits")
    result = b"".join((word & _MASK32).to_bytes(4, "big") for word in words)
    check(len(result) == 32, "a multimodal hash must have 32 bytes")
    return result
