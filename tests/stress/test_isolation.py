"""Requests that differ in salt, adapter, extra ids or images never share a block, whatever their tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.builders import TOKENS_PER_BLOCK, add, block_ids, decode, finish_prompt, make_kv_cache_manager
from trtkv.inspection.invariants import check_invariants
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest, MultimodalInput

LENGTH = 18
_PLACEHOLDER = 9
"""The token id that stands for a part of an image."""


class Identity(NamedTuple):
    """Everything but the tokens that makes the content of a block."""

    cache_salt: str | None = None
    lora_task_id: int | None = None
    extra_ids: tuple[int, ...] | None = None
    images: tuple[tuple[int, int, int], ...] = ()
    """(content, position, length) of each."""

    def options(self) -> dict[str, Any]:
        mm = None
        if self.images:
            hashes = [[content, 0, 0, 0, 0, 0, 0, content] for content, _, _ in self.images]
            mm = MultimodalInput(hashes, [p for _, p, _ in self.images], [length for _, _, length in self.images])
        return {
            "cache_salt": self.cache_salt,
            "lora_task_id": self.lora_task_id,
            "input_token_extra_ids": self.extra_ids,
            "multimodal_input": mm,
        }

    def fill_in(self, tokens: list[int]) -> list[int]:
        """Tokens with the placeholder of images where this request has any: that is how keys know where they are."""
        return [_PLACEHOLDER if self.at(position)[3] else token for position, token in enumerate(tokens)]

    def at(self, position: int) -> tuple[object, object, object, object]:
        """What the token at a position carries beside its id."""
        images = {(content, position - start) for content, start, n in self.images if start <= position < start + n}
        extra = None if self.extra_ids is None else self.extra_ids[position]
        return (self.cache_salt, self.lora_task_id, extra, images)


def num_common(first: Identity, second: Identity, tokens: tuple[list[int], list[int]]) -> int:
    """Leading tokens whose state is the same for both."""
    for position, pair in enumerate(zip(*tokens, strict=True)):
        if pair[0] != pair[1] or first.at(position) != second.at(position):
            return position
    return min(map(len, tokens))


token_lists = st.lists(st.integers(0, 1), min_size=LENGTH, max_size=LENGTH)
# What an image shows settles how many tokens it takes, so keys carry no length.
images = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, LENGTH - 1)).map(lambda i: (*i, (1, 4, 7)[i[0]])),
    max_size=2,
    unique_by=lambda i: i[1],
).map(tuple)
identities = st.builds(
    Identity,
    st.sampled_from([None, "", "a", "b"]),
    st.sampled_from([None, 0, 1, 2**63]),
    st.one_of(st.none(), st.lists(st.integers(0, 1), min_size=LENGTH, max_size=LENGTH).map(tuple)),
    images,
)


def make_manager(kind: str) -> KVCacheManager:
    options: dict[str, dict[str, Any]] = {
        "full": {},
        "host": {"num_blocks": 12, "num_secondary_blocks": 12},
        "window": {"window": 8},
        "two windows": {"windows": {64: (40, 0), 8: (40, 0)}},
    }
    return make_kv_cache_manager(**({"num_blocks": 40} | options[kind]))


@pytest.mark.parametrize("kind", ["full", "host", "window", "two windows"])
@settings(max_examples=60, deadline=None)
@given(first=identities, second=identities, tokens=st.tuples(token_lists, token_lists), same_tokens=st.booleans())
def test_nothing_is_shared_behind_the_first_difference(
    kind: str, first: Identity, second: Identity, tokens: tuple[list[int], list[int]], same_tokens: bool
) -> None:
    tokens = (first.fill_in(tokens[0]), second.fill_in(tokens[0] if same_tokens else tokens[1]))
    manager = make_manager(kind)
    one = finish_prompt(add(manager, LlmRequest(1, tokens[0], **first.options())))
    manager.store_blocks_for_reuse(1, one)
    two = add(manager, LlmRequest(2, tokens[1], **second.options()))
    common = num_common(first, second, tokens)
    assert two.prepopulated_prompt_len <= common
    for window in manager.window_sizes_metadata:
        own, others = block_ids(manager, 2, window), block_ids(manager, 1, window)
        shared = [i for i, (mine, its) in enumerate(zip(own, others, strict=True)) if mine == its >= 0]
        assert all((index + 1) * TOKENS_PER_BLOCK <= common for index in shared)
    finish_prompt(two)
    manager.store_blocks_for_reuse(2, two)
    check_invariants(manager, {1: one, 2: two})
    manager.remove_sequence(1, one)
    decode(manager, two, [1] * 3)
    manager.remove_sequence(2, two)
    three = add(manager, LlmRequest(3, tokens[0], **first.options()))
    assert three.prepopulated_prompt_len <= LENGTH - 1
    check_invariants(manager, {3: finish_prompt(three)})


@pytest.mark.parametrize("kind", ["full", "host", "window", "two windows"])
@settings(max_examples=40, deadline=None)
@given(identity=identities, other=identities, tokens=token_lists)
def test_probe_and_summary_see_no_more_than_admission(
    kind: str, identity: Identity, other: Identity, tokens: list[int]
) -> None:
    assume(identity != other)
    manager = make_manager(kind)
    filled = (identity.fill_in(tokens), other.fill_in(tokens))
    one = finish_prompt(add(manager, LlmRequest(1, filled[0], **identity.options())))
    manager.store_context_blocks(one)
    two = LlmRequest(2, filled[1], **other.options())
    expected = manager.probe_prefix_match_length(two)
    if not manager.is_variable_window:
        summary = manager.analyze_prefix_reuse(two)
        assert summary.reusable_blocks_all * TOKENS_PER_BLOCK <= num_common(identity, other, filled)
    assert add(manager, two).prepopulated_prompt_len == expected
