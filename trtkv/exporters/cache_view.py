"""CacheView: what one publisher's messages say is cached, by rank, adapter and tier, and what a prompt would find."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from trtkv.common import TokenId, WindowSize
from trtkv.errors import InvalidInputError
from trtkv.events.kv_cache_event_consumer import RankedEventConsumer
from trtkv.events.router_index import RouterIndex, WorkerRank
from trtkv.exporters.adapter_names import NO_NAMES
from trtkv.exporters.trtllm_json import event_from_dict
from trtkv.exporters.vllm_events import MEDIA, BlockStored, WireBatch, decode_batch
from trtkv.exporters.vllm_listener import VllmListener
from trtkv.keys.block_key import BlockKey
from trtkv.records.llm_request import LlmRequest

BASE_MODEL: Final = "-"
"""Stands for blocks without adapter."""
_WORKER: Final = "publisher"
_ONE_WINDOW: Final = 0
"""Stands for the window of a publisher that has one, as its batches do not tell the size."""


class ViewRow(NamedTuple):
    """Cached blocks of one kind. A block on two tiers counts on each."""

    rank: int | None
    adapter: str
    tier: str
    blocks: int
    tokens: int


class CacheView:
    """Takes messages whose payload is a vLLM batch (msgpack) or a list of events in TensorRT-LLM's JSON.

    ``window_sizes``: those of the publisher, the widest first; the others slide. None are needed for a publisher of one
    window. Only blocks of the first window are counted, as the same tokens lie in every window.
    """

    def __init__(self, tokens_per_block: int, window_sizes: Sequence[WindowSize] = ()) -> None:
        self._window_sizes = list(window_sizes)
        self._index = RouterIndex(tokens_per_block, max(window_sizes, default=None))
        self._consumer = RankedEventConsumer()
        self._listener: VllmListener | None = None
        self._described: dict[tuple[WorkerRank, int], tuple[str, int]] = {}
        self._adapter_ids: dict[str, int] = {}
        self.num_messages = 0

    @property
    def needs_resync(self) -> bool:
        """Whether the view may differ from the cache."""
        return bool(self._index.needs_resync) or (self._listener is not None and self._listener.needs_resync)

    def take(self, sequence: int, payload: bytes) -> None:
        """Apply a message. Raises InvalidInputError for a payload that is neither form, and changes nothing."""
        if payload[:1] in (b"[", b"{"):
            self._take_events(payload)
        else:
            self._take_batch(sequence, decode_batch(payload))
        self.num_messages += 1

    def _take_events(self, payload: bytes) -> None:
        try:
            rows = json.loads(payload)
        except ValueError as error:
            raise InvalidInputError(f"{len(payload)} bytes are not JSON: {error}") from error
        events = [event_from_dict(row) for row in (rows if isinstance(rows, list) else [rows])]
        heard = {event.window_size for event in events}
        windows = self._window_sizes or list(heard)[:1]
        if not heard <= set(windows):
            raise InvalidInputError(
                f"events of windows {sorted(heard, reverse=True)}, {windows} are watched; name all windows of the "
                "publisher, the widest first"
            )
        self._window_sizes = windows
        self._index.apply(_WORKER, events)
        self._consumer.apply(events)

    def _take_batch(self, sequence: int, batch: WireBatch) -> None:
        if self._listener is None:
            self._window_sizes = self._window_sizes or [_ONE_WINDOW]
            self._listener = VllmListener(self._index, _WORKER, self._window_sizes)
        self._listener.take(sequence, batch)
        name = WorkerRank(_WORKER, batch.data_parallel_rank)
        for event in batch.events:
            if isinstance(event, BlockStored) and not event.group_idx:
                adapter = event.lora_name or NO_NAMES.get(event.lora_id) or BASE_MODEL
                if event.lora_id is not None:
                    self._adapter_ids[adapter] = event.lora_id
                for block_hash in event.block_hashes:
                    self._described[name, block_hash] = adapter, event.block_size

    def count(self) -> list[ViewRow]:
        """Blocks and tokens by rank, adapter and tier, sorted. Walks over all blocks."""
        blocks: Counter[tuple[int | None, str, str]] = Counter()
        tokens: Counter[tuple[int | None, str, str]] = Counter()
        for (name, block_hash), (adapter, num_tokens) in list(self._described.items()):
            media = self._list_media(name, block_hash)
            if not media:
                del self._described[name, block_hash]
            for medium in media:
                blocks[name.rank, adapter, medium] += 1
                tokens[name.rank, adapter, medium] += num_tokens
        for rank, consumer in self._consumer.ranks.items():
            for block in consumer.get_tree(self._window_sizes[0]).blocks.values():
                key = BlockKey.unpack(block.block_key)
                row = rank, NO_NAMES.get(key.lora_task_id) or BASE_MODEL, MEDIA[block.cache_level]
                blocks[row] += 1
                tokens[row] += key.num_tokens
        order = sorted(blocks, key=lambda row: (-1 if row[0] is None else row[0], row[1:]))
        return [ViewRow(*row, blocks[row], tokens[row]) for row in order]

    def _list_media(self, name: WorkerRank, block_hash: int) -> list[str]:
        return [] if self._listener is None else self._listener.list_media(name, self._window_sizes[0], block_hash)

    def find(
        self, tokens: Iterable[TokenId], adapter: str | None = None, cache_salt: str | None = None
    ) -> dict[int | None, int]:
        """Rank -> tokens of a prompt that it would find; ranks without any are left out.

        ``adapter``: a name that was heard of, or a number.
        """
        request = LlmRequest(0, list(tokens), 1, lora_task_id=self._adapter_id(adapter), cache_salt=cache_salt)
        return {name.rank: found for name, found in self._index.find_request(request).items()}

    def _adapter_id(self, adapter: str | None) -> int | None:
        if adapter is None or adapter in self._adapter_ids:
            return self._adapter_ids.get(adapter or "")
        number = adapter.removeprefix("lora-")
        if not number.isascii() or not number.isdecimal():
            known = ", ".join(sorted(self._adapter_ids)) or "none"
            raise InvalidInputError(f"adapter {adapter!r} has not been heard of ({known} so far); give its number")
        return int(number)
