"""Keys of blocks: packing, equality of leading tokens, the 64-bit hash, images, and the cache of keys in a request."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import make_request
from trtkv.errors import InvalidInputError
from trtkv.keys.block_key import BlockKey
from trtkv.keys.key_builder import (
    build_block_keys,
    build_block_keys_of,
    chop_vector_into_blocks,
    is_plain,
    make_empty_key,
)
from trtkv.keys.key_hash import hash_block_key, hash_salt, resolve_hash
from trtkv.keys.multimodal_keys import check_multimodal_input, generate_block_hash_extra_keys
from trtkv.keys.packed_key import (
    MmKey,
    PackedKey,
    first_token_of,
    num_key_tokens,
    num_matching_tokens,
    supports_partial_matching,
    token_bytes,
)
from trtkv.keys.recorded_name import RecordedName
from trtkv.records.llm_request import LlmRequest, MultimodalInput

# -- an implementation of the hash from its description, with plain loops ---------------------------


def slow_hash(key: BlockKey, parent: int = 0) -> int:
    mask64, mask32 = 2**64 - 1, 2**32 - 1

    def mix32(value: int) -> int:
        value %= 2**32
        for _ in range(2):
            value = (((value >> 16) ^ value) * 0x45D9F3B) & mask32
        return (value >> 16) ^ value

    def mix64(value: int) -> int:
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask64
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask64
        return value ^ (value >> 31)

    seed = len(key.tokens) ^ (parent * 0xBF58476D1CE4E5B9 & mask64)

    def combine(mixed: int) -> None:
        nonlocal seed
        seed ^= (mixed + (seed << 6) + (seed >> 2)) & mask64

    def add32(value: int) -> None:
        combine((mix32(value) + 0x9E3779B9) & mask32)

    def add64(value: int) -> None:
        combine(mix64(value) + 0x9E3779B9)

    if parent == 0 and key.cache_salt is not None:
        add64(slow_string_hash(key.cache_salt))
    for position, token in enumerate(key.tokens):
        add32(token)
        if key.extra_ids is not None:
            add64(key.extra_ids[position])
    if key.lora_task_id is not None:
        add64(key.lora_task_id)
    for item in key.extra_keys:
        for word in range(8):
            add32(int.from_bytes(item.hash[4 * word : 4 * word + 4], "little"))
        add64(item.start_offset)
        if item.uuid is not None:
            add64(slow_string_hash(item.uuid))
    return seed & mask64


def slow_string_hash(text: str) -> int:
    """MurmurHash64A with seed 0xc70f6907, byte by byte."""
    data, mask, mul = text.encode(), 2**64 - 1, 0xC6A4A7935BD1E995
    value = 0xC70F6907 ^ (len(data) * mul & mask)
    whole, rest = divmod(len(data), 8)
    for block in range(whole):
        word = sum(byte << (8 * i) for i, byte in enumerate(data[8 * block : 8 * block + 8]))
        word = word * mul & mask
        word = (word ^ (word >> 47)) * mul & mask
        value = (value ^ word) * mul & mask
    if rest:
        for i in reversed(range(rest)):
            value ^= data[8 * whole + i] << (8 * i)
        value = value * mul & mask
    value = (value ^ (value >> 47)) * mul & mask
    return value ^ (value >> 47)


int32 = st.integers(-(2**31), 2**31 - 1)
uint64 = st.integers(0, 2**64 - 1)
mm_keys = st.builds(MmKey, st.binary(min_size=32, max_size=32), st.integers(0, 5000), st.sampled_from([None, "u"]))


@st.composite
def block_keys(draw: st.DrawFn) -> BlockKey:
    tokens = draw(st.lists(int32, max_size=9))
    extra = draw(st.none() | st.lists(uint64, min_size=len(tokens), max_size=len(tokens)))
    return BlockKey(
        tuple(tokens),
        None if extra is None else tuple(extra),
        draw(st.none() | uint64),
        draw(st.none() | st.text(max_size=20)),
        tuple(draw(st.lists(mm_keys, max_size=2))),
    )


@settings(deadline=None, max_examples=200)
@given(key=block_keys(), parent=st.one_of(st.just(0), uint64))
def test_hash_is_the_one_described(key: BlockKey, parent: int) -> None:
    assert key.hash(parent) == hash_block_key(key.packed, parent) == slow_hash(key, parent)


@pytest.mark.parametrize(
    ("key", "parent", "expected"),
    [
        (BlockKey((100, 1, -1, -1, 2147483647, 1, 0, 7), None, 2**63 + 1), 0x9F3B6F30E4F491C, 0x24682805E13D4F5C),
        (BlockKey((0, 7, 1, 32000), (2, 2**40, 1, 1)), 0, 0x0C44422DAF85C7A0),
        (BlockKey((-1, 1, 100, 2), (1, 0, 1, 2), 12345), 2**64 - 1, 0x8C585A04FBFF4CFE),
        (BlockKey((7, 2147483647, 1, 2147483647, 7, 0, 100), None, 2**64 - 1), 1, 0x35558D511B1F28A3),
        (BlockKey((1,)), 2**64 - 1, 0x7ABFAA4CADF2F737),
        (BlockKey(()), 0, 0),
    ],
)
def test_hash_of_recorded_keys(key: BlockKey, parent: int, expected: int) -> None:
    assert key.hash(parent) == expected


@pytest.mark.parametrize("salt", ["", "a", "tenant-7", "tenant-77", "e\u0301\u00e9\u4e2d", "x" * 40])
def test_salt_hash_is_the_one_described(salt: str) -> None:
    assert hash_salt(salt) == slow_string_hash(salt)


def test_salt_counts_only_where_there_is_no_parent() -> None:
    plain, salted = BlockKey((1, 2)), BlockKey((1, 2), cache_salt="s")
    assert plain.hash() != salted.hash()
    assert plain.hash(5) == salted.hash(5)


@pytest.mark.parametrize(("first", "second"), [(1, 257), (0, 2**16), (5, -(2**31) + 5), (300, 44)])
def test_full_width_of_ids_counts(first: int, second: int) -> None:
    left, right = BlockKey((first,)), BlockKey((second,))
    assert left.packed != right.packed
    assert left.hash() != right.hash()
    assert left.num_matching_tokens(right) == 0


# -- packing ----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(key=block_keys())
def test_unpacking_gives_back_what_was_packed(key: BlockKey) -> None:
    assert BlockKey.unpack(key.packed) == key
    assert num_key_tokens(key.packed) == key.num_tokens == len(key.tokens)
    assert len(token_bytes(key.packed)) == 4 * len(key.tokens)
    assert key.supports_partial_matching == supports_partial_matching(key.packed) == (not key.extra_keys)


@settings(deadline=None)
@given(first=block_keys(), second=block_keys())
def test_packed_keys_are_equal_exactly_when_keys_are(first: BlockKey, second: BlockKey) -> None:
    assert (first.packed == second.packed) == (first == second)
    assert first.packed == BlockKey(*(getattr(first, entry.name) for entry in fields(first))).packed


@pytest.mark.parametrize(
    "other",
    [
        BlockKey((1, 2), (0, 0)),
        BlockKey((1, 2), None, 0),
        BlockKey((1, 2), None, None, ""),
        BlockKey((1, 2), None, None, None, (MmKey(b"0" * 32, 0, None),)),
    ],
)
def test_each_constraint_makes_another_key(other: BlockKey) -> None:
    plain = BlockKey((1, 2))
    assert isinstance(plain.packed, bytes)
    assert isinstance(other.packed, tuple)
    assert plain.num_matching_tokens(other) == other.num_matching_tokens(plain) == 0
    assert first_token_of(plain.packed) != first_token_of(other.packed)


def test_name_of_an_image_is_part_of_the_key_and_of_the_hash() -> None:
    """The recorded hash leaves names out; two images of one content, named differently, then share it."""
    names = ("u", "v", "", RecordedName("u"), None)
    keys = [BlockKey((1,), extra_keys=(MmKey(b"1" * 32, 3, name),)) for name in names]
    assert [keys.index(key) for key in keys] == [0, 1, 2, 0, 4]
    hashes = [key.hash() for key in keys]
    assert [hashes.index(value) for value in hashes] == [0, 1, 2, 3, 3]


def slow_num_matching(first: BlockKey, second: BlockKey) -> int:
    if (first.lora_task_id, first.cache_salt, first.extra_keys) != (
        second.lora_task_id,
        second.cache_salt,
        second.extra_keys,
    ) or first.uses_extra_ids != second.uses_extra_ids:
        return 0
    count = 0
    for index in range(min(len(first.tokens), len(second.tokens))):
        if first.tokens[index] != second.tokens[index]:
            break
        if first.extra_ids and second.extra_ids and first.extra_ids[index] != second.extra_ids[index]:
            break
        count += 1
    return count


def test_matching_tokens_are_counted_token_by_token() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        keys = []
        for _ in range(2):
            length = rng.randrange(7)
            tokens = tuple(rng.choice((0, 1, 256, -1)) for _ in range(length))
            extra = tuple(rng.choice((0, 1, 2**40)) for _ in range(length)) if rng.random() < 0.4 else None
            keys.append(BlockKey(tokens, extra, rng.choice((None, None, 1)), rng.choice((None, None, "s"))))
        first, second = keys
        assert num_matching_tokens(first.packed, second.packed) == slow_num_matching(first, second)
        if slow_num_matching(first, second):
            assert first_token_of(first.packed) == first_token_of(second.packed)


def test_shortened_key_is_that_of_the_first_tokens() -> None:
    key = BlockKey((1, 2, 3), (4, 5, 6), 7, "s")
    assert key.shorten(2) == BlockKey((1, 2), (4, 5), 7, "s")
    assert key.shorten(0) == BlockKey((), (), 7, "s")
    for wrong in (4, -1):
        with pytest.raises(InvalidInputError, match="cannot shorten a key of 3 tokens"):
            key.shorten(wrong)
    with pytest.raises(InvalidInputError, match="without multimodal content"):
        BlockKey((1, 2), extra_keys=(MmKey(b"0" * 32, 0, None),)).shorten(1)


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="1 extra ids for 2 tokens"):
        BlockKey((1, 2), (1,))
    with pytest.raises(InvalidInputError, match="32-bit"):
        _ = BlockKey((2**31,)).packed
    with pytest.raises(InvalidInputError, match="unsigned 64-bit"):
        _ = BlockKey((1,), (-1,)).packed


# -- chains -----------------------------------------------------------------------------------------


def test_chain_is_resolved_without_recursion() -> None:
    link: Any = 0
    for index in range(200_000):
        link = (b"" if index else BlockKey((1, 2)).packed, link)
    value = resolve_hash(link)
    del link  # a chain this long must not overflow the stack when it goes, either
    expected = BlockKey((1, 2)).hash()
    for _ in range(199_999):
        expected = hash_block_key(b"", expected)
    assert value == expected


def test_number_is_its_own_hash() -> None:
    assert resolve_hash(77) == 77


# -- cutting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usable", "allow_partial", "expected"),
    [
        (7, False, [[0, 1, 2], [3, 4, 5]]),
        (7, True, [[0, 1, 2], [3, 4, 5], [6]]),
        (6, True, [[0, 1, 2], [3, 4, 5]]),
        (2, False, []),
        (0, True, []),
        (-1, True, []),
    ],
)
def test_vector_is_cut_into_blocks(usable: int, allow_partial: bool, expected: list[list[int]]) -> None:
    assert chop_vector_into_blocks(list(range(8)), usable, 3, allow_partial) == expected


def test_more_than_there_is_cannot_be_cut() -> None:
    with pytest.raises(InvalidInputError, match="usable size 9 exceeds the 8 elements"):
        chop_vector_into_blocks(list(range(8)), 9, 3, True)


# -- keys of a request ------------------------------------------------------------------------------


def fresh_keys(request: LlmRequest, width: int, usable: int, allow_partial: bool) -> list[PackedKey]:
    """Keys of a request as a copy without any cache gives them."""
    tokens = request.get_tokens()
    return build_block_keys_of(request, tokens, width, usable, allow_partial)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"cache_salt": "s"},
    {"lora_task_id": 3},
    {"input_token_extra_ids": list(range(11))},
    {"multimodal_input": MultimodalInput([[1] * 8], [3], [4])},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("widths", [(4,), (3,), (1,), (4, 4, 3)])
def test_cached_keys_follow_tokens_that_are_added_and_cut(options: dict[str, Any], widths: tuple[int, ...]) -> None:
    request = make_request(1, 11, **options)
    rng = random.Random(3)
    for _ in range(60):
        usable = rng.choice((0, request.get_num_tokens(), rng.randint(0, request.get_num_tokens())))
        for width in widths:
            for allow_partial in (False, True):
                expected = fresh_keys(request, width, usable, allow_partial)
                assert build_block_keys(request, width, usable, allow_partial) == expected
        action = rng.randrange(5)
        if action == 0:
            request.set_generated_tokens([[rng.randrange(9) for _ in range(rng.randrange(9))]])
        elif action == 1 and request.get_num_tokens() < 40:
            request.pause(rng.randint(request.prompt_len, 30))
        else:
            request.add_new_token(rng.randrange(9))


def test_keys_of_full_blocks_are_made_once() -> None:
    request = make_request(1, 12)
    first = build_block_keys(request, 4, 8, False)
    request.add_new_token(5)
    second = build_block_keys(request, 4, 12, False)
    assert all(one is two for one, two in zip(first, second, strict=False))


def test_returned_list_is_the_callers_own() -> None:
    request = make_request(1, 12)
    build_block_keys(request, 4, 12, False).clear()
    assert len(build_block_keys(request, 4, 12, False)) == 3


def test_more_tokens_than_the_request_has_are_refused() -> None:
    request = make_request(1, 5, encoder_tokens=[1, 2])
    with pytest.raises(InvalidInputError, match="request 1 has 5 tokens, 6 were asked for"):
        build_block_keys(request, 4, 6, True)
    with pytest.raises(InvalidInputError, match="2 such tokens, 3 were asked for"):
        build_block_keys_of(request, request.encoder_tokens, 4, 3, True)
    assert build_block_keys(request, 4, -1, True) == []


def test_generated_tokens_have_extra_id_zero() -> None:
    request = make_request(1, 3, input_token_extra_ids=[7, 8, 9])
    request.add_new_token(5)
    (key,) = build_block_keys(request, 4, 4, False)
    assert BlockKey.unpack(key) == BlockKey((1, 2, 3, 5), (7, 8, 9, 0))


def test_plain_request_has_keys_of_bytes() -> None:
    assert is_plain(make_request())
    assert isinstance(build_block_keys(make_request(), 4, 4, False)[0], bytes)
    for options in OPTIONS[1:]:
        assert not is_plain(make_request(1, 11, **options))


def test_empty_key_carries_the_constraints() -> None:
    assert make_empty_key(make_request(1, 5), 4) == b""
    key = BlockKey.unpack(make_empty_key(make_request(1, 11, input_token_extra_ids=[1] * 11, lora_task_id=2), 8))
    assert (key.tokens, key.extra_ids, key.lora_task_id) == ((), (), 2)
    image = MultimodalInput([[1] * 8], [3], [9])
    assert [
        k.start_offset
        for k in BlockKey.unpack(make_empty_key(make_request(1, 13, multimodal_input=image), 12)).extra_keys
    ] == []


# -- images -----------------------------------------------------------------------------------------

HASHES = [[0x01020304, 0, 0, 0, 0, 0, 0, -1], [9] * 8]
FIRST = bytes([1, 2, 3, 4]) + bytes(24) + bytes([255] * 4)


def offsets(mm: MultimodalInput, start: int, end: int) -> list[tuple[int, int]]:
    """(item, offset) of each key of a block."""
    items = [FIRST, b"".join(bytes([0, 0, 0, 9]) for _ in range(8))]
    return [(items.index(key.hash), key.start_offset) for key in generate_block_hash_extra_keys(mm, start, end)]


def test_hash_words_are_written_big_endian() -> None:
    (key,) = generate_block_hash_extra_keys(MultimodalInput(HASHES[:1], [0], [4], ["name"]), 0, 4)
    assert key == MmKey(FIRST, 0, "name")


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 2, []), (0, 3, [(0, 0)]), (4, 8, [(0, 2), (1, 0)]), (8, 12, [(1, 2)]), (10, 14, []), (6, 6, [])],
)
def test_items_belong_to_the_blocks_they_overlap(start: int, end: int, expected: list[tuple[int, int]]) -> None:
    assert offsets(MultimodalInput(HASHES, [2, 6], [3, 4]), start, end) == expected


def test_runs_of_an_item_count_its_tokens_through() -> None:
    mm = MultimodalInput(HASHES, [0, 0], [1, 1], None, [0, 2, 3], [1, 6, 9], [2, 3, 1])
    assert offsets(mm, 0, 4) == [(0, 0)]
    assert offsets(mm, 4, 8) == [(0, 2)]
    assert offsets(mm, 8, 12) == [(0, 4), (1, 0)]
    assert offsets(mm, 2, 7) == [(0, 1), (0, 2)]  # one key for each run that overlaps


@pytest.mark.parametrize(
    "runs",
    [
        ([0, 1, 2], [1, 6], None),
        ([0, 1], [1, 6], [2, 3]),
        ([1, 1, 2], [1, 6], [2, 3]),
        ([0, 2, 1], [1], [2]),
        ([0, 1, 2], [1, 6], [2]),
        ([0, 1, 2], [-1, 6], [2, 3]),
        ([0, 1, 2], [1, 6], [2, 0]),
        ([0, 1, 3], [1, 6], [2, 3]),
        (None, [1, 6], [2, 3]),
    ],
)
def test_malformed_runs_leave_positions_and_lengths_in_charge(runs: tuple[Any, Any, Any]) -> None:
    mm = MultimodalInput(HASHES, [3, 5], [1, 1], None, *runs)
    assert offsets(mm, 0, 8) == [(0, 0), (1, 0)]
    check_multimodal_input(mm)


def test_items_without_length_or_place_have_no_key() -> None:
    assert offsets(MultimodalInput(HASHES, [3, 5], [0, 1]), 0, 8) == []  # the other one loses its key as well
    assert offsets(MultimodalInput(HASHES, [3], [1]), 0, 8) == []
    assert offsets(MultimodalInput(HASHES), 0, 8) == []
    assert offsets(MultimodalInput([], [], []), 0, 8) == []


def test_names_may_be_fewer_than_items() -> None:
    mm = MultimodalInput(HASHES, [0, 1], [1, 1], ["only"])
    assert [key.uuid for key in generate_block_hash_extra_keys(mm, 0, 4)] == ["only", None]


@pytest.mark.parametrize(
    ("mm", "message"),
    [
        (MultimodalInput(HASHES), "2 multimodal items have None positions and None lengths"),
        (MultimodalInput(HASHES, [1], [1]), "2 multimodal items have 1 positions and 1 lengths"),
        (MultimodalInput(HASHES, [1, 2], [1, 0]), "item 1 has position 2 and length 0"),
        (MultimodalInput([[1] * 7], [0], [1]), "a multimodal hash has 7 words"),
        (MultimodalInput([[2**32, 0, 0, 0, 0, 0, 0, 0]], [0], [1]), "words beyond 32 bits"),
    ],
)
def test_images_that_would_be_part_of_no_key_are_refused(mm: MultimodalInput, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        check_multimodal_input(mm)


@pytest.mark.parametrize(
    "mm",
    [
        MultimodalInput([]),
        MultimodalInput(HASHES, [0, 3], [1, 1]),
        MultimodalInput(HASHES, None, None, None, [0, 1, 2], [1, 6], [2, 3]),
    ],
)
def test_images_with_a_place_are_accepted(mm: MultimodalInput) -> None:
    check_multimodal_input(mm)
