"""Which configurations a sweep has, and in which order."""

from __future__ import annotations

import pytest

from trtkv.errors import InvalidInputError
from trtkv.replay.sweep.grid import describe, expand_grid, parse_settings

KNOWN = ("tokens_per_block", "live", "window_shares")


def test_values_of_options_in_the_order_given() -> None:
    settings = parse_settings(["live=4, 8", "tokens-per-block=16", r"--window-shares=0.5\,0.5,1"], KNOWN)
    assert settings == {"live": ["4", "8"], "tokens_per_block": ["16"], "window_shares": ["0.5,0.5", "1"]}
    assert list(settings) == ["live", "tokens_per_block", "window_shares"]


def test_every_combination_the_last_name_fastest() -> None:
    grid = expand_grid({"a": ["1", "2"], "b": ["x", "y"], "c": ["-"]})
    assert [describe(configuration) for configuration in grid] == [
        "a=1 b=x c=-",
        "a=1 b=y c=-",
        "a=2 b=x c=-",
        "a=2 b=y c=-",
    ]


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["live"], "setting 'live' has no value"),
        (["live="], "setting 'live=' has no value"),
        (["lives=9"], "there is no option 'lives'; known are live, tokens-per-block, window-shares"),
        (["live=1", "live=2"], "live is set twice"),
        (["tokens-per-block=1", "tokens_per_block=2"], "tokens_per_block is set twice"),
    ],
)
def test_settings_that_cannot_be_are_refused(texts: list[str], told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        parse_settings(texts, KNOWN)
