"""Events in the JSON form of TensorRT-LLM's event API, to and from plain dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

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
from trtkv.keys.block_key import BlockKey
from trtkv.keys.packed_key import MmKey

JsonObject = dict[str, Any]


def events_to_dicts(events: Iterable[KVCacheEvent]) -> list[JsonObject]:
    """``event_to_dict`` for each."""
    return [event_to_dict(event) for event in events]


def event_to_dict(event: KVCacheEvent) -> JsonObject:
    """One event as TensorRT-LLM writes it; ``attention_dp_rank`` is left out without ranks.

    Hashes are unsigned 64-bit integers. Beside the original's fields a multimodal key with a name carries its content
    hash as ``content_hash``, as the name takes the place of ``hash`` there.
    """
    result: JsonObject = {"event_id": event.event_id, "data": _data_to_dict(event.data)}
    result["window_size"] = event.window_size
    if event.attention_dp_rank is not None:
        result["attention_dp_rank"] = event.attention_dp_rank
    return result


def _data_to_dict(data: KVCacheEventData) -> JsonObject:
    if isinstance(data, KVCacheCreatedData):
        return {"type": "created", "num_blocks_per_cache_level": list(data.num_blocks_per_cache_level)}
    if isinstance(data, KVCacheStoredData):
        blocks = [_block_to_dict(block) for block in data.blocks]
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


def _block_to_dict(block: KVCacheStoredBlockData) -> JsonObject:
    key = BlockKey.unpack(block.block_key)
    extra_ids = key.extra_ids or (0,) * key.num_tokens
    return {
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


def _mm_key_to_dict(mm_key: MmKey) -> JsonObject:
    result: JsonObject = {"type": "mm_key", "hash": mm_key.hash.hex(), "start_offset": mm_key.start_offset}
    if mm_key.uuid is not None:
        result["content_hash"] = result["hash"]
        result["hash"] = mm_key.uuid
    return result


# -- reading ----------------------------------------------------------------------------------------


def event_from_dict(value: Mapping[str, Any]) -> KVCacheEvent:
    """The event of a dictionary; fields that older versions do not write may be missing.

    Raises InvalidInputError naming what is missing or wrong. Extra ids that are all 0 count as not used; whether they
    were is not in this form.
    """
    try:
        return KVCacheEvent(
            int(value["event_id"]),
            _data_from_dict(value["data"]),
            int(value["window_size"]),
            value.get("attention_dp_rank"),
        )
    except KeyError as error:
        raise InvalidInputError(f"event {value.get('event_id')} has no field {error}; give the whole event") from error
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidInputError(f"this is no event of the JSON form: {error}") from error


def _data_from_dict(data: Mapping[str, Any]) -> KVCacheEventData:
    kind = data["type"]
    if kind == "created":
        primary, secondary = data["num_blocks_per_cache_level"]
        return KVCacheCreatedData((primary, secondary))
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
        extra_ids if any(extra_ids) else None,
        block.get("lora_id"),
        block.get("cache_salt"),
        tuple(_mm_key_from_dict(mm_key) for mm_key in block.get("mm_keys") or ()),
    )
    return KVCacheStoredBlockData(block["block_hash"], key.packed, block["cache_level"], block["priority"])


def _mm_key_from_dict(mm_key: Mapping[str, Any]) -> MmKey:
    content_hash = mm_key.get("content_hash")
    if content_hash is not None:
        return MmKey(bytes.fromhex(content_hash), mm_key["start_offset"], mm_key["hash"])
    return MmKey(bytes.fromhex(mm_key["hash"]), mm_key["start_offset"], None)
