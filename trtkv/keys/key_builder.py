"""Keys of a request's tokens. One builder serves admission, probes, storing and events."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256
from typing import TypeVar

from trtkv.common import KeyForm
from trtkv.errors import InvalidInputError
from trtkv.keys.key_form import convert_keys, digest_tokens, fold_tokens
from trtkv.keys.multimodal_keys import generate_placed_keys
from trtkv.keys.packed_key import PackedKey, pack_key, token_bytes
from trtkv.records.llm_request import LlmRequest

T = TypeVar("T")


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
    The digest of the whole input, extra ids and images included, therefore stands in every key, together with the
    request's salt.
    """
    keys = build_block_keys_of(request, tokens, tokens_per_block, usable_size, allow_partial)
    content = tokens.tobytes()
    if request.input_token_extra_ids is not None or request.multimodal_input is not None:
        content = repr(_make_key(request, tokens, 0, len(tokens))).encode()
    salt = f"{request.cache_salt!r} of encoder input {sha256(content).hexdigest()}"
    packed = (key if isinstance(key, tuple) else (token_bytes(key), None, None, None, ()) for key in keys)
    return [pack_key(data, extra_ids, lora, salt, extra_keys) for data, extra_ids, lora, _, extra_keys in packed]


def forget_block_keys(request: LlmRequest) -> None:
    """Build the keys of a request anew the next time, as what they are made of has changed."""
    request._block_key_cache = None


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


def _make_key(request: LlmRequest, tokens: array[int], start: int, end: int) -> PackedKey:
    data = tokens[start:end].tobytes()
    if is_plain(request):
        return data
    extra_ids = request.input_token_extra_ids
    extra = None
    if extra_ids is not None:
        extra = extra_ids[start:end].tobytes().ljust(8 * (end - start), b"\0")
    mm = request.multimodal_input
    extra_keys = () if mm is None else generate_placed_keys(mm, start, end)
    return pack_key(data, extra, request.lora_task_id, request.cache_salt, extra_keys)
