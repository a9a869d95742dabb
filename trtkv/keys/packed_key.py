"""Packed keys: what makes two blocks of tokens the same, in the form that the tree keeps.

Hashing and comparing packed keys runs in C: the plain case is the bytes of the block's little-endian int32 tokens, any
constraint (extra ids, LoRA id, salt, multimodal content) turns it into a tuple that starts with those bytes. Full
blocks may be kept as something smaller: consecutive tokens as a range, any tokens as a digest, which is a number.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple, TypeAlias

from trtkv.errors import InvalidInputError


class MmKey(NamedTuple):
    """Part of a multimodal item inside a block: content hash, first overlapping token of the item, name.

    The form of recorded keys, which do not say where in the block it is.
    """

    hash: bytes
    start_offset: int
    uuid: str | None


class PlacedMmKey(NamedTuple):
    """An MmKey with its place: the first token of the block that belongs to the item, and how many do."""

    hash: bytes
    start_offset: int
    uuid: str | None
    first_token: int
    num_tokens: int


MmItem: TypeAlias = "MmKey | PlacedMmKey"

ConstrainedKey: TypeAlias = "tuple[bytes, bytes | None, int | None, str | None, tuple[MmItem, ...]]"
"""Token bytes, extra-id bytes (None: not used), LoRA id, salt, multimodal keys."""

PackedKey: TypeAlias = "bytes | range | int | ConstrainedKey"
"""Tokens, consecutive tokens, a digest (see ``digest_tokens``), or tokens under constraints."""

DIGEST_BYTES: Final = 16
DIGEST_BITS: Final = 8 * DIGEST_BYTES
"""Bits of a digest; those above them count its tokens, which may be any number."""

EMPTY_KEY: Final = b""


def token_bytes(key: PackedKey) -> bytes:
    """Little-endian int32 tokens of a packed key. InvalidInputError for a digest, which does not tell them."""
    if key.__class__ is bytes:
        return key
    if isinstance(key, int):
        raise InvalidInputError(
            f"{describe_key(key)} does not tell its tokens, which hashes, events and partial matches need; "
            "construct the manager with key_form=KeyForm.TOKENS"
        )
    return key[0] if isinstance(key, tuple) else array("i", key).tobytes()


def num_key_tokens(key: PackedKey) -> int:
    """Tokens in a packed key."""
    if key.__class__ is bytes:
        return len(key) >> 2
    if isinstance(key, int):
        return key >> DIGEST_BITS
    return len(key[0]) >> 2 if isinstance(key, tuple) else len(key)


def describe_key(key: PackedKey) -> str:
    """A key for a reader: its tokens, or the beginning of its digest."""
    if isinstance(key, int):
        return f"digest {key & (1 << DIGEST_BITS) - 1:032x}"[:15] if key else "a digest"
    return " ".join(map(str, array("i", token_bytes(key))))


def first_token_of(key: PackedKey) -> object:
    """Everything two keys must share before a partial match is possible: constraints and first token."""
    if isinstance(key, int):
        return key
    if isinstance(key, (bytes, range)):
        return token_bytes(key[:1]) if isinstance(key, range) else key[:4]
    tokens, extra_ids, *constraints = key
    return (tokens[:4], None if extra_ids is None else extra_ids[:8], *constraints)


def token_at(key: PackedKey, position: int) -> bytes | None:
    """The token at a position of a plain key, empty after the last; None for a constrained key or a digest."""
    if isinstance(key, (tuple, int)):
        return None
    return token_bytes(key[position : position + 1]) if isinstance(key, range) else key[4 * position : 4 * position + 4]


def num_matching_tokens(key: PackedKey, other: PackedKey) -> int:
    """Leading tokens two keys share; 0 unless all their constraints are equal. C++: BlockKey::numMatchingTokens."""
    if isinstance(key, int) or isinstance(other, int):
        return num_key_tokens(key) if key == other else 0
    if isinstance(key, (bytes, range)) and isinstance(other, (bytes, range)):
        return _common_units(token_bytes(key), token_bytes(other), 4)
    if isinstance(key, (bytes, range)) or isinstance(other, (bytes, range)) or key[2:] != other[2:]:
        return 0
    if (key[1] is None) != (other[1] is None):
        return 0
    matched = _common_units(key[0], other[0], 4)
    if key[1] is not None and other[1] is not None:
        matched = min(matched, _common_units(key[1], other[1], 8))
    return matched


def _common_units(left: bytes, right: bytes, width: int) -> int:
    """Leading units of ``width`` bytes that are equal; one big-integer XOR instead of a loop over tokens."""
    size = min(len(left), len(right))
    difference = int.from_bytes(left[:size], "little") ^ int.from_bytes(right[:size], "little")
    if not difference:
        return size // width
    return ((difference & -difference).bit_length() - 1) // (8 * width)


def supports_partial_matching(key: PackedKey) -> bool:
    """Multimodal blocks and digests match as a whole or not at all. C++: BlockKey::supportsPartialMatching."""
    return isinstance(key, (bytes, range)) or (not isinstance(key, int) and not key[4])


def pack_key(
    tokens: bytes,
    extra_ids: bytes | None,
    lora_task_id: int | None,
    cache_salt: str | None,
    extra_keys: tuple[MmItem, ...],
) -> PackedKey:
    """Tokens alone when nothing constrains them, else the tuple."""
    if extra_ids is None and lora_task_id is None and cache_salt is None and not extra_keys:
        return tokens
    return (tokens, extra_ids, lora_task_id, cache_salt, extra_keys)
