"""The JSON form of events, field by field, and back."""

from __future__ import annotations

import json

import pytest

from tests.stress.random_program import RandomProgram
from trtkv.errors import InvalidInputError
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import (
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheRemovedData,
    KVCacheStoredBlockData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)
from trtkv.exporters.trtllm_json import event_from_dict, event_to_dict, events_to_dicts
from trtkv.keys.block_key import BlockKey
from trtkv.keys.packed_key import MmKey

BIG_HASH = 2**64 - 5


def test_created() -> None:
    assert event_to_dict(KVCacheEvent(0, KVCacheCreatedData((10, 3)), 64)) == {
        "event_id": 0,
        "data": {"type": "created", "num_blocks_per_cache_level": [10, 3]},
        "window_size": 64,
    }


def test_stored_with_everything_a_key_can_have() -> None:
    image, named = MmKey(bytes(range(32)), 2, None), MmKey(bytes(32), 0, "cat.png")
    key = BlockKey((5, 6), (0, 9), 3, "tenant", (image, named))
    event = KVCacheEvent(7, KVCacheStoredData(None, [KVCacheStoredBlockData(BIG_HASH, key.packed, 1, 80)]), 64, 2)
    value = event_to_dict(event)
    assert value["attention_dp_rank"] == 2
    assert value["data"] == {
        "type": "stored",
        "parent_hash": None,
        "blocks": [
            {
                "type": "stored_block",
                "block_hash": BIG_HASH,
                "tokens": [
                    {"type": "unique_token", "token_id": 5, "token_extra_id": 0},
                    {"type": "unique_token", "token_id": 6, "token_extra_id": 9},
                ],
                "lora_id": 3,
                "cache_level": 1,
                "priority": 80,
                "mm_keys": [
                    {"type": "mm_key", "hash": bytes(range(32)).hex(), "start_offset": 2},
                    {"type": "mm_key", "hash": "cat.png", "start_offset": 0, "content_hash": "00" * 32},
                ],
                "cache_salt": "tenant",
                "lora_name": "lora-3",
                "uses_extra_ids": True,
            }
        ],
    }
    assert event_from_dict(json.loads(json.dumps(value))) == event


def test_removed() -> None:
    value = event_to_dict(KVCacheEvent(3, KVCacheRemovedData([1, BIG_HASH]), 64))
    assert value["data"] == {"type": "removed", "block_hashes": [1, BIG_HASH]}


def test_update_of_one_field_leaves_the_other_null() -> None:
    level = event_to_dict(KVCacheEvent(3, KVCacheUpdatedData(9, cache_level=(0, 1)), 64))["data"]
    priority = event_to_dict(KVCacheEvent(4, KVCacheUpdatedData(9, priority=(35, 80)), 64))["data"]
    assert level == {
        "type": "updated",
        "block_hash": 9,
        "cache_level": {"type": "event_diff", "old_value": 0, "new_value": 1},
        "priority": None,
    }
    assert priority["cache_level"] is None
    assert priority["priority"] == {"type": "event_diff", "old_value": 35, "new_value": 80}


def test_every_event_of_random_programs_survives_the_way_there_and_back() -> None:
    kinds = set()
    for seed in range(8):
        program = RandomProgram(seed, KVCacheEventManager(100_000, attention_dp_rank=seed % 2 or None, epoch=seed // 4))
        for _ in range(150):
            program.step()
        program.manager.flush_iteration_events()
        events = program.manager.get_latest_events(0)
        kinds |= {type(event.data) for event in events}
        back = [event_from_dict(value) for value in json.loads(json.dumps(events_to_dicts(events)))]
        assert events == back
    assert len(kinds) == 4


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"event_id": 1, "data": {"type": "removed", "block_hashes": []}}, "event 1 has no field 'window_size'"),
        ({"event_id": 1, "window_size": 64, "data": {"type": "moved"}}, "type 'moved'"),
        (
            {"event_id": 1, "window_size": 64, "data": {"type": "created", "num_blocks_per_cache_level": [1]}},
            "not an event",
        ),
        ({"event_id": 1, "window_size": 64, "data": [1]}, "not an event"),
    ],
)
def test_what_is_no_event_is_refused(value: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        event_from_dict(value)
