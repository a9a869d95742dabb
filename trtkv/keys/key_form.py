"""Forms of the keys of full blocks that take less memory than their tokens: ranges and digests."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from hashlib import sha256

from trtkv.common import MAX_INT32, KeyForm
from trtkv.errors import InvalidInputError
from trtkv.keys.packed_key import DIGEST_BITS, DIGEST_BYTES, ConstrainedKey, PackedKey, num_key_tokens, token_bytes


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
    length = tokens_per_block << DIGEST_BITS
    return [
        length | from_bytes(sha256(view[start : start + width]).digest()[:DIGEST_BYTES], "big")
        for start in range(0, len(data), width)
    ]


def _digest_key(key: PackedKey) -> int:
    """128 bits of the SHA-256 of the tokens and whatever constrains them, below the number of tokens."""
    data = token_bytes(key)
    if isinstance(key, tuple):
        data += repr(_plain_constraints(key)).encode()
    digest = int.from_bytes(sha256(data).digest()[:DIGEST_BYTES], "big")
    return num_key_tokens(key) << DIGEST_BITS | digest


def _plain_constraints(key: ConstrainedKey) -> tuple[object, ...]:
    """The constraints of a key as plain numbers and texts, so that equal ones (1, NumPy's 1) are written alike."""
    _, extra_ids, lora_task_id, cache_salt, extra_keys = key
    images = [
        (item.hash, _plain_int("offset", item.start_offset), _plain_text(item.uuid), *item[3:]) for item in extra_keys
    ]
    lora = None if lora_task_id is None else _plain_int("LoRA id", lora_task_id)
    return extra_ids, lora, _plain_text(cache_salt), images


def _plain_int(name: str, value: int) -> int:
    try:
        return int(operator.index(value))
    except TypeError as error:
        raise InvalidInputError(f"{name} {value!r} is not an integer, so no digest can be made of it") from error


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
