"""VllmListener: puts what one publisher of vLLM's form says into a router's index."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from trtkv.common import WindowSize
from trtkv.errors import InvalidInputError
from trtkv.events.router_index import RouterIndex, WorkerRank
from trtkv.exporters.vllm_events import MEDIA, AllBlocksCleared, BlockRemoved, BlockStored, WireBatch

_FIRST_MEDIUM: Final = 1


class VllmListener:
    """Follows the numbered batches of one publisher, whose ranks may share it, and keeps a ``RouterIndex`` up to date.

    ``window_sizes``: those of the publisher's translator, in its order. Hashes are taken as they come: a prompt can be
    looked up by its tokens if the worker hashes as this package does, and by the worker's own hashes otherwise.
    A batch with a number already seen is skipped, unless it was packed later than all before: then the publisher
    restarted. ``needs_resync`` is set when batches are missing, and until AllBlocksCleared was read of every rank: a
    listener that starts late reads the batches kept for replays, or waits for what
    ``VllmEventTranslator.translate_snapshot`` gives. Blocks of several media count as long as one of
    the media has them.
    """

    def __init__(self, index: RouterIndex, worker: Hashable, window_sizes: Sequence[WindowSize]) -> None:
        if not window_sizes:
            raise InvalidInputError("no windows to listen to; give those of the publisher, in its order")
        index.expect_windows(window_sizes)
        self._index = index
        self._worker = worker
        self._window_sizes = list(window_sizes)
        self._media = {name: 1 << number for number, name in enumerate(MEDIA)}
        self._moved: dict[tuple[WorkerRank, WindowSize, int], int] = {}  # media of blocks not on the first one alone
        self._newest_ts = float("-inf")
        self._heard: set[int | None] = set()
        self._certain: set[int | None] = set()
        self.next_sequence = 0
        """Number that the next batch should have."""
        self.num_missed = 0
        """Batches that never arrived, as far as their numbers tell."""
        self.num_restarts = 0

    @property
    def needs_resync(self) -> bool:
        """Whether the entries of any rank may differ from its cache."""
        return not self._heard <= self._certain

    def list_media(self, name: WorkerRank, window_size: WindowSize, block_hash: int) -> list[str]:
        """Names of the media that have a block; none if it is not known."""
        media = self._media_of(name, window_size, block_hash)
        return [medium for medium, bit in self._media.items() if media & bit]

    def take(self, sequence: int, batch: WireBatch) -> None:
        """Apply a batch, or skip it if it was applied before. Raises InvalidInputError for a group without window."""
        for event in batch.events:
            self._window_of(event)
        if sequence < self.next_sequence:
            if batch.ts <= self._newest_ts:
                return
            self._start_over()
        elif sequence > self.next_sequence:
            self.num_missed += sequence - self.next_sequence
            self._certain.clear()
        self.next_sequence = sequence + 1
        self._newest_ts = max(self._newest_ts, batch.ts)
        self._heard.add(batch.data_parallel_rank)
        name = WorkerRank(self._worker, batch.data_parallel_rank)
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._store(name, self._window_of(event), event)
            elif isinstance(event, BlockRemoved):
                self._remove(name, self._window_of(event), event)
            else:
                self._forget(name)
                self._certain.add(batch.data_parallel_rank)

    def _start_over(self) -> None:
        self.num_restarts += 1
        for rank in self._heard:
            self._forget(WorkerRank(self._worker, rank))
        self._certain.clear()

    def _forget(self, name: WorkerRank) -> None:
        self._index.clear(name)
        self._moved = {key: media for key, media in self._moved.items() if key[0] != name}

    def _window_of(self, event: BlockStored | BlockRemoved | AllBlocksCleared) -> WindowSize:
        group = None if isinstance(event, AllBlocksCleared) else event.group_idx
        if group is None:
            return self._window_sizes[0]
        if not 0 <= group < len(self._window_sizes):
            raise InvalidInputError(
                f"event of group {group}, but windows {self._window_sizes} are known; give them all"
            )
        return self._window_sizes[group]

    def _store(self, name: WorkerRank, window_size: WindowSize, event: BlockStored) -> None:
        medium = self._bit_of(event.medium)
        for block_hash in event.block_hashes:
            media = self._media_of(name, window_size, block_hash)
            if not media:
                self._index.store(name, window_size, (block_hash,))
            self._note(name, window_size, block_hash, media | medium)

    def _remove(self, name: WorkerRank, window_size: WindowSize, event: BlockRemoved) -> None:
        medium = self._bit_of(event.medium)
        for block_hash in event.block_hashes:
            media = self._media_of(name, window_size, block_hash)
            if media & ~medium:
                self._note(name, window_size, block_hash, media & ~medium)
            else:
                self._index.discard(name, window_size, (block_hash,))
                self._moved.pop((name, window_size, block_hash), None)

    def _bit_of(self, medium: str | None) -> int:
        return _FIRST_MEDIUM if medium is None else self._media.setdefault(medium, 1 << len(self._media))

    def _media_of(self, name: WorkerRank, window_size: WindowSize, block_hash: int) -> int:
        held = _FIRST_MEDIUM if self._index.has(name, window_size, block_hash) else 0
        return self._moved.get((name, window_size, block_hash), held)

    def _note(self, name: WorkerRank, window_size: WindowSize, block_hash: int, media: int) -> None:
        key = name, window_size, block_hash
        if media == _FIRST_MEDIUM:
            self._moved.pop(key, None)
        else:
            self._moved[key] = media
