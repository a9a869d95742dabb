"""Random programs on a manager whose memory holds, at every position, a number that follows from the tokens so far.

After each operation every position that an attention could read is looked at, in every layer, K and V. So a block that
is given to two owners, copied short, offloaded without its content or matched wrongly shows at once, without a model.
"""

from __future__ import annotations

import random
import zlib
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from trtkv.common import DataType, KvCacheTransferMode
from trtkv.errors import OutOfBlocksError
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.records.retention_config import KvCacheRetentionConfig
from trtkv.transfers.copy_engine import CopyEngine, NullCopyEngine

MAX_LENGTH = 48


class CorruptMemoryError(Exception):
    """A position does not hold what its tokens ask for."""


@dataclass
class _Running:
    request: LlmRequest
    num_written: int
    """Positions whose keys and values have been computed."""


def make_value(tokens: array[int], position: int) -> float:
    """A number that depends on all tokens up to a position; exact in float32."""
    return float(zlib.crc32(tokens[: position + 1].tobytes()) >> 8)


@dataclass
class MemoryProgram:
    """One random program. The draws do not depend on the engine, so two runs of a seed make the same calls."""

    seed: int
    engine: CopyEngine
    directory: Path | None = None
    has_memory: bool = True
    ids: list[object] = field(default_factory=list)
    """Block ids and slots of all sequences after every operation."""
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._rng = rng = random.Random(self.seed)
        self._tpb = rng.choice([1, 2, 4, 5])
        longest = -(-MAX_LENGTH // self._tpb) + 1
        self._windows = rng.choice([(MAX_LENGTH,), (MAX_LENGTH,), (8, MAX_LENGTH), (7,), (6, 13, MAX_LENGTH)])
        heads = [rng.choice([1, 2]) for _ in range(3)]
        self._clock = 0
        self._manager = KVCacheManager.from_arguments(
            heads,
            4,
            self._tpb,
            {window: (longest + rng.randint(0, longest), rng.choice([0, 3, 20])) for window in self._windows},
            8,
            1,
            self._windows,
            DataType.FLOAT,
            max_sequence_length=MAX_LENGTH,
            enable_partial_reuse=rng.random() < 0.9,
            copy_on_partial_reuse=rng.random() < 0.9,
            copy_engine=self.engine,
            clock=self._tick,
        )
        self._layer_windows = [self._windows[layer % len(self._windows)] for layer in range(3)]
        kv_layout = rng.choice(["HND", "NHD"])
        if self.has_memory:
            self._manager.allocate_pools("cpu", kv_layout)
            for pool in self._manager.pool_tensors.pools:
                assert pool.primary is not None
                pool.primary.fill_(float("nan"))
        self._running: dict[int, _Running] = {}
        self._histories: list[array[int]] = []
        self._next_id = 0

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def run(self, num_operations: int = 120) -> MemoryProgram:
        """Draw and carry out operations; raises CorruptMemoryError."""
        operations = [self._add, self._step, self._step, self._step, self._step, self._rewind, self._remove]
        for _ in range(num_operations):
            self._rng.choice(operations)()
            self._manager.refresh_blocks()
            self._check()
        return self

    # -- operations -----------------------------------------------------------------------------------

    def _draw_prompt(self) -> array[int]:
        rng = self._rng
        start = array("i")
        if self._histories and rng.random() < 0.8:
            start = rng.choice(self._histories)
            start = start[: rng.randint(0, len(start))]
        fresh = array("i", [rng.randrange(3) for _ in range(rng.randint(1, 10))])
        return (start + fresh)[: MAX_LENGTH - 8]

    def _draw_retention(self) -> KvCacheRetentionConfig | None:
        if self._rng.random() < 0.6:
            return None
        return KvCacheRetentionConfig(
            decode_retention_priority=self._rng.choice([5, 35, 70]),
            transfer_mode=KvCacheTransferMode.POSIX_DEBUG_FALLBACK if self.directory else KvCacheTransferMode.DRAM,
            directory=str(self.directory or ""),
        )

    def _add(self) -> None:
        requests = []
        for _ in range(self._rng.randint(1, 3)):
            prompt = self._draw_prompt()
            requests.append(LlmRequest(self._next_id, prompt, 8, kv_cache_retention_config=self._draw_retention()))
            self._next_id += 1
        if len(self._running) + len(requests) > 5:
            return
        try:
            self._manager.add_sequence_batch([(r.request_id, r.prompt_len, 1) for r in requests], requests)
        except OutOfBlocksError:
            self.counts["refused"] += 1
            return
        for request in requests:
            self._running[request.request_id] = _Running(request, request.prepopulated_prompt_len)
            self.counts["reused tokens"] += request.prepopulated_prompt_len
            self._histories.append(request.get_tokens(0)[:])

    def _step(self) -> None:
        """Compute the next chunk of a prompt, or the newest token and choose one more."""
        if not self._running:
            return
        entry = self._running[self._rng.choice(sorted(self._running))]
        request = entry.request
        if request.is_context_init_state:
            size = self._rng.randint(1, 3) * self._tpb
            request.set_context_chunk_size(size)
            end = request.context_current_position + request.context_chunk_size
            self._write(entry, range(entry.num_written, end))
            request.move_to_next_context_chunk()
            if not request.context_remaining_length:
                request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
                request.add_new_token(self._rng.randrange(3))
            self._manager.store_context_blocks(request)
            return
        if request.get_num_tokens(0) >= MAX_LENGTH or not self._grow(entry, 1):
            self._finish(request)
            return
        self._write(entry, range(entry.num_written, request.get_num_tokens(0)))
        request.add_new_token(self._rng.randrange(3))
        if self._rng.random() < 0.3:
            self._manager.store_new_block(request)

    def _rewind(self) -> None:
        """Write tokens that turn out wrong, and take them back; windows must be wide enough for that."""
        entries = [entry for entry in self._running.values() if not entry.request.is_context_init_state]
        num_drafts = self._rng.randint(1, 3)
        entries = [entry for entry in entries if entry.request.get_num_tokens(0) + num_drafts <= MAX_LENGTH]
        if not entries or min(self._windows) < MAX_LENGTH:
            return
        entry = self._rng.choice(entries)
        if not self._grow(entry, 1 + num_drafts):
            self._finish(entry.request)
            return
        request = entry.request
        count = request.get_num_tokens(0)
        self._write(entry, range(entry.num_written, count))
        self._fill(entry, range(count, count + num_drafts), [-1.0] * num_drafts)
        self._manager.rewind_kv_cache(request.request_id, num_drafts)
        request.add_new_token(self._rng.randrange(3))
        self.counts["rewound"] += num_drafts

    def _remove(self) -> None:
        if self._running:
            self._finish(self._running[self._rng.choice(sorted(self._running))].request)

    def _finish(self, request: LlmRequest) -> None:
        self._histories.append(request.get_tokens(0)[:])
        stores = self._rng.random() < 0.9 and self._running[request.request_id].num_written > 0
        # At position 0 a prompt counts as computed (as in the original), so one that was never run must not be stored.
        self._manager.remove_sequence(request.request_id, request if stores else None)
        del self._running[request.request_id]

    def _grow(self, entry: _Running, num_tokens: int) -> bool:
        for _ in range(num_tokens):
            try:
                self._manager.add_token(entry.request.request_id)
            except OutOfBlocksError:
                self.counts["refused"] += 1
                return False
        return True

    # -- memory ---------------------------------------------------------------------------------------

    def _write(self, entry: _Running, positions: range) -> None:
        tokens = entry.request.get_tokens(0)
        self._fill(entry, positions, [make_value(tokens, position) for position in positions])
        entry.num_written = positions.stop

    def _fill(self, entry: _Running, positions: range, values: list[float]) -> None:
        if not self.has_memory:
            return
        for layer, window_size in enumerate(self._layer_windows):
            slots = self._manager.get_sequence(entry.request.request_id).get_window(window_size).slots[0]
            buffers = self._manager.get_buffers(layer, "NHD")
            for position, value in zip(positions, values, strict=True):
                buffers[slots[position // self._tpb], :, position % self._tpb] = value

    def _check(self) -> None:
        state = []
        for request_id, entry in self._running.items():
            sequence = self._manager.get_sequence(request_id)
            for layer, window_size in enumerate(self._layer_windows):
                window = sequence.get_window(window_size)
                state.append((request_id, tuple(window.block_ids[0]), tuple(window.slots[0])))
                if self.has_memory:
                    self._check_layer(entry, layer, window_size, window.slots[0])
            self.counts["front blocks removed"] += sequence.get_num_front_blocks_removed(min(self._windows))
        self.ids.append(state)

    def _check_layer(self, entry: _Running, layer: int, window_size: int, slots: array[int]) -> None:
        tokens = entry.request.get_tokens(0)
        buffers = self._manager.get_buffers(layer, "NHD")
        for position in range(max(0, entry.num_written + 1 - window_size), entry.num_written):
            found = buffers[slots[position // self._tpb], :, position % self._tpb]
            if not bool((found == make_value(tokens, position)).all()):
                raise CorruptMemoryError(
                    f"request {entry.request.request_id}, position {position}, layer {layer}: {found.flatten()[:2]}"
                )


def run_program(seed: int, engine: CopyEngine | None = None, directory: Path | None = None) -> MemoryProgram:
    """Run a program with memory, or with a NullCopyEngine and without memory when no engine is given."""
    if engine is None:
        return MemoryProgram(seed, NullCopyEngine(), directory, has_memory=False).run()
    return MemoryProgram(seed, engine, directory).run()
