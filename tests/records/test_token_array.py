"""Token arrays: long lists are converted in another way than short ones, with the same results and refusals."""

from __future__ import annotations

import random
from array import array
from typing import Any

import numpy as np
import pytest

from trtkv.errors import InvalidInputError
from trtkv.records.token_array import CHUNK, SHORT_LIST, to_token_array

LENGTHS = (0, 1, SHORT_LIST - 1, SHORT_LIST, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 7)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("lowest", [0, -(2**31)])
def test_lists_of_all_lengths(length: int, lowest: int) -> None:
    rng = random.Random(length)
    tokens = [rng.randrange(lowest, 2**31) for _ in range(length)]
    tokens[-2:] = [2**31 - 1, lowest][: len(tokens[-2:])]
    assert to_token_array(tokens) == array("i", tokens)


@pytest.mark.parametrize("length", LENGTHS[1:])
@pytest.mark.parametrize("value", [True, np.int64(7), np.uint8(7), -1, 2**31 - 1])
def test_everything_that_is_an_integer(length: int, value: Any) -> None:
    for place in (0, length - 1):
        tokens: list[Any] = [5] * length
        tokens[place] = value
        assert to_token_array(tokens) == array("i", tokens)


@pytest.mark.parametrize("length", LENGTHS[1:])
@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**32, 2**32 + 5, 1.0, "1", None, [1], float("nan")])
def test_what_is_no_32_bit_integer_is_refused(length: int, value: Any) -> None:
    for place in (0, length - 1):
        tokens: list[Any] = [5] * length
        tokens[place] = value
        with pytest.raises(InvalidInputError, match="tokens must be 32-bit integers"):
            to_token_array(tokens)
