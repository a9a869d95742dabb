"""Events in vLLM's msgpack form: blocks stored, blocks removed, all blocks cleared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from trtkv.checks import check_count
from trtkv.common import PRIMARY_LEVEL, RECURRENT_STATES, WindowSize
from trtkv.errors import InvalidInputError, MissingExtraError
from trtkv.events.kv_cache_event_consumer import CachedBlock, KVCacheEventConsumer
from trtkv.events.kv_cache_events import (
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheRemovedData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)
from trtkv.exporters.adapter_names import AdapterNames
from trtkv.keys.block_key import BlockKey
from trtkv.keys.packed_key import MmItem, PlacedMmKey, num_key_tokens

VLLM_VERSION: Final = "0.33"
"""Version whose form is written by default."""
VLLM_VERSIONS: Final = (VLLM_VERSION, "0.10")
"""Forms that can be written: events as maps and images with offsets, or events as arrays and images without."""

MEDIA: Final = ("GPU", "CPU")
"""Names of the primary and the secondary level."""


class BlockStored(NamedTuple):
    """Full blocks that hang below one another, the first below ``parent_block_hash`` (None: the root)."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = MEDIA[PRIMARY_LEVEL]
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(NamedTuple):
    """Blocks that are gone from a medium."""

    block_hashes: list[int]
    medium: str | None = MEDIA[PRIMARY_LEVEL]
    group_idx: int | None = None


class AllBlocksCleared(NamedTuple):
    """Nothing is cached any more, or yet."""


WireEvent: TypeAlias = "BlockStored | BlockRemoved | AllBlocksCleared"

_WIRE_TYPES: Final[Mapping[str, type[BlockStored] | type[BlockRemoved] | type[AllBlocksCleared]]] = {
    "BlockStored": BlockStored,
    "BlockRemoved": BlockRemoved,
    "AllBlocksCleared": AllBlocksCleared,
}
_NUM_REQUIRED: Final = {"BlockStored": 7, "BlockRemoved": 2, "AllBlocksCleared": 0}
"""Fields that are always written; later ones only up to the last that is set."""


class WireBatch(NamedTuple):
    """One message: events of one rank at one time (seconds)."""

    ts: float
    events: list[WireEvent]
    data_parallel_rank: int | None = None


class VllmEventTranslator:
    """Turns the events of managers into vLLM's, rank by rank; keeps what is needed to do so consistently.

    ``window_sizes``: windows to publish; several become groups in this order. Consumers that know one group only, such
    as Dynamo's router, get the widest. ``include_partial_blocks``: vLLM never reports blocks that are not full, and
    Dynamo does not index them, so by default they are left out together with their removals.
    ``report_media``: whether a block that moves to the host is reported there (stored, then removed from the other
    medium). By default media are not told apart: the block can be matched all the same. Priorities are not reported.
    The created event that begins a stream becomes AllBlocksCleared, so that nothing of an earlier run lingers.
    Where several cached blocks share a hash, its removal is reported when the last is gone, as listeners keep sets.
    ``adapter_names``: names of adapters, by which listeners tell their blocks apart. ``vllm_version``: one of
    ``VLLM_VERSIONS``; decides how images are written, and the layout that ``VllmEventEncoder`` packs.
    """

    def __init__(
        self,
        tokens_per_block: int,
        window_sizes: Sequence[WindowSize],
        *,
        include_partial_blocks: bool = False,
        report_media: bool = False,
        adapter_names: Mapping[int, str] | None = None,
        vllm_version: str = VLLM_VERSION,
    ) -> None:
        if vllm_version not in VLLM_VERSIONS:
            raise InvalidInputError(f"vllm_version is {vllm_version!r}; give one of {', '.join(VLLM_VERSIONS)}")
        if not window_sizes or len(set(window_sizes)) != len(window_sizes):
            raise InvalidInputError(f"windows to publish are {list(window_sizes)}; give at least one, each once")
        self._tokens_per_block = check_count("tokens_per_block", tokens_per_block, 1)
        self._window_sizes = list(window_sizes)
        self._include_partial_blocks = include_partial_blocks
        self._report_media = report_media
        self._adapter_names = AdapterNames(adapter_names)
        self.vllm_version: Final = vllm_version
        self._num_live: dict[tuple[int | None, WindowSize], dict[int, int]] = {}
        self._suppressed: set[tuple[int | None, WindowSize, int]] = set()
        self._consumers: dict[int | None, KVCacheEventConsumer] = {}

    def translate(self, events: Iterable[KVCacheEvent]) -> dict[int | None, list[WireEvent]]:
        """Wire events by rank, in order; ranks without any are left out."""
        result: dict[int | None, list[WireEvent]] = {}
        for event in events:
            if event.window_size not in self._window_sizes:
                continue
            wire_events = self._translate_event(event)
            if wire_events:
                result.setdefault(event.attention_dp_rank, []).extend(wire_events)
        return result

    def translate_snapshot(self, events: Sequence[KVCacheEvent]) -> dict[int | None, list[WireEvent]]:
        """What makes listeners start anew: AllBlocksCleared, then every cached block.

        For a stream that has lost events; give what ``KVCacheManager.get_cached_block_events()`` returns (of one rank).
        """
        if not events:
            raise InvalidInputError("no events to start from; give those of get_cached_block_events()")
        rank = events[0].attention_dp_rank
        self._forget(rank)
        result = self.translate(events)
        if self._report_media:
            self._consumers.setdefault(rank, KVCacheEventConsumer(rank)).resync(events)
        return result

    def _translate_event(self, event: KVCacheEvent) -> list[WireEvent]:
        data = event.data
        if isinstance(data, KVCacheCreatedData):
            if event.window_size != self._window_sizes[0]:
                return []
            self._forget(event.attention_dp_rank)
            return [AllBlocksCleared()]
        if isinstance(data, KVCacheStoredData):
            wire_events = self._translate_stored(event, data)
            self._follow(event)
            return wire_events
        if isinstance(data, KVCacheRemovedData):
            wire_events = self._translate_removed(event, data)
            self._follow(event)
            return wire_events
        return self._translate_updated(event, data)

    def _forget(self, rank: int | None) -> None:
        """Nothing of a rank is reported yet."""
        self._suppressed = {name for name in self._suppressed if name[0] != rank}
        self._num_live = {name: counts for name, counts in self._num_live.items() if name[0] != rank}
        self._consumers.pop(rank, None)

    def _follow(self, event: KVCacheEvent) -> None:
        """Keep the tree, which is needed to describe a block again when it moves."""
        if self._report_media:
            rank = event.attention_dp_rank
            consumer = self._consumers.setdefault(rank, KVCacheEventConsumer(rank))
            consumer.apply((event,))

    def _get_block(self, event: KVCacheEvent, block_hash: int) -> CachedBlock | None:
        consumer = self._consumers.get(event.attention_dp_rank)
        return None if consumer is None else consumer.get_tree(event.window_size).blocks.get(block_hash)

    # -- stored ---------------------------------------------------------------------------------------

    def _translate_stored(self, event: KVCacheEvent, data: KVCacheStoredData) -> list[WireEvent]:
        wire_events: list[WireEvent] = []
        run: list[tuple[int, CachedBlock]] = []
        parent_hash = data.parent_hash
        counts = self._num_live.setdefault((event.attention_dp_rank, event.window_size), {})
        for entry in data.blocks:
            block = CachedBlock(parent_hash, entry.block_key, entry.cache_level, entry.priority)
            parent_hash = entry.block_hash
            is_full = num_key_tokens(entry.block_key) == self._tokens_per_block
            if is_full or self._include_partial_blocks:
                counts[entry.block_hash] = counts.get(entry.block_hash, 0) + 1
            if is_full:
                if run and run[0][1].cache_level != block.cache_level:
                    wire_events += self._describe(event, run)
                    run = []
                run.append((entry.block_hash, block))
                self._suppressed.discard((event.attention_dp_rank, event.window_size, entry.block_hash))
                continue
            wire_events += self._describe(event, run)
            run = []
            if self._include_partial_blocks:
                wire_events += self._describe(event, [(entry.block_hash, block)])
            else:
                self._suppressed.add((event.attention_dp_rank, event.window_size, entry.block_hash))
        return wire_events + self._describe(event, run)

    def _describe(self, event: KVCacheEvent, run: Sequence[tuple[int, CachedBlock]]) -> list[WireEvent]:
        """One BlockStored for blocks that hang below one another, on one level; none for no block."""
        if not run:
            return []
        keys = [BlockKey.unpack(block.block_key) for _, block in run]
        first = run[0][1]
        write_image = _write_named_image if self.vllm_version == VLLM_VERSION else _write_image
        extra_keys = [_list_extra_keys(key, block, write_image) for key, (_, block) in zip(keys, run, strict=True)]
        kind, sliding_window = self._describe_window(event.window_size)
        stored = BlockStored(
            block_hashes=[block_hash for block_hash, _ in run],
            parent_block_hash=first.parent_hash,
            token_ids=[token for key in keys for token in key.tokens],
            block_size=keys[0].num_tokens,
            lora_id=keys[0].lora_task_id,
            medium=self._name_medium(first.cache_level),
            lora_name=self._adapter_names.get(keys[0].lora_task_id),
            extra_keys=extra_keys if any(extra_keys) else None,
            group_idx=self._get_group(event.window_size),
            kv_cache_spec_kind=kind,
            kv_cache_spec_sliding_window=sliding_window,
        )
        return [stored]

    def _get_group(self, window_size: WindowSize) -> int | None:
        return self._window_sizes.index(window_size) if len(self._window_sizes) > 1 else None

    def _describe_window(self, window_size: WindowSize) -> tuple[str | None, int | None]:
        if len(self._window_sizes) == 1:
            return None, None
        if window_size == RECURRENT_STATES:
            return "mamba", None
        if window_size == max(self._window_sizes):
            return "full_attention", None
        return "sliding_window", window_size

    def _name_medium(self, cache_level: int) -> str:
        return MEDIA[cache_level if self._report_media else PRIMARY_LEVEL]

    # -- removed and updated --------------------------------------------------------------------------

    def _translate_removed(self, event: KVCacheEvent, data: KVCacheRemovedData) -> list[WireEvent]:
        by_medium: dict[str, list[int]] = {}
        counts = self._num_live.get((event.attention_dp_rank, event.window_size), {})
        for block_hash in data.block_hashes:
            name = (event.attention_dp_rank, event.window_size, block_hash)
            if name in self._suppressed:
                self._suppressed.discard(name)
                continue
            count = counts.pop(block_hash, 0)
            if count > 1:
                counts[block_hash] = count - 1
                continue
            block = self._get_block(event, block_hash)
            level = PRIMARY_LEVEL if block is None else block.cache_level
            by_medium.setdefault(self._name_medium(level), []).append(block_hash)
        group = self._get_group(event.window_size)
        return [BlockRemoved(hashes, medium, group) for medium, hashes in by_medium.items()]

    def _translate_updated(self, event: KVCacheEvent, data: KVCacheUpdatedData) -> list[WireEvent]:
        self._follow(event)
        block = self._get_block(event, data.block_hash)
        name = (event.attention_dp_rank, event.window_size, data.block_hash)
        if data.cache_level is None or block is None or name in self._suppressed:
            return []
        removed = BlockRemoved(
            [data.block_hash], self._name_medium(data.cache_level[0]), self._get_group(event.window_size)
        )
        return [*self._describe(event, [(data.block_hash, block)]), removed]


def _list_extra_keys(key: BlockKey, block: CachedBlock, write_image: Callable[[MmItem], list[Any]]) -> list[Any] | None:
    """What else tells the block apart: images, extra ids, and the salt on the first block of a prompt.

    A salt is a text; all else are pairs, of a text and a number for an image, of a word and what it names otherwise.
    """
    extra: list[Any] = [entry for mm_key in key.extra_keys for entry in write_image(mm_key)]
    if key.cache_salt is not None and block.parent_hash is None:
        extra.append(key.cache_salt)
    if key.extra_ids is not None:
        extra.append(["token_extra_ids", list(key.extra_ids)])
    return extra or None


def _write_image(mm_key: MmItem) -> list[Any]:
    """The identifier alone: the name, or the content hash where there is no name."""
    return [mm_key.hash.hex() if mm_key.uuid is None else str(mm_key.uuid)]


def _write_named_image(mm_key: MmItem) -> list[Any]:
    """Identifier and offset; place, and content of a named image, are pairs of their own: the manager compares them."""
    place = [["place", [mm_key.first_token, mm_key.num_tokens]]] if isinstance(mm_key, PlacedMmKey) else []
    if mm_key.uuid is None:
        return [[mm_key.hash.hex(), mm_key.start_offset], *place]
    return [[str(mm_key.uuid), mm_key.start_offset], ["content_hash", mm_key.hash.hex()], *place]


# -- msgpack ----------------------------------------------------------------------------------------


class VllmEventEncoder:
    """Translates events and packs one message a rank (extra ``events``).

    ``as_maps``: events as maps tagged ``type``, which vLLM 0.33 and TensorRT-LLM's push path write, or as arrays that
    begin with the tag, as older versions do; by default as the version of the translator has them. ``clock`` returns
    seconds since the epoch.
    """

    def __init__(
        self,
        translator: VllmEventTranslator,
        *,
        as_maps: bool | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._translator = translator
        self._as_maps = translator.vllm_version == VLLM_VERSION if as_maps is None else as_maps
        self._clock = clock
        self._pack = _import_msgpack().encode

    def encode(self, events: Iterable[KVCacheEvent]) -> dict[int | None, bytes]:
        """One payload for each rank that has anything to report."""
        return {
            rank: self.encode_batch(WireBatch(self._clock(), wire_events, rank))
            for rank, wire_events in self._translator.translate(events).items()
        }

    def encode_batch(self, batch: WireBatch) -> bytes:
        """The payload of one batch."""
        write = _write_map if self._as_maps else _write_array
        events = [write(event) for event in batch.events]
        rank = [] if batch.data_parallel_rank is None else [batch.data_parallel_rank]
        packed: bytes = self._pack([batch.ts, events, *rank])
        return packed


def _write_array(event: WireEvent) -> list[Any]:
    tag = type(event).__name__
    num_fields = len(event)
    while num_fields > _NUM_REQUIRED[tag] and event[num_fields - 1] is None:
        num_fields -= 1
    return [tag, *event[:num_fields]]


def _write_map(event: WireEvent) -> dict[str, Any]:
    tag = type(event).__name__
    fields = zip(type(event)._fields, event, range(len(event)), strict=True)
    return {"type": tag} | {
        name: value for name, value, index in fields if index < _NUM_REQUIRED[tag] or value is not None
    }


def decode_batch(payload: bytes) -> WireBatch:
    """Read a message of either layout; fields that the writer does not know take their defaults, unknown ones go.

    Raises InvalidInputError for anything else.
    """
    msgpack = _import_msgpack()
    try:
        ts, events, *rest = msgpack.decode(payload)
        return WireBatch(ts, [_read_event(event) for event in events], rest[0] if rest else None)
    except InvalidInputError:
        raise
    except Exception as error:  # msgspec has its own error types, known only once it is imported
        raise InvalidInputError(f"{len(payload)} bytes are not an event batch: {error}") from error


def _read_event(event: Any) -> WireEvent:
    tag = str(event.get("type") if isinstance(event, dict) else event[0])
    wire_type = _WIRE_TYPES.get(tag)
    if wire_type is None:
        raise InvalidInputError(f"unknown event {tag!r}; known are {', '.join(_WIRE_TYPES)}")
    if isinstance(event, dict):
        return wire_type(**{name: value for name, value in event.items() if name in wire_type._fields})
    return wire_type(*event[1 : 1 + len(wire_type._fields)])


def _import_msgpack() -> Any:
    try:
        import msgspec.msgpack
    except ImportError as error:
        raise MissingExtraError('vLLM events need msgspec: pip install "trtkv[events]"') from error
    return msgspec.msgpack
