"""All content of a request is part of its keys, or the request is refused before anything is taken."""

from __future__ import annotations

import itertools
import re
from array import array
from typing import Any

import pytest

from tests.builders import IS_COMPILED, add, make_event_manager, make_kv_cache_manager, make_request, prefill, serve
from tests.snapshot import find_changes, take_snapshot
from trtkv import KVCacheManager, LlmRequest, MultimodalInput
from trtkv.common import CacheType, KeyForm
from trtkv.errors import InvalidInputError
from trtkv.inspection.invariants import check_invariants
from trtkv.keys.block_key import BlockKey
from trtkv.keys.key_builder import build_block_keys
from trtkv.keys.packed_key import MmKey, PlacedMmKey
from trtkv.keys.recorded_keys import to_recorded_keys
from trtkv.keys.recorded_name import RecordedName

CAT, DOG = [1] * 8, [2] * 8
PLACES: dict[str, MultimodalInput] = {
    "whole block": MultimodalInput([CAT], [0], [4]),
    "one later": MultimodalInput([CAT], [1], [3]),
    "one shorter": MultimodalInput([CAT], [0], [3]),
    "in the middle": MultimodalInput([CAT], [1], [2]),
    "second block too": MultimodalInput([CAT], [1], [6]),
    "second block only": MultimodalInput([CAT], [4], [3]),
    "two runs": MultimodalInput([CAT], None, None, None, [0, 2], [0, 3], [2, 1]),
    "two other runs": MultimodalInput([CAT], None, None, None, [0, 2], [0, 2], [1, 2]),
    "named": MultimodalInput([CAT], [0], [4], ["a cat"]),
    "another image": MultimodalInput([DOG], [0], [4]),
    "two images": MultimodalInput([CAT, DOG], [0, 2], [2, 2]),
    "the other way round": MultimodalInput([DOG, CAT], [0, 2], [2, 2]),
    "no image": MultimodalInput([]),
}


SAME_FIRST_BLOCK = [{"second block only", "no image"}, {"one later", "second block too"}]


@pytest.mark.parametrize("key_form", [KeyForm.TOKENS, KeyForm.RUNS, KeyForm.DIGESTS])
@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(PLACES, 2)))
def test_images_at_other_places_share_nothing(first: str, second: str, key_form: KeyForm) -> None:
    manager = make_kv_cache_manager(key_form=key_form, enable_partial_reuse=False)
    tokens = [9] * 9  # the same placeholder at all places
    serve(manager, make_request(1, tokens, multimodal_input=PLACES[first]))
    found = manager.probe_prefix_match_length(make_request(2, tokens, multimodal_input=PLACES[second]))
    assert found == (4 if {first, second} in SAME_FIRST_BLOCK else 0)
    assert add(manager, make_request(4, tokens, multimodal_input=PLACES[first])).prepopulated_prompt_len == 8


def test_a_key_says_where_an_item_lies_and_hashes_count_it() -> None:
    request = make_request(1, [9] * 12, multimodal_input=MultimodalInput([CAT], [3], [6], ["a cat"]))
    items = [BlockKey.unpack(key).extra_keys for key in build_block_keys(request, 4, 12, False)]
    content = bytes([0, 0, 0, 1]) * 8
    assert items == [
        (PlacedMmKey(content, 0, "a cat", 3, 1),),
        (PlacedMmKey(content, 1, "a cat", 0, 4),),
        (PlacedMmKey(content, 5, "a cat", 0, 1),),
    ]
    places = [MmKey(content, 0, None), PlacedMmKey(content, 0, None, 0, 3), PlacedMmKey(content, 0, None, 1, 3)]
    places.append(PlacedMmKey(content, 0, None, 0, 4))
    assert len({BlockKey((9,) * 4, extra_keys=(place,)).hash() for place in places}) == 4


def test_recorded_keys_are_made_of_the_ordinary_ones() -> None:
    request = make_request(1, [9] * 8, multimodal_input=MultimodalInput([CAT], [3], [3], ["a cat"]))
    keys = [*build_block_keys(request, 4, 8, False), b"1234", range(4), 7]
    first, second, *others = to_recorded_keys(keys)
    content = bytes([0, 0, 0, 1]) * 8
    assert BlockKey.unpack(first).extra_keys == (MmKey(content, 0, "a cat"),)
    (item,) = BlockKey.unpack(second).extra_keys
    assert item == MmKey(content, 1, "a cat")
    assert isinstance(item.uuid, RecordedName)
    assert others == [b"1234", range(4), 7]


def test_compatibility_mode_confuses_places_as_recorded() -> None:
    manager = make_kv_cache_manager(compatibility=True, enable_partial_reuse=False)
    prefill(manager, make_request(1, [9] * 9, multimodal_input=PLACES["whole block"]))
    assert manager.probe_prefix_match_length(make_request(2, [9] * 9, multimodal_input=PLACES["one later"])) == 8
    check_invariants(manager)


NAN = float("nan")
REFUSAL = (InvalidInputError, TypeError) if IS_COMPILED else InvalidInputError
"""Compiled functions look at types before their first line."""

ODD_IMAGES: dict[str, Any] = {
    "length 0": MultimodalInput([CAT], [0], [0]),
    "negative length": MultimodalInput([CAT], [0], [-1]),
    "negative position": MultimodalInput([CAT], [-1], [4]),
    "behind the prompt": MultimodalInput([CAT], [9], [4]),
    "run behind the prompt": MultimodalInput([CAT], None, None, None, [0, 2], [0, 9], [2, 1]),
    "item without runs": MultimodalInput([CAT, DOG], None, None, None, [0, 0, 1], [0], [2]),
    "NaN": MultimodalInput([CAT], [NAN], [4]),
    "float": MultimodalInput([CAT], [1.0], [4]),
    "None": MultimodalInput([CAT], [None], [4]),
    "text": MultimodalInput([CAT], ["0"], [4]),
    "number for a list": MultimodalInput([CAT], 0, [4]),
    "run of None": MultimodalInput([CAT], [0], [4], None, [0, 1], [None], [2]),
    "unhashable name": MultimodalInput([CAT], [0], [4], [["a"]]),
    "name of bytes": MultimodalInput([CAT], [0], [4], [b"a"]),
    "name that UTF-8 cannot write": MultimodalInput([CAT], [0], [4], ["\ud800"]),
    "more names than items": MultimodalInput([CAT], [0], [4], ["a", "b"]),
    "float word": MultimodalInput([[1.5] * 8], [0], [4]),
    "hash that is a number": MultimodalInput([7], [0], [4]),
    "seven words": MultimodalInput([[1] * 7], [0], [4]),
    "no MultimodalInput": {"hashes": [CAT]},
}


def make_managers() -> dict[str, KVCacheManager]:
    return {
        "plain": make_kv_cache_manager(),
        "events": make_kv_cache_manager(event_manager=make_event_manager()),
        "windows": make_kv_cache_manager(windows={64: (16, 4), 8: (16, 0)}, event_manager=make_event_manager()),
    }


@pytest.mark.parametrize("kind", ["plain", "events", "windows"])
@pytest.mark.parametrize("name", ODD_IMAGES)
def test_odd_images_are_refused_with_nothing_changed(name: str, kind: str) -> None:
    manager = make_managers()[kind]
    prefill(manager, make_request(1, [9] * 9))
    request, neighbour = make_request(2, [9] * 9, multimodal_input=ODD_IMAGES[name]), make_request(3, [7] * 9)
    before = take_snapshot(manager, [neighbour])
    with pytest.raises(REFUSAL) as caught:
        manager.add_sequence_batch([(3, 9, 1), (2, 9, 1)], [neighbour, request])
    assert isinstance(caught.value, TypeError) or re.search("multimodal|prompt", str(caught.value))
    with pytest.raises(REFUSAL):
        manager.probe_prefix_match_length(request)
    assert not find_changes(before, take_snapshot(manager, [neighbour]))
    add(manager, neighbour)
    check_invariants(manager, {3: neighbour})


@pytest.mark.parametrize("kind", ["plain", "events", "windows"])
@pytest.mark.parametrize(
    ("field", "value"), [("cache_salt", "\ud800"), ("cache_salt", b"a"), ("input_token_extra_ids", [1] * 9)]
)
def test_content_that_was_set_later_is_looked_at_as_well(field: str, value: object, kind: str) -> None:
    manager = make_managers()[kind]
    request = make_request(2, [9] * 9)
    setattr(request, field, value)
    with pytest.raises(InvalidInputError, match=field):
        add(manager, request)
    with pytest.raises(InvalidInputError, match=field):
        manager.probe_prefix_match_length(request)
    assert manager.num_alloc_total_blocks == 0
    check_invariants(manager)


def test_a_salt_that_cannot_be_written_is_refused_when_the_request_is_made() -> None:
    with pytest.raises(InvalidInputError, match=r"cache_salt is '\\ud800', which UTF-8 cannot write"):
        LlmRequest(1, [1, 2, 3], cache_salt="\ud800")


@pytest.mark.parametrize(
    "other",
    [
        {"multimodal_input": MultimodalInput([DOG], [5], [2])},
        {"input_token_extra_ids": [0, 0, 0, 0, 0, 0, 0, 1, 0]},
        {"encoder_tokens": [9] * 8 + [8]},
        {},
    ],
)
def test_encoder_inputs_that_differ_at_the_end_share_nothing(other: dict[str, Any]) -> None:
    manager = make_kv_cache_manager(cache_type=CacheType.CROSS)
    first: dict[str, Any] = {"encoder_tokens": [9] * 9, "multimodal_input": MultimodalInput([CAT], [5], [2])}
    first["input_token_extra_ids"] = [0] * 9
    prefill(manager, make_request(1, [9] * 9, **first))
    found = manager.probe_prefix_match_length(make_request(2, [9] * 9, **(first | other)))
    assert found == (0 if other else 8)


def test_extra_ids_of_an_array_are_accepted_later() -> None:
    request = make_request(1, 5)
    request.input_token_extra_ids = array("Q", [1] * 5)
    add(make_kv_cache_manager(), request)
