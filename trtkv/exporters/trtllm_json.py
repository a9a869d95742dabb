"""Events in the JSON form of TensorRT-LLM's event API, to and from plain dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from trtkv.errors import InvalidInputError
from trtkv.events.kv_cache_events import (
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheEventData,
    KVCacheRemovedData,
    KVCacheStoredBlockData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)
from trtkv.exporters.adapter_names import NO_NAMES, AdapterNames
from trtkv.keys.block_key import BlockKey
from trtkv.keys.packed_key import MmItem, MmKey, PlacedMmKey

JsonObject = dict[str, Any]
_LEAST_LEVELS: Final = 2


def events_to_dicts(events: Iterable[KVCacheEvent], adapter_names: AdapterNames = NO_NAMES) -> list[JsonObject]:
    """``event_to_dict`` for each."""
    return [event_to_dict(event, adapter_names) for event in events]


def event_to_dict(event: KVCacheEvent, adapter_names: AdapterNames = NO_NAMES) -> JsonObject:
    """One event as TensorRT-LLM writes it; ``attention_dp_rank`` is left out without ranks.

    Hashes are unsigned 64-bit integers. Fields that the original does not have say the rest of a block's identity, so
    that reading gives the same key back: ``lora_name`` beside the id of an adapter, ``uses_extra_ids`` where extra ids
    were given, ``content_hash`` of a named image, as the name takes the place of ``hash`` there. ``epoch`` is written
    unless it is 0.
    """
    result: JsonObject = {"event_id": event.event_id, "data": _data_to_dict(event.data, adapter_names)}
    result["window_size"] = event.window_size
    if event.attention_dp_rank is not None:
        result["attention_dp_rank"] = event.attention_dp_rank
    if event.epoch:
        result["epoch"] = event.epoch
    return result


def _data_to_dict(data: KVCacheEventData, adapter_names: AdapterNames) -> JsonObject:
    if isinstance(data, KVCacheCreatedData):
        return {"type": "created", "num_blocks_per_cache_level": list(data.num_blocks_per_cache_level)}
    if isinstance(data, KVCacheStoredData):
        blocks = [_block_to_dict(block, adapter_names) for block in data.blocks]
        return {"type": "stored", "parent_hash": data.parent_hash, "blocks": blocks}
    if isinstance(data, KVCacheRemovedData):
        return {"type": "removed", "block_hashes": list(data.block_hashes)}
    return {
        "type": "updated",
        "block_hash": data.block_hash,
        "cache_level": _diff_to_dict(data.cache_level),
        "priority": _diff_to_dict(data.priority),
    }


def _diff_to_dict(diff: tuple[int, int] | None) -> JsonObject | None:
    """Null where nothing changed: an update may name the level alone or the priority alone."""
    return None if diff is None else {"type": "event_diff", "old_value": diff[0], "new_value": diff[1]}


def _block_to_dict(block: KVCacheStoredBlockData, adapter_names: AdapterNames) -> JsonObject:
    key = BlockKey.unpack(block.block_key)
    extra_ids = key.extra_ids or (0,) * key.num_tokens
    result: JsonObject = {
        "type": "stored_block",
        "block_hash": block.block_hash,
        "tokens": [
            {"type": "unique_token", "token_id": token, "token_extra_id": extra_id}
            for token, extra_id in zip(key.tokens, extra_ids, strict=True)
        ],
        "lora_id": key.lora_task_id,
        "cache_level": block.cache_level,
        "priority": block.priority,
        "mm_keys": [_mm_key_to_dict(mm_key) for mm_key in key.extra_keys],
        "cache_salt": key.cache_salt,
    }
    if key.lora_task_id is not None:
        result["lora_name"] = adapter_names.get(key.lora_task_id)
    if key.uses_extra_ids:
        result["uses_extra_ids"] = True
    return result


def _mm_key_to_dict(mm_key: MmItem) -> JsonObject:
    result: JsonObject = {"type": "mm_key", "hash": mm_key.hash.hex(), "start_offset": mm_key.start_offset}
    if isinstance(mm_key, PlacedMmKey):
        result |= {"first_token": mm_key.first_token, "num_tokens": mm_key.num_tokens}
    if mm_key.uuid is not None:
        result["content_hash"] = result["hash"]
        result["hash"] = mm_key.uuid
    return result


# -- reading ----------------------------------------------------------------------------------------


def event_from_dict(value: Mapping[str, Any]) -> KVCacheEvent:
    """The event of a dictionary; fields that older versions do not write may be missing.

    Raises InvalidInputError naming what is missing or wrong. Extra ids that are all 0 count as not used, unless
    ``uses_extra_ids`` says otherwise.
    """
    try:
        return KVCacheEvent(
            int(value["event_id"]),
            _data_from_dict(value["data"]),
            int(value["window_size"]),
            value.get("attention_dp_rank"),
            int(value.get("epoch", 0)),
        )
    except InvalidInputError:
        raise
    except KeyError as error:
        raise InvalidInputError(f"event {value.get('event_id')} has no field {error}; give the whole event") from error
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidInputError(f"this is not an event of the JSON form: {error}") from error


def _data_from_dict(data: Mapping[str, Any]) -> KVCacheEventData:
    kind = data["type"]
    if kind == "created":
        counts = tuple(int(count) for count in data["num_blocks_per_cache_level"])
        if len(counts) < _LEAST_LEVELS:
            raise InvalidInputError(f"a created event has {len(counts)} cache levels and is not an event of this form")
        return KVCacheCreatedData(counts)
    if kind == "stored":
        return KVCacheStoredData(data["parent_hash"], [_block_from_dict(block) for block in data["blocks"]])
    if kind == "removed":
        return KVCacheRemovedData(list(data["block_hashes"]))
    if kind == "updated":
        return KVCacheUpdatedData(
            data["block_hash"], _diff_from_dict(data["cache_level"]), _diff_from_dict(data["priority"])
        )
    raise InvalidInputError(f"event data has type {kind!r}; known are created, stored, removed and updated")


def _diff_from_dict(diff: Mapping[str, Any] | None) -> tuple[int, int] | None:
    return None if diff is None else (int(diff["old_value"]), int(diff["new_value"]))


def _block_from_dict(block: Mapping[str, Any]) -> KVCacheStoredBlockData:
    extra_ids = tuple(token.get("token_extra_id", 0) for token in block["tokens"])
    key = BlockKey(
        tuple(token["token_id"] for token in block["tokens"]),
        extra_ids if block.get("uses_extra_ids", any(extra_ids)) else None,
        block.get("lora_id"),
        block.get("cache_salt"),
        tuple(_mm_key_from_dict(mm_key) for mm_key in block.get("mm_keys") or ()),
    )
    return KVCacheStoredBlockData(block["block_hash"], key.packed, block["cache_level"], block["priority"])


def _mm_key_from_dict(mm_key: Mapping[str, Any]) -> MmItem:
    name, content_hash = None, mm_key.get("content_hash")
    if content_hash is None:
        content_hash = mm_key["hash"]
    else:
        name = mm_key["hash"]
    key = MmKey(bytes.fromhex(content_hash), mm_key["start_offset"], name)
    return PlacedMmKey(*key, mm_key["first_token"], mm_key["num_tokens"]) if "first_token" in mm_key else key
