"""Keys of the multimodal items that overlap a block."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, cast

from trtkv.common import MAX_INT32
from trtkv.errors import InvalidInputError, check
from trtkv.keys.packed_key import MmKey
from trtkv.records.llm_request import MultimodalInput

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


def check_multimodal_input(mm: MultimodalInput) -> None:
    """Raise InvalidInputError unless every item has a place, so that its content becomes part of some key.

    The reference drops the keys of items without one, and then takes prompts with different images for the same.
    """
    for words in mm.hashes:
        _hash_bytes(words)
        if any(not -(2**31) <= word <= _MASK32 for word in words):
            raise InvalidInputError(
                f"a multimodal hash has words beyond 32 bits: {list(words)}; give 8 words of 32 bits"
            )
    if mm.hashes and not _has_valid_runs(mm):
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
