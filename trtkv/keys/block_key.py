"""Block keys: what makes two blocks of tokens the same, and the 64-bit hash that events carry.

Inside the tree a key is *packed* so that hashing and comparing run in C: the plain case is the bytes of
the block's little-endian int32 tokens, any constraint (extra ids, LoRA id, salt, multimodal content)
turns it into a tuple that starts with those bytes. Full blocks may be kept as something smaller: consecutive tokens
as a range, any tokens as a digest, which is a number.
One builder serves admission, probes, storing and events.
"""

from __future__ import annotations

import itertools
import operator
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from trtkv.common import MAX_INT32, KeyForm
from trtkv.errors import InvalidInputError, check
from trtkv.records.llm_request import LlmRequest, MultimodalInput, to_extra_id_array, to_token_array

if TYPE_CHECKING:
    from trtkv.keys.compiled_hash import CompiledHash

_MASK64: Final = (1 << 64) - 1
_MASK32: Final = (1 << 32) - 1
_PARENT_FACTOR: Final = 0xBF58476D1CE4E5B9
_GOLDEN: Final = 0x9E3779B9

T = TypeVar("T")


class MmKey(NamedTuple):
    """Part of a multimodal item inside a block: content hash, first overlapping token of the item, name."""

    hash: bytes
    start_offset: int
    uuid: str | None


ConstrainedKey: TypeAlias = "tuple[bytes, bytes | None, int | None, str | None, tuple[MmKey, ...]]"
"""Token bytes, extra-id bytes (None: not used), LoRA id, salt, multimodal keys."""

PackedKey: TypeAlias = "bytes | range | int | ConstrainedKey"
"""Tokens, consecutive tokens, a digest (see ``digest_tokens``), or tokens under constraints."""

_DIGEST_BYTES: Final = 16
_DIGEST_BITS: Final = 8 * _DIGEST_BYTES
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
        return key >> _DIGEST_BITS
    return len(key[0]) >> 2 if isinstance(key, tuple) else len(key)


def describe_key(key: PackedKey) -> str:
    """A key for a reader: its tokens, or the beginning of its digest."""
    if isinstance(key, int):
        return f"digest {key & (1 << _DIGEST_BITS) - 1:032x}"[:15] if key else "a digest"
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
    """The token at a position of a plain key, empty behind the last; None for a constrained key or a digest."""
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


@dataclass(frozen=True, slots=True)
class BlockKey:
    """Readable form of a key. C++: BlockKey. ``packed`` and ``unpack`` convert to and from the tree's form."""

    tokens: tuple[int, ...]
    extra_ids: tuple[int, ...] | None = None
    lora_task_id: int | None = None
    cache_salt: str | None = None
    extra_keys: tuple[MmKey, ...] = ()

    def __post_init__(self) -> None:
        if self.extra_ids is not None and len(self.extra_ids) != len(self.tokens):
            raise InvalidInputError(
                f"{len(self.extra_ids)} extra ids for {len(self.tokens)} tokens; give one per token"
            )

    @property
    def uses_extra_ids(self) -> bool:
        """Whether extra ids were given, even if all are 0."""
        return self.extra_ids is not None

    @property
    def packed(self) -> PackedKey:
        """The form kept in the tree."""
        extra = None if self.extra_ids is None else to_extra_id_array(self.extra_ids).tobytes()
        tokens = to_token_array(self.tokens).tobytes()
        return _pack(tokens, extra, self.lora_task_id, self.cache_salt, self.extra_keys)

    @classmethod
    def unpack(cls, key: PackedKey) -> BlockKey:
        """The readable form of a packed key. InvalidInputError for a digest."""
        tokens = tuple(array("i", token_bytes(key)))
        if isinstance(key, (bytes, range, int)):
            return cls(tokens)
        extra = None if key[1] is None else tuple(array("Q", key[1]))
        return cls(tokens, extra, key[2], key[3], key[4])

    @property
    def supports_partial_matching(self) -> bool:
        """Multimodal blocks match as a whole or not at all."""
        return not self.extra_keys

    def num_matching_tokens(self, other: BlockKey) -> int:
        """Leading tokens shared with another key; 0 unless all constraints are equal."""
        return num_matching_tokens(self.packed, other.packed)

    @property
    def num_tokens(self) -> int:
        """Tokens in the key."""
        return len(self.tokens)

    def shorten(self, new_num_tokens: int) -> BlockKey:
        """The key of the first tokens."""
        if not 0 <= new_num_tokens <= len(self.tokens) or self.extra_keys:
            raise InvalidInputError(
                f"cannot shorten a key of {len(self.tokens)} tokens to {new_num_tokens}; "
                "give 0 up to its length, and a key without multimodal content"
            )
        extra = None if self.extra_ids is None else self.extra_ids[:new_num_tokens]
        return replace(self, tokens=self.tokens[:new_num_tokens], extra_ids=extra)

    def hash(self, parent_hash: int = 0) -> int:
        """64-bit hash chained to the parent's. C++: BlockKeyHasher::hash."""
        return hash_block_key(self.packed, parent_hash)


def _pack(
    tokens: bytes,
    extra_ids: bytes | None,
    lora_task_id: int | None,
    cache_salt: str | None,
    extra_keys: tuple[MmKey, ...],
) -> PackedKey:
    if extra_ids is None and lora_task_id is None and cache_salt is None and not extra_keys:
        return tokens
    return (tokens, extra_ids, lora_task_id, cache_salt, extra_keys)


# -- hash -------------------------------------------------------------------------------------------


def hash_salt(cache_salt: str) -> int:
    """64-bit hash of a salt string: MurmurHash64A with the seed of the C++ standard library used by the reference."""
    data = cache_salt.encode()
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

    The salt counts only where the parent hash is 0. C++: BlockKeyHasher::hash.
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


# -- building keys ------------------------------------------------------------------------------------


def chop_vector_into_blocks(
    vec: Sequence[T], usable_size: int, elements_per_block: int, allow_partial: bool
) -> list[Sequence[T]]:
    """Cut the first ``usable_size`` elements into blocks; the last may be shorter if allowed."""
    if usable_size <= 0:
        return []
    if usable_size > len(vec):
        raise InvalidInputError(f"usable size {usable_size} exceeds the {len(vec)} elements given")
    end = usable_size if allow_partial else usable_size - usable_size % elements_per_block
    return [vec[start : min(start + elements_per_block, end)] for start in range(0, end, elements_per_block)]


class _BlockKeyCache:
    """Keys of the full blocks of beam 0, so that admission, storing and removal build each key once."""

    __slots__ = ("key_form", "keys", "tokens_per_block")

    def __init__(self, tokens_per_block: int, key_form: KeyForm) -> None:
        self.tokens_per_block = tokens_per_block
        self.key_form = key_form
        self.keys: list[PackedKey] = []


def build_block_keys(
    request: LlmRequest,
    tokens_per_block: int,
    usable_size: int,
    allow_partial: bool,
    key_form: KeyForm = KeyForm.TOKENS,
) -> list[PackedKey]:
    """Packed keys of the first ``usable_size`` tokens of beam 0, block by block. C++: buildBlockKeys."""
    if usable_size <= 0:
        return []
    tokens = request.get_tokens(0)
    if usable_size > len(tokens):
        raise InvalidInputError(
            f"request {request.request_id} has {len(tokens)} tokens, {usable_size} were asked for; "
            "give an input length of at most its tokens plus one"
        )
    cache = request._block_key_cache
    if (
        cache.__class__ is not _BlockKeyCache
        or cache.tokens_per_block != tokens_per_block
        or cache.key_form is not key_form
    ):
        cache = request._block_key_cache = _BlockKeyCache(tokens_per_block, key_form)
    cached: list[PackedKey] = cache.keys
    num_full = usable_size // tokens_per_block
    if num_full > len(cached):
        end = len(tokens) // tokens_per_block
        cached += _slice_keys(request, tokens, len(cached), end, tokens_per_block, key_form)
    keys = cached[:num_full]
    end = num_full * tokens_per_block
    if allow_partial and usable_size > end:
        keys.append(_make_key(request, tokens, end, usable_size))
    return keys


def build_block_keys_of(
    request: LlmRequest,
    tokens: array[int],
    tokens_per_block: int,
    usable_size: int,
    allow_partial: bool,
    key_form: KeyForm = KeyForm.TOKENS,
) -> list[PackedKey]:
    """Packed keys of other tokens of the request, such as its encoder tokens, under the same constraints."""
    if usable_size > len(tokens):
        raise InvalidInputError(
            f"request {request.request_id} has {len(tokens)} such tokens, {usable_size} were asked for; "
            "give an input length of at most its tokens plus one"
        )
    end = usable_size if allow_partial else usable_size - usable_size % tokens_per_block
    keys = [
        _make_key(request, tokens, start, min(start + tokens_per_block, end))
        for start in range(0, end, tokens_per_block)
    ]
    return convert_keys(keys, tokens_per_block, key_form)


def build_encoder_keys(
    request: LlmRequest, tokens: array[int], tokens_per_block: int, usable_size: int, allow_partial: bool
) -> list[PackedKey]:
    """Packed keys of encoder tokens; equal only for equal whole inputs.

    An encoder looks both ways, so its states depend on all tokens: a common beginning is not enough to share blocks.
    The digest of the whole input therefore stands in every key, together with the request's salt.
    """
    keys = build_block_keys_of(request, tokens, tokens_per_block, usable_size, allow_partial)
    salt = f"{request.cache_salt!r} of encoder input {sha256(tokens.tobytes()).hexdigest()}"
    packed = (key if isinstance(key, tuple) else (token_bytes(key), None, None, None, ()) for key in keys)
    return [_pack(data, extra_ids, lora, salt, extra_keys) for data, extra_ids, lora, _, extra_keys in packed]


def make_empty_key(request: LlmRequest, position: int) -> PackedKey:
    """Key without tokens, for a last block whose only token is the one never looked up."""
    return _make_key(request, array("i"), position, position)


def is_plain(request: LlmRequest) -> bool:
    """Whether the request's keys are its tokens alone."""
    return (
        request.lora_task_id is None
        and request.cache_salt is None
        and request.input_token_extra_ids is None
        and request.multimodal_input is None
    )


def _slice_keys(
    request: LlmRequest, tokens: array[int], first: int, last: int, tokens_per_block: int, key_form: KeyForm
) -> list[PackedKey]:
    if is_plain(request):
        width = tokens_per_block * 4
        data = tokens.tobytes() if first == 0 else tokens[first * tokens_per_block :].tobytes()
        if key_form is KeyForm.RUNS:
            return fold_tokens(data[: (last - first) * width], tokens_per_block)
        if key_form is KeyForm.DIGESTS:
            return digest_tokens(data[: (last - first) * width], tokens_per_block)
        return [data[start : start + width] for start in range(0, (last - first) * width, width)]
    keys = [
        _make_key(request, tokens, index * tokens_per_block, (index + 1) * tokens_per_block)
        for index in range(first, last)
    ]
    return convert_keys(keys, tokens_per_block, key_form)


def convert_keys(keys: list[PackedKey], tokens_per_block: int, key_form: KeyForm) -> list[PackedKey]:
    """Keys of tokens, under constraints or not, in another form."""
    if key_form is KeyForm.RUNS:
        return _fold_each(keys, tokens_per_block)
    if key_form is KeyForm.DIGESTS:
        return [
            _digest_key(key) if not isinstance(key, int) and num_key_tokens(key) == tokens_per_block else key
            for key in keys
        ]
    return keys


def digest_tokens(data: bytes, tokens_per_block: int) -> list[PackedKey]:
    """Digests of full blocks of int32 tokens without constraints. A hot loop, equal to ``_digest_key`` of each."""
    width = tokens_per_block * 4
    view = memoryview(data)
    from_bytes = int.from_bytes
    length = tokens_per_block << _DIGEST_BITS
    return [
        length | from_bytes(sha256(view[start : start + width]).digest()[:_DIGEST_BYTES], "big")
        for start in range(0, len(data), width)
    ]


def _digest_key(key: PackedKey) -> int:
    """128 bits of the SHA-256 of the tokens and whatever constrains them, below the number of tokens."""
    data = token_bytes(key)
    if isinstance(key, tuple):
        data += repr(_plain_constraints(key)).encode()
    digest = int.from_bytes(sha256(data).digest()[:_DIGEST_BYTES], "big")
    return num_key_tokens(key) << _DIGEST_BITS | digest


def _plain_constraints(key: ConstrainedKey) -> tuple[object, ...]:
    """The constraints of a key as plain numbers and texts, so that equal ones (1, NumPy's 1) are written alike."""
    _, extra_ids, lora_task_id, cache_salt, extra_keys = key
    images = [(item.hash, _plain_int("offset", item.start_offset), _plain_text(item.uuid)) for item in extra_keys]
    lora = None if lora_task_id is None else _plain_int("LoRA id", lora_task_id)
    return extra_ids, lora, _plain_text(cache_salt), images


def _plain_int(name: str, value: int) -> int:
    try:
        return int(operator.index(value))
    except TypeError as error:
        raise InvalidInputError(f"{name} {value!r} is no integer, so no digest can be made of it") from error


def _plain_text(text: str | None) -> str | None:
    return None if text is None else str.__str__(text)


def _fold_each(keys: Sequence[PackedKey], tokens_per_block: int) -> list[PackedKey]:
    """Keys with the full plain ones folded as ``fold_tokens`` does."""
    is_full = [isinstance(key, bytes) and len(key) == 4 * tokens_per_block for key in keys]
    data = b"".join(token_bytes(key) for key, full in zip(keys, is_full, strict=True) if full)
    folded = iter(fold_tokens(data, tokens_per_block))
    return [next(folded) if full else key for key, full in zip(keys, is_full, strict=True)]


def fold_tokens(data: bytes, tokens_per_block: int) -> list[PackedKey]:
    """Keys of full blocks of int32 tokens: a range, which takes little memory, for consecutive ones."""
    import numpy as np

    rows = np.frombuffer(data, dtype=np.int32).reshape(-1, tokens_per_block)
    firsts = rows[:, 0]
    is_folded = (rows == firsts[:, None] + np.arange(tokens_per_block, dtype=np.int32)).all(axis=1)
    is_folded &= firsts <= MAX_INT32 - tokens_per_block
    width = tokens_per_block * 4
    return [
        range(first, first + tokens_per_block) if folded else data[index * width : (index + 1) * width]
        for index, (first, folded) in enumerate(zip(firsts.tolist(), is_folded.tolist(), strict=True))
    ]


def _make_key(request: LlmRequest, tokens: array[int], start: int, end: int) -> PackedKey:
    data = tokens[start:end].tobytes()
    if is_plain(request):
        return data
    extra_ids = request.input_token_extra_ids
    extra = None
    if extra_ids is not None:
        extra = extra_ids[start:end].tobytes().ljust(8 * (end - start), b"\0")
    mm = request.multimodal_input
    extra_keys = () if mm is None else tuple(generate_block_hash_extra_keys(mm, start, end))
    return _pack(data, extra, request.lora_task_id, request.cache_salt, extra_keys)


def generate_block_hash_extra_keys(mm: MultimodalInput, start_token_idx: int, end_token_idx: int) -> list[MmKey]:
    """Multimodal keys of the block [start, end). C++: generateBlockHashExtraKeys.

    Complete and well-formed run data decide; otherwise positions and lengths do, if there are as many as items.
    """
    if _has_valid_runs(mm):
        return _run_keys(mm, start_token_idx, end_token_idx)
    positions, lengths = mm.positions, mm.lengths
    if not positions or not lengths or not len(mm.hashes) == len(positions) == len(lengths):
        return []
    return [
        MmKey(_hash_bytes(mm.hashes[item]), max(0, start_token_idx - position), _uuid(mm, item))
        for item, (position, length) in enumerate(zip(positions, lengths, strict=True))
        if length > 0 and end_token_idx > position and start_token_idx < position + length
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


def _has_valid_runs(mm: MultimodalInput) -> bool:
    offsets, positions, lengths = mm.item_run_cu_offsets, mm.run_positions, mm.run_lengths
    if not mm.hashes or offsets is None or positions is None or lengths is None:
        return False
    return (
        len(offsets) == len(mm.hashes) + 1
        and offsets[0] == 0
        and offsets[-1] == len(positions) == len(lengths)
        and all(begin <= end for begin, end in itertools.pairwise(offsets))
        and all(position >= 0 for position in positions)
        and all(length > 0 for length in lengths)
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
