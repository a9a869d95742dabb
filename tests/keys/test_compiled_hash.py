"""The compiled token loop gives the hashes of the plain one."""

from __future__ import annotations

import random
from array import array

import pytest

from trtkv.keys.block_key import BlockKey
from trtkv.keys.key_hash import hash_block_key, hash_key_chain, mix_tokens_plainly, resolve_hash
from trtkv.keys.packed_key import PackedKey

pytest.importorskip("numba", reason='the compiled hash needs numba: pip install "trtkv[fast]"')


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 31, 64, 513])
def test_compiled_mixer_equals_the_plain_one(num_tokens: int) -> None:
    from trtkv.keys.compiled_hash import compile_hash

    rng = random.Random(num_tokens)
    mix = compile_hash().mix
    for _ in range(50):
        tokens = array("i", [rng.randrange(-(2**31), 2**31) for _ in range(num_tokens)]).tobytes()
        seed = rng.getrandbits(64)
        assert mix(tokens, seed) == mix_tokens_plainly(tokens, seed)


def test_chain_of_links_equals_hashing_block_by_block() -> None:
    rng = random.Random(7)
    keys = [array("i", [rng.randrange(2**31) for _ in range(16)]).tobytes() for _ in range(40)]
    link: object = 0
    expected = 0
    for key in keys:
        link = (key, link)
        seed = 16 ^ (expected * 0xBF58476D1CE4E5B9 & (1 << 64) - 1)
        expected = mix_tokens_plainly(key, seed)
        assert resolve_hash(link) == expected  # type: ignore[arg-type]
    assert resolve_hash(link) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("widths", [(4,) * 9, (4, 4, 1), (0, 3), (7,), ()])
def test_compiled_chain_equals_hashing_key_after_key(widths: tuple[int, ...]) -> None:
    rng = random.Random(len(widths))
    keys: list[PackedKey] = [array("i", [rng.randrange(2**31) for _ in range(width)]).tobytes() for width in widths]
    for parent_hash in (0, 1, 2**64 - 1, rng.getrandbits(64)):
        expected, value = [], parent_hash
        for key in keys:
            value = hash_block_key(key, value)
            expected.append(value)
        assert hash_key_chain(keys, parent_hash) == expected


def test_chain_of_constrained_and_folded_keys() -> None:
    keys: list[PackedKey] = [range(5, 9), array("i", [1, 2]).tobytes(), BlockKey((1, 2), None, 3, "salt").packed]
    first = hash_block_key(keys[0])
    second = hash_block_key(keys[1], first)
    assert hash_key_chain(keys[:2]) == [first, second]
    assert hash_key_chain(keys) == [first, second, hash_block_key(keys[2], second)]
