"""The 64-bit hash that events carry: of a key, chained to that of the keys before it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from trtkv.keys.packed_key import PackedKey, PlacedMmKey, num_key_tokens, token_bytes
from trtkv.keys.recorded_name import RecordedName

if TYPE_CHECKING:
    from trtkv.keys.compiled_hash import CompiledHash

_MASK64: Final = (1 << 64) - 1
_MASK32: Final = (1 << 32) - 1
_PARENT_FACTOR: Final = 0xBF58476D1CE4E5B9
_GOLDEN: Final = 0x9E3779B9


def hash_salt(cache_salt: str) -> int:
    """64-bit hash of a salt or a name: MurmurHash64A with the seed of the C++ standard library of the reference."""
    data = cache_salt.encode("utf-8", "surrogatepass")
    factor = 0xC6A4A7935BD1E995
    value = 0xC70F6907 ^ (len(data) * factor & _MASK64)
    for start in range(0, len(data) & ~7, 8):
        word = int.from_bytes(data[start : start + 8], "little") * factor & _MASK64
        value = (value ^ ((word ^ word >> 47) * factor & _MASK64)) * factor & _MASK64
    if len(data) & 7:
        value = (value ^ int.from_bytes(data[len(data) & ~7 :], "little")) * factor & _MASK64
    value = (value ^ value >> 47) * factor & _MASK64
    return value ^ value >> 47


def _mix64(value: int, seed: int) -> int:
    value &= _MASK64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK64
    value ^= value >> 31
    return (seed ^ (value + _GOLDEN + (seed << 6) + (seed >> 2))) & _MASK64


def _mix32(value: int, seed: int) -> int:
    value = (value >> 16 ^ value) * 0x45D9F3B & _MASK32
    value = (value >> 16 ^ value) * 0x45D9F3B & _MASK32
    value = value >> 16 ^ value
    return (seed ^ ((value + _GOLDEN & _MASK32) + (seed << 6) + (seed >> 2))) & _MASK64


def mix_tokens_plainly(tokens: bytes, seed: int) -> int:
    """Mix int32 tokens into a seed one after the other: what the compiled form of ``mix_tokens`` computes."""
    for token in array("I", tokens):
        seed = _mix32(token, seed)
    return seed


def mix_tokens(tokens: bytes, seed: int) -> int:
    """Mix int32 tokens into a seed; compiled where Numba is installed (extra ``fast``)."""
    compiled = load_compiled_hash()
    return mix_tokens_plainly(tokens, seed) if compiled is None else compiled.mix(tokens, seed)


@cache
def load_compiled_hash() -> CompiledHash | None:
    """The compiled loops, or None without Numba; compiling takes about a second, once in a process."""
    if find_spec("numba") is None:
        return None
    from trtkv.keys.compiled_hash import compile_hash

    return compile_hash()


def hash_block_key(key: PackedKey, parent_hash: int = 0) -> int:
    """64-bit hash of a packed key, chained to the hash of its parent (0 for the first block); none of a digest.

    The salt counts only where the parent hash is 0. Place and name of a multimodal item count, except in recorded
    keys (no place, a ``RecordedName``): the reference leaves them out, so that different blocks share a hash.
    C++: BlockKeyHasher::hash.
    """
    data = token_bytes(key)
    seed = len(data) >> 2 ^ (parent_hash * _PARENT_FACTOR & _MASK64)
    if isinstance(key, (bytes, range, int)):
        return mix_tokens(data, seed)
    tokens = array("I", data)
    _, extra_ids, lora_task_id, cache_salt, extra_keys = key
    if parent_hash == 0 and cache_salt is not None:
        seed = _mix64(hash_salt(cache_salt), seed)
    extras = None if extra_ids is None else array("Q", extra_ids)
    for index, token in enumerate(tokens):
        seed = _mix32(token, seed)
        if extras is not None:
            seed = _mix64(extras[index], seed)
    if lora_task_id is not None:
        seed = _mix64(lora_task_id, seed)
    for mm_key in extra_keys:
        for word in array("I", mm_key.hash):
            seed = _mix32(word, seed)
        seed = _mix64(mm_key.start_offset, seed)
        if isinstance(mm_key, PlacedMmKey):
            seed = _mix64(mm_key.num_tokens, _mix64(mm_key.first_token, seed))
        if mm_key.uuid is not None and not isinstance(mm_key.uuid, RecordedName):
            seed = _mix64(hash_salt(mm_key.uuid), seed)
    return seed


def hash_key_chain(keys: Sequence[PackedKey], parent_hash: int = 0) -> list[int]:
    """``hash_block_key`` of each key, chained to that of the key before it, the first to ``parent_hash``."""
    compiled = load_compiled_hash()
    if compiled is not None and len(keys) > 1 and not any(isinstance(key, tuple) for key in keys):
        return compiled.chain(b"".join(map(token_bytes, keys)), [num_key_tokens(key) for key in keys], parent_hash)
    hashes = []
    for key in keys:
        parent_hash = hash_block_key(key, parent_hash)
        hashes.append(parent_hash)
    return hashes


def hash_keys_alone(keys: Sequence[PackedKey]) -> list[int]:
    """``hash_block_key`` of each key without a parent; many plain keys of one length are hashed side by side."""
    hashes = [0] * len(keys)
    by_length: dict[int, list[int]] = {}
    for index, key in enumerate(keys):
        if isinstance(key, tuple):
            hashes[index] = hash_block_key(key)
        else:
            by_length.setdefault(num_key_tokens(key), []).append(index)
    for num_tokens, indexes in by_length.items():
        for start in range(0, len(indexes), _HASHED_TOGETHER):
            part = indexes[start : start + _HASHED_TOGETHER]
            rows = [token_bytes(keys[index]) for index in part]
            if len(part) < _FEW_KEYS or not num_tokens:
                values = [mix_tokens_plainly(row, num_tokens) for row in rows]
            else:
                values = _mix_rows(rows, num_tokens)
            for index, value in zip(part, values, strict=True):
                hashes[index] = value
    return hashes


_FEW_KEYS: Final = 16
"""Fewer keys are hashed one by one, without NumPy."""
_HASHED_TOGETHER: Final = 1024
"""Most keys hashed at once, which bounds the memory this takes."""


def _mix_rows(rows: Sequence[bytes], seed: int) -> list[int]:
    """``mix_tokens_plainly(row, seed)`` of rows of equal length, token by token for all of them."""
    import numpy as np

    values = np.frombuffer(b"".join(rows), dtype="<u4").reshape(len(rows), -1).T.copy()
    for _ in range(2):
        values = (values >> 16 ^ values) * np.uint32(0x45D9F3B)
    values = (values >> 16 ^ values) + np.uint32(_GOLDEN)
    seeds = np.full(len(rows), seed, dtype=np.uint64)
    six, two = np.uint64(6), np.uint64(2)
    for row in values:
        seeds ^= row + (seeds << six) + (seeds >> two)
    return [int(value) for value in seeds]


HashLink: TypeAlias = "tuple[PackedKey, object]"
"""A chain hash not computed yet: a key and the hash of its predecessor at that moment, an int or a HashLink in turn.

A link never changes what it stands for, so a stale hash keeps the value it had. Tuples are used because one
is made for every block, and the garbage collector stops tracking them.
"""
NO_HASH: Final[HashLink] = (0, 0)
"""The link of every digest: resolving it is refused, as for all that is chained to it."""


def link_hash(key: PackedKey, parent: HashLink | int) -> HashLink:
    """The link of a key behind a parent."""
    return NO_HASH if key.__class__ is int else (key, parent)


def resolve_hash(link: HashLink | int) -> int:
    """The hash that a link stands for; walks back to the nearest number, without recursion."""
    keys: list[PackedKey] = []
    rest: Any = link
    while isinstance(rest, tuple):
        keys.append(rest[0])
        rest = rest[1]
    value: int = rest
    return hash_key_chain(keys[::-1], value)[-1] if keys else value
