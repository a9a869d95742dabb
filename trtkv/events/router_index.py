"""RouterIndex: which worker holds how much of a prompt, from the events of all workers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from trtkv.checks import check_count
from trtkv.common import RECURRENT_STATES, WindowSize, ceil_div
from trtkv.errors import InvalidInputError
from trtkv.events.block_holders import BlockHolders
from trtkv.events.event_sequence import Arrival, EventSequence
from trtkv.events.kv_cache_events import KVCacheEvent, KVCacheRemovedData, KVCacheStoredData
from trtkv.keys.key_builder import build_block_keys
from trtkv.keys.key_hash import hash_key_chain
from trtkv.records.llm_request import LlmRequest


class WorkerRank(NamedTuple):
    """One manager: a worker, by whatever name the router gives it, and its attention-DP rank, if it has any."""

    worker: Hashable
    rank: int | None = None


class PromptHashes(NamedTuple):
    """What a prompt is looked up by: the chain hash of each block, and the tokens that they stand for together."""

    block_hashes: Sequence[int]
    num_tokens: int


class _Holder:
    __slots__ = ("num_unknown", "number", "sequence")

    def __init__(self, number: int) -> None:
        self.number = number
        self.sequence = EventSequence()
        self.num_unknown = 0


class RouterIndex:
    """The cached blocks of many workers, by chain hash.

    All workers serve one model with ``tokens_per_block`` and the same windows. Windows shorter than
    ``max_sequence_length`` slide, as in the manager: there a prefix may lack blocks that its end does not see. Without
    it no window slides. Answers count blocks that are found whole. Workers with partial reuse also find a last block
    that was stored with exactly the tokens asked for, which counts, or up to ``tokens_per_block - 1`` tokens of
    another, which do not; ``enable_partial_reuse`` says whether they have it.

    Restarts, gaps and repeats are detected worker by worker and rank by rank; ``needs_resync`` names those whose
    entries may be wrong until ``resync``. Not thread-safe.
    """

    def __init__(
        self, tokens_per_block: int, max_sequence_length: int | None = None, *, enable_partial_reuse: bool = True
    ) -> None:
        self._tokens_per_block = check_count("tokens_per_block", tokens_per_block, 1)
        if max_sequence_length is not None:
            check_count("max_sequence_length", max_sequence_length, 1)
        self._max_sequence_length = max_sequence_length
        self._enable_partial_reuse = enable_partial_reuse
        self._windows: dict[WindowSize, BlockHolders] = {}
        self._holders: dict[WorkerRank, _Holder] = {}
        self._names: dict[int, WorkerRank] = {}
        self._unused: list[int] = []  # numbers of workers that are gone

    # -- what is known ------------------------------------------------------------------------------------

    @property
    def workers(self) -> list[WorkerRank]:
        """Workers and ranks heard of."""
        return list(self._holders)

    @property
    def num_hashes(self) -> Mapping[WindowSize, int]:
        """Different hashes by window, over all workers."""
        return {window_size: len(holders) for window_size, holders in self._windows.items()}

    @property
    def needs_resync(self) -> list[WorkerRank]:
        """Workers and ranks whose entries may differ from their caches."""
        return [name for name, holder in self._holders.items() if holder.sequence.needs_resync]

    def count_blocks(self, name: WorkerRank, window_size: WindowSize) -> int:
        """Different hashes of one worker in a window. Walks over all."""
        holder, window = self._holders.get(name), self._windows.get(window_size)
        return 0 if holder is None or window is None else window.count(holder.number)

    def count_unknown(self, name: WorkerRank) -> int:
        """Removals of blocks that were not known; none in a stream that was followed from its start."""
        return self._holders[name].num_unknown if name in self._holders else 0

    def has(self, name: WorkerRank, window_size: WindowSize, block_hash: int) -> bool:
        """Whether a worker has a block."""
        holder, window = self._holders.get(name), self._windows.get(window_size)
        return holder is not None and window is not None and window.has(holder.number, block_hash)

    # -- listening ----------------------------------------------------------------------------------------

    def apply(self, worker: Hashable, events: Iterable[KVCacheEvent]) -> None:
        """Apply events of a worker in their order, of any of its ranks; those applied already are skipped."""
        for event in events:
            holder = self._get_holder(WorkerRank(worker, event.attention_dp_rank))
            arrival = holder.sequence.take(event)
            if arrival is Arrival.KNOWN:
                continue
            if arrival is Arrival.RESTART:
                self._clear(holder)
            self._apply_event(holder, event)

    def resync(self, worker: Hashable, events: Sequence[KVCacheEvent]) -> None:
        """Replace what is known of one rank by a snapshot, ``KVCacheManager.get_cached_block_events()``."""
        if not events:
            raise InvalidInputError("no events to start from; give those of get_cached_block_events()")
        ranks = {event.attention_dp_rank for event in events}
        if len(ranks) > 1:
            raise InvalidInputError(f"the events are of ranks {ranks}; give the snapshot of one rank")
        holder = self._get_holder(WorkerRank(worker, ranks.pop()))
        self._clear(holder)
        for event in events:
            self._apply_event(holder, event)
        holder.sequence.start_from(events[-1])

    def remove_worker(self, worker: Hashable) -> None:
        """Forget a worker and all its ranks; one that is not known is ignored."""
        for name in [name for name in self._holders if name.worker == worker]:
            holder = self._holders.pop(name)
            self._clear(holder)
            del self._names[holder.number]
            self._unused.append(holder.number)

    def expect_windows(self, window_sizes: Iterable[WindowSize]) -> None:
        """Windows that workers have, before anything was said of them; a created event says the same."""
        for window_size in window_sizes:
            self._get_window(window_size)

    def store(self, name: WorkerRank, window_size: WindowSize, block_hashes: Iterable[int]) -> None:
        """A worker has one more block of each hash; for listeners to other forms, which detect gaps themselves."""
        self._get_window(window_size).put(self._get_holder(name).number, block_hashes)

    def discard(self, name: WorkerRank, window_size: WindowSize, block_hashes: Iterable[int]) -> None:
        """A worker has one block less of each hash; unknown ones are counted."""
        holder = self._get_holder(name)
        holder.num_unknown += self._get_window(window_size).discard(holder.number, block_hashes)

    def clear(self, name: WorkerRank) -> None:
        """A worker has nothing cached, or nothing is known any more."""
        self._clear(self._get_holder(name))

    def _apply_event(self, holder: _Holder, event: KVCacheEvent) -> None:
        data = event.data
        window = self._get_window(event.window_size)
        if isinstance(data, KVCacheStoredData):
            window.put(holder.number, [block.block_hash for block in data.blocks])
        elif isinstance(data, KVCacheRemovedData):
            holder.num_unknown += window.discard(holder.number, data.block_hashes)

    def _clear(self, holder: _Holder) -> None:
        for window in self._windows.values():
            window.clear(holder.number)

    def _get_window(self, window_size: WindowSize) -> BlockHolders:
        window = self._windows.get(window_size)
        if window is None:
            window = self._windows[window_size] = BlockHolders()
        return window

    def _get_holder(self, name: WorkerRank) -> _Holder:
        holder = self._holders.get(name)
        if holder is None:
            number = self._unused.pop() if self._unused else len(self._holders)
            holder = self._holders[name] = _Holder(number)
            self._names[number] = name
        return holder

    # -- looking up ---------------------------------------------------------------------------------------

    def hash_request(self, request: LlmRequest) -> PromptHashes:
        """Hashes of all tokens of a prompt but the last, which is always computed; with all that makes its keys.

        Without partial reuse only those of full blocks.
        """
        num_tokens = request.prompt_len - 1
        if request.beam_width > 1 and request.prompt_len % self._tokens_per_block:  # beams do not share the last block
            num_tokens = request.prompt_len // self._tokens_per_block * self._tokens_per_block
        if not self._enable_partial_reuse:
            num_tokens -= num_tokens % self._tokens_per_block
        keys = build_block_keys(request, self._tokens_per_block, num_tokens, True)
        return PromptHashes(hash_key_chain(keys), num_tokens)

    def find_request(self, request: LlmRequest) -> dict[WorkerRank, int]:
        """Worker -> tokens of the prompt that it would find; workers without any are left out."""
        return self.find(*self.hash_request(request))

    def find(self, block_hashes: Sequence[int], num_tokens: int | None = None) -> dict[WorkerRank, int]:
        """Worker -> leading tokens that it would find of a chain of blocks; workers without any are left out.

        ``num_tokens``: tokens of all blocks together, where the last is not full.
        """
        width = self._tokens_per_block
        end = len(block_hashes) * width if num_tokens is None else num_tokens
        if len(block_hashes) != ceil_div(end, width):
            raise InvalidInputError(
                f"{len(block_hashes)} hashes stand for {end} tokens of blocks of {width}; give one hash a block"
            )
        if any(self._has_holes(window_size) for window_size in self._windows):
            counts = self._count_with_holes(block_hashes, end)
        else:
            counts = self._count_full(block_hashes)
        names = self._names
        return {names[number]: min(count * width, end) for number, count in counts.items()}

    def _has_holes(self, window_size: WindowSize) -> bool:
        """Whether a prefix may lack blocks in this window."""
        longest = self._max_sequence_length
        return window_size == RECURRENT_STATES or (longest is not None and window_size < longest)

    def _count_full(self, block_hashes: Sequence[int]) -> dict[int, int]:
        """Leading blocks in every window, by holder; windows of which a holder said nothing count as empty."""
        found: dict[int, int] | None = None
        for window in self._windows.values():
            counts = window.count_prefixes(block_hashes)
            found = (
                counts
                if found is None
                else {number: min(count, counts[number]) for number, count in found.items() if number in counts}
            )
        return found or {}

    def _count_with_holes(self, block_hashes: Sequence[int], end: int) -> dict[int, int]:
        """The most leading blocks that every window accepts, by holder."""
        rows = {window_size: window.masks_of(block_hashes) for window_size, window in self._windows.items()}
        found = {}
        for number in self._names:
            accepted = (2 << len(block_hashes)) - 1
            for window_size, masks in rows.items():
                present = [mask >> number & 1 for mask in masks]
                accepted &= self._accept(window_size, present, end)
            if accepted > 1:
                found[number] = accepted.bit_length() - 1
        return found

    def _accept(self, window_size: WindowSize, present: Sequence[int], end: int) -> int:
        """Numbers of leading blocks that a window is content with: bit n for n blocks."""
        width, accepted, end_of_hole = self._tokens_per_block, 1, 0
        for count, is_present in enumerate(present, 1):
            tokens = min(count * width, end)
            if window_size == RECURRENT_STATES:
                accepted |= (is_present and tokens == count * width) << count
                continue
            if not is_present:
                if not self._has_holes(window_size):
                    break
                end_of_hole = tokens
            if not end_of_hole or tokens >= end_of_hole + window_size:
                accepted |= 1 << count
        return accepted
