"""Values of the trace format and the objects they stand for: keys, retention, slots, hashes, metadata."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final

from trtkv.common import DataType, KvCacheTransferMode
from trtkv.records.kv_cache_index import NULL_INDEX, KVCacheIndex, get_slot, is_primary
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.records.llm_request import LlmRequestState
from trtkv.records.retention_config import DEFAULT_RETENTION_PRIORITY, KvCacheRetentionConfig, TokenRangeRetentionConfig
from trtkv.records.window_size_metadata import PoolConfiguration
from trtkv.verify.json_kinds import (
    BOOL,
    INT,
    INTS,
    STR,
    Args,
    JsonValue,
    choice,
    content_hash_text,
    list_of,
    nullable,
    record,
    tuple_of,
    uint64,
)

if TYPE_CHECKING:
    from trtkv.keys.block_key import BlockKey
    from trtkv.keys.packed_key import PackedKey

_FLOAT32: Final = struct.Struct("<f")

STATE_KIND: Final = choice([state.name.lower() for state in LlmRequestState])
DTYPE_KIND: Final = choice([dtype.value for dtype in DataType])

RETENTION_KIND: Final = record(
    {"ranges": list_of(tuple_of(INT, nullable(INT), INT, nullable(INT)))},
    {
        "decode_priority": INT,
        "decode_duration_ms": nullable(INT),
        "transfer_mode": choice([mode.value for mode in KvCacheTransferMode]),
        "directory": STR,
    },
)

KEY_KIND: Final = record(
    {"tokens": INTS},
    {
        "extra_ids": nullable(list_of(uint64)),
        "uses_extra_ids": BOOL,
        "lora": nullable(uint64),
        "salt": nullable(STR),
        "mm": list_of(tuple_of(content_hash_text, uint64, nullable(STR))),
    },
)

LINEAR_ATTENTION_KIND: Final = record(
    {},
    {
        "linear_layer_indices": INTS,
        "all_recurrent_states_bytes": INT,
        "states_snapshot_interval": INT,
        "save_last_snapshot": BOOL,
        "num_placeholder_blocks": nullable(INT),
    },
)

POOL_CONFIGURATION_KIND: Final = tuple_of(INT, INT, DTYPE_KIND)


def to_float32(value: float) -> float:
    """The nearest float32, widened again; infinite beyond its range."""
    try:
        return float(_FLOAT32.unpack(_FLOAT32.pack(value))[0])
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def write_hash(value: int) -> str:
    """A 64-bit hash as 16 hex digits."""
    return f"{value:016x}"


def write_slot(index: KVCacheIndex) -> int | None:
    """Primary slot s as s, secondary slot s as -1 - s, no memory as None."""
    if index == NULL_INDEX:
        return None
    return index if is_primary(index) else -1 - get_slot(index)


def read_state(name: str) -> LlmRequestState:
    """State of a lower-case name."""
    return LlmRequestState[name.upper()]


def read_retention(value: Args) -> KvCacheRetentionConfig:
    """Retention config of a ``retention`` object; raises what the config raises for bad ranges."""
    return KvCacheRetentionConfig(
        [TokenRangeRetentionConfig(*entry) for entry in value["ranges"]],
        value.get("decode_priority", DEFAULT_RETENTION_PRIORITY),
        value.get("decode_duration_ms"),
        KvCacheTransferMode(value.get("transfer_mode", KvCacheTransferMode.DRAM)),
        value.get("directory", ""),
    )


def read_linear_attention(value: Args | None) -> LinearAttentionMetadata | None:
    """Metadata of a ``linear_attention`` object."""
    return None if value is None else LinearAttentionMetadata(**value)


def read_pool_configurations(value: JsonValue) -> tuple[PoolConfiguration, ...]:
    """Pool configurations from ``[[window, head size, dtype], ...]``."""
    return tuple(PoolConfiguration(window, size_per_head, DataType(dtype)) for window, size_per_head, dtype in value)


def read_key(value: Args) -> BlockKey:
    """Block key of a key object."""
    from trtkv.keys.block_key import BlockKey
    from trtkv.keys.packed_key import MmKey
    from trtkv.keys.recorded_name import RecordedName

    tokens = value["tokens"]
    extra_ids = value.get("extra_ids")
    uses_extra_ids = value.get("uses_extra_ids", extra_ids is not None)
    if extra_ids is None:
        extra_ids = [0] * len(tokens)
    return BlockKey(
        tokens=tuple(tokens),
        extra_ids=tuple(extra_ids) if uses_extra_ids else None,
        lora_task_id=value.get("lora"),
        cache_salt=value.get("salt"),
        extra_keys=tuple(
            MmKey(bytes.fromhex(digest), start, None if uuid is None else RecordedName(uuid))
            for digest, start, uuid in value.get("mm", ())
        ),
    )


def write_key(key: BlockKey) -> dict[str, JsonValue]:
    """Key object of a block key, as answers of queries show it."""
    result = write_event_key(key)
    if key.uses_extra_ids:
        result["uses_extra_ids"] = True
    return result


def write_packed_key(packed: PackedKey) -> dict[str, JsonValue]:
    """Key object of a packed key."""
    from trtkv.keys.block_key import BlockKey

    return write_key(BlockKey.unpack(packed))


def write_event_key(key: BlockKey) -> dict[str, JsonValue]:
    """Fields of a key as stored events carry them: no flag for extra ids."""
    tokens: list[JsonValue] = list(key.tokens)
    if key.extra_ids and any(key.extra_ids):
        tokens = [list(pair) for pair in zip(key.tokens, key.extra_ids, strict=True)]
    result: dict[str, JsonValue] = {"tokens": tokens}
    if key.lora_task_id is not None:
        result["lora"] = key.lora_task_id
    if key.cache_salt is not None:
        result["salt"] = key.cache_salt
    if key.extra_keys:
        result["mm"] = [
            [mm.hash.hex(), mm.start_offset, None if mm.uuid is None else str(mm.uuid)] for mm in key.extra_keys
        ]
    return result
