"""Two blocks look equal in each written form exactly if the manager takes them for the same."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from trtkv.errors import InvalidInputError
from trtkv.events.kv_cache_events import KVCacheEvent, KVCacheRemovedData, KVCacheStoredBlockData, KVCacheStoredData
from trtkv.exporters.adapter_names import AdapterNames
from trtkv.exporters.trtllm_json import event_from_dict, event_to_dict
from trtkv.exporters.vllm_events import BlockRemoved, BlockStored, VllmEventEncoder, VllmEventTranslator, decode_batch
from trtkv.keys.block_key import BlockKey
from trtkv.keys.packed_key import MmKey

SAMPLES = Path(__file__).parent.parent / "data" / "events"
TOKENS = (5, 6, 7, 8)
CONTENT = bytes(range(32))
KEYS = [
    BlockKey(TOKENS, extra_ids, lora, salt, images)
    for extra_ids, lora, salt, images in itertools.product(
        (None, (0, 0, 0, 0), (0, 0, 0, 1)),
        (None, 7, 8),
        (None, "x", "lora-7", CONTENT.hex(), "token_extra_ids"),
        (
            (),
            (MmKey(CONTENT, 0, None),),
            (MmKey(CONTENT, 2, None),),
            (MmKey(CONTENT, 0, "x"),),
            (MmKey(bytes(32), 0, "x"),),
            (MmKey(bytes(32), 0, CONTENT.hex()),),
            (MmKey(CONTENT, 1, "x"), MmKey(bytes(32), 0, None)),
            (MmKey(bytes(32), 0, None), MmKey(CONTENT, 1, "x")),
        ),
    )
]


def make_event(key: BlockKey, block_hash: int = 9) -> KVCacheEvent:
    return KVCacheEvent(0, KVCacheStoredData(None, [KVCacheStoredBlockData(block_hash, key.packed, 0, 35)]), 64)


def write_json(key: BlockKey) -> str:
    return json.dumps(event_to_dict(make_event(key)))


def write_vllm(key: BlockKey) -> str:
    return json.dumps(VllmEventTranslator(4, [64]).translate([make_event(key)])[None])


@pytest.mark.parametrize("write", [write_json, write_vllm])
def test_forms_tell_apart_what_the_manager_does(write: Any) -> None:
    assert len({key.packed for key in KEYS}) == len(KEYS)
    assert len({write(key) for key in KEYS}) == len(KEYS)


def test_hashes_tell_the_same_blocks_apart() -> None:
    assert len({key.hash() for key in KEYS}) == len(KEYS)


def test_json_gives_the_key_back() -> None:
    for key in KEYS:
        event = make_event(key)
        assert event_from_dict(json.loads(write_json(key))) == event


def test_names_of_adapters_come_from_the_caller_or_the_id() -> None:
    names = AdapterNames({7: "poetry"})
    assert [names.get(lora_id) for lora_id in (None, 7, 8)] == [None, "poetry", "lora-8"]
    event = make_event(BlockKey(TOKENS, None, 7))
    assert event_to_dict(event, names)["data"]["blocks"][0]["lora_name"] == "poetry"
    (stored,) = VllmEventTranslator(4, [64], adapter_names={7: "poetry"}).translate([event])[None]
    assert isinstance(stored, BlockStored)
    assert (stored.lora_id, stored.lora_name) == (7, "poetry")


@pytest.mark.parametrize("names", [{1: "a", 2: "a"}, {1: ""}, {1: "lora-2"}])
def test_names_that_two_adapters_could_share_are_refused(names: dict[int, str]) -> None:
    with pytest.raises(InvalidInputError, match="name"):
        AdapterNames(names)
    with pytest.raises(InvalidInputError, match="name"):
        VllmEventTranslator(4, [64], adapter_names=names)


def test_unknown_version_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"'0.1'; give one of 0.33, 0.10"):
        VllmEventTranslator(4, [64], vllm_version="0.1")


def test_hash_shared_by_two_blocks_is_removed_with_the_last() -> None:
    translator = VllmEventTranslator(4, [64])
    translator.translate([make_event(KEYS[0]), make_event(KEYS[1])])
    removed = KVCacheEvent(1, KVCacheRemovedData([9]), 64)
    assert translator.translate([removed]) == {}
    assert translator.translate([removed]) == {None: [BlockRemoved([9])]}


# -- what other programs make of it --------------------------------------------------------------------


def sample_events() -> list[KVCacheEvent]:
    image = BlockKey(TOKENS, None, None, None, (MmKey(CONTENT, 2, "cat"), MmKey(bytes(32), 0, None)))
    return [
        make_event(BlockKey(TOKENS, None, 7, "tenant"), 11),
        make_event(image, 12),
        make_event(BlockKey(TOKENS, (1, 2, 3, 4)), 13),
        KVCacheEvent(3, KVCacheRemovedData([12]), 64),
    ]


@pytest.mark.parametrize("version", ["0.33", "0.10"])
def test_recorded_messages_are_written_as_before(version: str) -> None:
    msgspec = pytest.importorskip("msgspec", reason="msgspec is not installed; it packs messages")
    translator = VllmEventTranslator(4, [64], adapter_names={7: "poetry"}, vllm_version=version)
    payload = VllmEventEncoder(translator, clock=lambda: 12.5).encode(sample_events())[None]
    sample = bytes.fromhex((SAMPLES / f"vllm_{version}.hex").read_text())
    assert payload == sample
    events = decode_batch(sample).events
    stored = [event for event in events if isinstance(event, BlockStored)]
    assert [event.block_hashes for event in stored] == [[11], [12], [13]]
    assert isinstance(msgspec.msgpack.decode(sample)[1][0], dict if version == "0.33" else list)


def test_structs_of_vllm_read_the_default_form() -> None:
    kv_events = pytest.importorskip("vllm.distributed.kv_events", reason="vLLM is not installed; it needs a GPU build")
    msgspec = pytest.importorskip("msgspec", reason="msgspec is not installed; it packs messages")
    payload = VllmEventEncoder(VllmEventTranslator(4, [64])).encode(sample_events())[None]
    batch = msgspec.msgpack.decode(payload, type=kv_events.KVEventBatch)
    assert [event.lora_name for event in batch.events[:2]] == ["lora-7", None]
    assert [type(event).__name__ for event in batch.events] == ["BlockStored"] * 3 + ["BlockRemoved"]
    assert tuple(batch.events[1].extra_keys[0][0]) == ("cat", 2)


def test_radix_tree_of_dynamo_keeps_adapters_apart() -> None:
    core = pytest.importorskip("dynamo._core", reason="ai-dynamo-runtime is not installed; it has the radix tree")
    tree = core.RadixTree()
    translator = VllmEventTranslator(4, [64])
    events = [make_event(BlockKey(TOKENS, None, lora), hash_) for lora, hash_ in ((7, 11), (8, 12), (None, 13))]
    wire = translator.translate([*events, KVCacheEvent(3, KVCacheRemovedData([12]), 64)])[None]
    for event_id, event in enumerate(wire):
        if isinstance(event, BlockStored):
            (local,) = core.compute_block_hash_for_seq(event.token_ids, 4, lora_name=event.lora_name)
            block = {"block_hash": event.block_hashes[0], "tokens_hash": local}
            data: dict[str, Any] = {"stored": {"parent_hash": event.parent_block_hash, "blocks": [block]}}
        else:
            assert isinstance(event, BlockRemoved)
            data = {"removed": {"block_hashes": event.block_hashes}}
        tree.apply_event(1, json.dumps({"event_id": event_id, "data": data, "dp_rank": 0}).encode())
    held = {
        name: dict(tree.find_matches(core.compute_block_hash_for_seq(list(TOKENS), 4, lora_name=name)).scores)
        for name in ("lora-7", "lora-8", None)
    }
    assert held == {"lora-7": {(1, 0): 1}, "lora-8": {}, None: {(1, 0): 1}}
