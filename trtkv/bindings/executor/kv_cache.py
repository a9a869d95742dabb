"""``tensorrt_llm.bindings.executor.kv_cache``: events of a manager, class by class."""

from __future__ import annotations

from trtkv.bindings._keys import BlockKey, UniqueToken
from trtkv.events import kv_cache_events as core


class KVCacheCreatedData:
    """A window came into being."""

    def __init__(self, data: core.KVCacheCreatedData) -> None:
        self._num_blocks_per_cache_level = list(data.num_blocks_per_cache_level)

    @property
    def num_blocks_per_cache_level(self) -> list[int]:
        """Primary and secondary blocks."""
        return list(self._num_blocks_per_cache_level)


class KVCacheStoredBlockData:
    """One block put into the tree; its tokens are unpacked when asked for."""

    def __init__(self, data: core.KVCacheStoredBlockData) -> None:
        self._data = data

    @property
    def block_hash(self) -> int:
        """Hash of the block with all before it."""
        return self._data.block_hash

    @property
    def tokens(self) -> list[UniqueToken]:
        """Tokens with extra ids."""
        return BlockKey.wrap(self._data.block_key).unique_tokens

    @property
    def lora_id(self) -> int | None:
        """The adapter."""
        return BlockKey.wrap(self._data.block_key).lora_task_id

    @property
    def cache_salt(self) -> str | None:
        """The salt."""
        return BlockKey.wrap(self._data.block_key).core.cache_salt

    @property
    def mm_keys(self) -> list[object]:
        """Images and the like in the block."""
        return list(BlockKey.wrap(self._data.block_key).core.extra_keys)

    @property
    def cache_level(self) -> int:
        """0 primary, 1 secondary."""
        return self._data.cache_level

    @property
    def priority(self) -> int:
        """Retention priority."""
        return self._data.priority


class KVCacheStoredData:
    """A chain of blocks put into the tree."""

    def __init__(self, data: core.KVCacheStoredData) -> None:
        self._parent_hash = data.parent_hash
        self._blocks = [KVCacheStoredBlockData(block) for block in data.blocks]

    @property
    def parent_hash(self) -> int | None:
        """Hash of the block above; None for the root."""
        return self._parent_hash

    @property
    def blocks(self) -> list[KVCacheStoredBlockData]:
        """The blocks, parents first."""
        return list(self._blocks)


class KVCacheRemovedData:
    """Blocks that left the tree."""

    def __init__(self, data: core.KVCacheRemovedData) -> None:
        self._block_hashes = list(data.block_hashes)

    @property
    def block_hashes(self) -> list[int]:
        """Their hashes."""
        return list(self._block_hashes)


class KVCacheEventDiffInt:
    """A number before and after."""

    def __init__(self, old_value: int, new_value: int) -> None:
        self._values = (old_value, new_value)

    @property
    def old_value(self) -> int:
        """Before."""
        return self._values[0]

    @property
    def new_value(self) -> int:
        """After."""
        return self._values[1]


class KVCacheUpdatedData:
    """A block changed level or priority; what did not change is None."""

    def __init__(self, data: core.KVCacheUpdatedData) -> None:
        self._block_hash = data.block_hash
        self._cache_level = None if data.cache_level is None else KVCacheEventDiffInt(*data.cache_level)
        self._priority = None if data.priority is None else KVCacheEventDiffInt(*data.priority)

    @property
    def block_hash(self) -> int:
        """Hash of the block."""
        return self._block_hash

    @property
    def cache_level(self) -> KVCacheEventDiffInt | None:
        """The levels."""
        return self._cache_level

    @property
    def priority(self) -> KVCacheEventDiffInt | None:
        """The priorities."""
        return self._priority


KVCacheEventData = KVCacheCreatedData | KVCacheStoredData | KVCacheRemovedData | KVCacheUpdatedData


def _wrap_data(data: core.KVCacheEventData) -> KVCacheEventData:
    if isinstance(data, core.KVCacheCreatedData):
        return KVCacheCreatedData(data)
    if isinstance(data, core.KVCacheStoredData):
        return KVCacheStoredData(data)
    if isinstance(data, core.KVCacheRemovedData):
        return KVCacheRemovedData(data)
    return KVCacheUpdatedData(data)


class KVCacheEvent:
    """One event."""

    def __init__(self, event: core.KVCacheEvent) -> None:
        self._event = event
        self._data = _wrap_data(event.data)

    @property
    def event_id(self) -> int:
        """Grows by one."""
        return self._event.event_id

    @property
    def data(self) -> KVCacheEventData:
        """What happened."""
        return self._data

    @property
    def window_size(self) -> int:
        """In which window."""
        return self._event.window_size

    @property
    def attention_dp_rank(self) -> int | None:
        """On which rank."""
        return self._event.attention_dp_rank
