"""Events in vLLM's msgpack form, read back with the structures that its subscribers use."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.stress.random_program import RandomProgram
from trtkv import KVCacheManager, LlmRequest
from trtkv.errors import InvalidInputError, MissingExtraError
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import KVCacheEvent, KVCacheStoredBlockData, KVCacheStoredData, KVCacheUpdatedData
from trtkv.exporters.vllm_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    VllmEventEncoder,
    VllmEventTranslator,
    WireBatch,
    WireEvent,
    decode_batch,
)
from trtkv.keys.block_key import BlockKey
from trtkv.keys.packed_key import MmKey

msgspec = pytest.importorskip("msgspec", reason="msgspec is not installed; it packs and reads messages")


def define_structs(array_like: bool) -> type:
    """The classes of a subscriber, in either layout; their names are the tags."""
    options = {"array_like": array_like, "omit_defaults": True, "tag": True}
    fields: list[Any] = [
        ("block_hashes", list[int]),
        ("parent_block_hash", int | None),
        ("token_ids", list[int]),
        ("block_size", int),
        ("lora_id", int | None),
        ("medium", str | None),
        ("lora_name", str | None),
        ("extra_keys", list[list[Any] | None] | None, None),
        ("group_idx", int | None, None),
        ("kv_cache_spec_kind", str | None, None),
        ("kv_cache_spec_sliding_window", int | None, None),
    ]
    stored = msgspec.defstruct("BlockStored", fields, **options)
    removed = msgspec.defstruct(
        "BlockRemoved",
        [("block_hashes", list[int]), ("medium", str | None), ("group_idx", int | None, None)],
        **options,
    )
    cleared = msgspec.defstruct("AllBlocksCleared", [], **options)
    return msgspec.defstruct(  # type: ignore[no-any-return]
        "KVEventBatch",
        [("ts", float), ("events", list[stored | removed | cleared]), ("data_parallel_rank", int | None, None)],
        array_like=True,
        omit_defaults=True,
    )


def make_stream() -> tuple[KVCacheManager, list[KVCacheEvent]]:
    """Full and partial blocks stored, moved to the host, and removed."""
    manager = KVCacheManager.from_arguments(
        [1],
        4,
        4,
        {64: (4, 2)},
        4,
        1,
        [64],
        max_sequence_length=64,
        event_manager=KVCacheEventManager(1000),
        secondary_offload_min_priority=0,
    )
    for request_id, first in ((1, 10), (2, 50), (3, 90)):
        request = LlmRequest(request_id, range(first, first + 11), 4, cache_salt="a" if request_id == 2 else None)
        manager.add_sequence_batch([(request_id, 11, 1)], [request])
        request.set_context_current_position(11)
        manager.remove_sequence(request_id, request)
    manager.flush_iteration_events()
    return manager, manager.get_latest_events(0)


def list_wire(events: list[KVCacheEvent], **options: Any) -> list[WireEvent]:
    found = VllmEventTranslator(4, [64], **options).translate(events)
    assert set(found) == {None}
    return found[None]


@pytest.mark.parametrize("as_maps", [False, True])
def test_subscribers_read_what_was_meant(as_maps: bool) -> None:
    _, events = make_stream()
    encoder = VllmEventEncoder(VllmEventTranslator(4, [64]), as_maps=as_maps, clock=lambda: 12.5)
    payload = encoder.encode(events)[None]
    batch = msgspec.msgpack.decode(payload, type=define_structs(not as_maps))
    assert batch.ts == 12.5
    assert batch.data_parallel_rank is None
    first, stored = batch.events[0], batch.events[1]
    assert type(first).__name__ == "AllBlocksCleared"
    assert (stored.parent_block_hash, stored.token_ids, stored.block_size) == (None, list(range(10, 18)), 4)
    assert (stored.medium, stored.lora_id, stored.extra_keys, stored.group_idx) == ("GPU", None, None, None)
    assert [tuple(msgspec.structs.astuple(event)) for event in batch.events] == [
        tuple(event) for event in list_wire(events)
    ]
    assert decode_batch(payload).events == list_wire(events)


def test_array_layout_begins_with_the_tag_and_ends_with_the_last_field_set() -> None:
    encoder = VllmEventEncoder(VllmEventTranslator(4, [64], vllm_version="0.10"))
    stored = BlockStored([1], None, [5, 6], 2)
    batch = WireBatch(1.0, [stored, stored._replace(group_idx=3), BlockRemoved([1]), AllBlocksCleared()], 4)
    assert msgspec.msgpack.decode(encoder.encode_batch(batch)) == [
        1.0,
        [
            ["BlockStored", [1], None, [5, 6], 2, None, "GPU", None],
            ["BlockStored", [1], None, [5, 6], 2, None, "GPU", None, None, 3],
            ["BlockRemoved", [1], "GPU"],
            ["AllBlocksCleared"],
        ],
        4,
    ]


def test_partial_blocks_are_left_out_together_with_their_removals() -> None:
    """Blocks that are not full are not indexed by routers; a removal without a store would confuse them."""
    _, events = make_stream()
    without = list_wire(events)
    assert all(len(e.token_ids) == 4 * len(e.block_hashes) for e in without if isinstance(e, BlockStored))
    stored = {value for e in without if isinstance(e, BlockStored) for value in e.block_hashes}
    removed = {value for e in without if isinstance(e, BlockRemoved) for value in e.block_hashes}
    assert removed
    assert removed <= stored
    with_partial = list_wire(events, include_partial_blocks=True)
    partial = [e for e in with_partial if isinstance(e, BlockStored) and e.block_size != 4]
    first = partial[0]
    assert (first.block_size, first.token_ids) == (2, [18, 19])
    assert {value for e in with_partial if isinstance(e, BlockRemoved) for value in e.block_hashes} > removed


def test_media_are_told_apart_on_request() -> None:
    manager, events = make_stream()
    wire = list_wire(events, report_media=True)
    on_host = [e for e in wire if isinstance(e, BlockStored) and e.medium == "CPU"]
    assert on_host
    assert {e.medium for e in list_wire(events) if not isinstance(e, AllBlocksCleared)} == {"GPU"}
    # A listener that keeps a set per medium ends with what the manager has.
    media: dict[str | None, set[int]] = {"GPU": set(), "CPU": set()}
    for event in wire:
        if isinstance(event, BlockStored):
            media[event.medium] |= set(event.block_hashes)
        elif isinstance(event, BlockRemoved):
            assert set(event.block_hashes) <= media[event.medium]
            media[event.medium] -= set(event.block_hashes)
    blocks = [b for b in manager.block_manager.window_block_managers[64].matcher.list_blocks() if b.is_full]
    assert media == {
        "GPU": {block.hash for block in blocks if block.is_primary},
        "CPU": {block.hash for block in blocks if not block.is_primary},
    }


def test_salt_and_images_are_extra_keys() -> None:
    _, events = make_stream()
    salted = [e for e in list_wire(events) if isinstance(e, BlockStored) and e.extra_keys]
    assert [e.extra_keys for e in salted] == [[["a"], None]]
    key = BlockKey((1, 2, 3, 4), None, 7, None, (MmKey(bytes(32), 0, None), MmKey(bytes(32), 1, "cat")))
    data = KVCacheStoredData(5, [KVCacheStoredBlockData(9, key.packed, 0, 35)])
    (stored,) = list_wire([KVCacheEvent(0, data, 64)])
    assert isinstance(stored, BlockStored)
    images = [["00" * 32, 0], ["cat", 1], ["content_hash", "00" * 32]]
    assert (stored.parent_block_hash, stored.lora_id, stored.extra_keys) == (5, 7, [images])
    (older,) = list_wire([KVCacheEvent(0, data, 64)], vllm_version="0.10")
    assert isinstance(older, BlockStored)
    assert older.extra_keys == [["00" * 32, "cat"]]
    assert stored.lora_name == older.lora_name == "lora-7"


def test_several_windows_become_groups() -> None:
    events = [
        KVCacheEvent(i, KVCacheStoredData(None, [KVCacheStoredBlockData(i, BlockKey((1,) * 4).packed, 0, 35)]), window)
        for i, window in enumerate([64, 8, 16])
    ]
    wire = VllmEventTranslator(4, [64, 8]).translate(events)[None]
    assert [(e.group_idx, e.kv_cache_spec_kind, e.kv_cache_spec_sliding_window) for e in wire] == [  # type: ignore[union-attr]
        (0, "full_attention", None),
        (1, "sliding_window", 8),
    ]


def test_ranks_get_batches_of_their_own() -> None:
    key = BlockKey((1,) * 4).packed
    events = [
        KVCacheEvent(0, KVCacheStoredData(None, [KVCacheStoredBlockData(rank, key, 0, 35)]), 64, rank)
        for rank in (1, 0, 1)
    ]
    payloads = VllmEventEncoder(VllmEventTranslator(4, [64])).encode(events)
    assert {rank: decode_batch(payload).data_parallel_rank for rank, payload in payloads.items()} == {0: 0, 1: 1}
    assert [len(decode_batch(payloads[rank]).events) for rank in (0, 1)] == [1, 2]


def test_priorities_and_unknown_blocks_are_not_reported() -> None:
    translator = VllmEventTranslator(4, [64], report_media=True)
    events = [
        KVCacheEvent(0, KVCacheUpdatedData(4, priority=(35, 80)), 64),
        KVCacheEvent(1, KVCacheUpdatedData(4, cache_level=(0, 1)), 64),
    ]
    assert translator.translate(events) == {}


@pytest.mark.parametrize("report_media", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_listener_of_wire_events_has_the_full_blocks_of_the_manager(seed: int, report_media: bool) -> None:
    program = RandomProgram(seed, KVCacheEventManager(10_000))
    width = program.shape.tokens_per_block
    windows = sorted(program.windows, reverse=True)
    translator = VllmEventTranslator(width, windows, report_media=report_media)
    known: dict[tuple[int, str | None], set[int]] = {}
    for _ in range(150):
        program.step()
        program.manager.flush_iteration_events()
        for event in translator.translate(program.manager.get_latest_events(0)).get(None, []):
            if isinstance(event, AllBlocksCleared):
                known.clear()
                continue
            hashes = known.setdefault((event.group_idx or 0, event.medium), set())
            assert hashes.isdisjoint(event.block_hashes) == isinstance(event, BlockStored)
            hashes.symmetric_difference_update(event.block_hashes)
    for group, window in enumerate(windows):
        blocks = program.manager.block_manager.window_block_managers[window].matcher.list_blocks()
        blocks = [block for block in blocks if block.is_full and not block.is_placeholder]
        full = {block.hash for block in blocks}
        media = [known.get((group, medium), set()) for medium in ("GPU", "CPU")]
        assert media[0] | media[1] == full
        if report_media:
            assert media[1] == {block.hash for block in blocks if not block.is_primary}


@pytest.mark.parametrize("report_media", [False, True])
def test_snapshot_makes_listeners_start_anew(report_media: bool) -> None:
    manager, events = make_stream()
    translator = VllmEventTranslator(4, [64], report_media=report_media)
    translator.translate(events[:2])
    first, *rest = translator.translate_snapshot(manager.get_cached_block_events())[None]
    assert isinstance(first, AllBlocksCleared)
    blocks = manager.block_manager.window_block_managers[64].matcher.list_blocks()
    found = {value for event in rest if isinstance(event, BlockStored) for value in event.block_hashes}
    assert found == {block.hash for block in blocks if block.is_full}
    manager.reset_reuse_state()
    manager.flush_iteration_events()
    removed = translator.translate(manager.get_latest_events(0))[None]
    assert {value for event in removed for value in event.block_hashes} == found  # type: ignore[union-attr]
    with pytest.raises(InvalidInputError, match="get_cached_block_events"):
        translator.translate_snapshot([])


def test_fields_of_other_versions_do_not_hurt() -> None:
    pack = msgspec.msgpack.encode
    old = decode_batch(pack([1.5, [["BlockStored", [1], None, [2, 3], 2]]]))
    assert old == WireBatch(1.5, [BlockStored([1], None, [2, 3], 2)], None)
    event = {"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU", "locality": "LOCAL"}
    assert decode_batch(pack([1.5, [event], 2])) == WireBatch(1.5, [BlockRemoved([1], "CPU")], 2)
    longer = ["BlockRemoved", [1], "CPU", 0, "LOCAL"]
    assert decode_batch(pack([1.5, [longer]])).events == [BlockRemoved([1], "CPU", 0)]


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x93\x01", b"\x92\x01\x91\x91\xa5Other", b"\x92\x01\x91\x90"])
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidInputError):
        decode_batch(payload)


def test_windows_must_be_named_once() -> None:
    with pytest.raises(InvalidInputError, match=r"\[64, 64\]"):
        VllmEventTranslator(4, [64, 64])
    with pytest.raises(InvalidInputError, match=r"\[\]"):
        VllmEventTranslator(4, [])


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec.msgpack", None)
    with pytest.raises(MissingExtraError, match=r'pip install "trtkv\[events\]"'):
        VllmEventEncoder(VllmEventTranslator(4, [64]))
    with pytest.raises(MissingExtraError, match=r"trtkv\[events\]"):
        decode_batch(b"")
