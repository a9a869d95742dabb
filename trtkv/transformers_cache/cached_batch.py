"""CachedBatch: the sequences of one generate() call in a manager, and where a forward pass finds their memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trtkv.errors import InvalidInputError
from trtkv.executor.paged_kv_cache import PagedKvCache
from trtkv.executor.paged_memory import PagedIndex
from trtkv.records.llm_request import LlmRequest, LlmRequestState


class CachedBatch:
    """Sequences padded on the left to columns of equal length: token i of a row is in column ``pads[row] + i``.

    Padding takes no memory. A row's keys and values are known up to a position; a step computes the columns from the
    first one that some row does not know.
    """

    def __init__(
        self, memory: PagedKvCache, prompts: Sequence[Sequence[int]], pads: Sequence[int], first_request_id: int
    ) -> None:
        """Admit the prompts, taking what is cached of each. Raises OutOfBlocksError, admitting none."""
        manager = memory.manager
        self.requests = [
            LlmRequest(first_request_id + row, prompt, max(1, manager.max_sequence_length - len(prompt)))
            for row, prompt in enumerate(prompts)
        ]
        self.pads = torch.tensor(pads)
        self.num_columns = len(prompts[0]) + pads[0]
        """Columns of the newest step and all before it."""
        self._memory = memory
        self._is_sound = False
        """Whether everything but the newest step has been computed, so that it may be stored for reuse."""
        infos = [(request.request_id, request.prompt_len, 1) for request in self.requests]
        manager.sync_transfer_manager_with_buffer_manager()
        manager.add_sequence_batch(infos, self.requests)
        self._num_known = torch.tensor([request.prepopulated_prompt_len for request in self.requests])

    @property
    def size(self) -> int:
        """Rows."""
        return len(self.requests)

    @property
    def num_reused_tokens(self) -> int:
        """Prompt tokens found in the cache at admission."""
        return sum(request.prepopulated_prompt_len for request in self.requests)

    # -- steps --------------------------------------------------------------------------------------------

    def grow(self, tokens: Sequence[Sequence[int]]) -> None:
        """Add the same number of tokens to each row. Raises OutOfBlocksError, changing nothing, if one has no room."""
        manager, num_new = self._memory.manager, len(tokens[0])
        longest = max(request.get_num_tokens() for request in self.requests) + num_new
        if longest > manager.max_sequence_length:
            raise InvalidInputError(f"{longest} tokens exceed max_sequence_length {manager.max_sequence_length}")
        if num_new > 1 and any(entry.is_swa for entry in manager.window_sizes_metadata.values()):
            raise InvalidInputError(
                f"{num_new} tokens at once would slide windows past what the first of them sees; without "
                "prefill_chunk_size prompts are computed in one piece"
            )
        manager.sync_transfer_manager_with_buffer_manager()
        for _ in range(num_new):
            manager.add_tokens(request.request_id for request in self.requests)
        self._is_sound = False
        for request, new in zip(self.requests, tokens, strict=True):
            for token in new:
                request.add_new_token(token)
        self.num_columns += num_new

    def begin_step(self) -> CachedStep:
        """Bring the offset table up to date; the step's indices are those of the blocks that the rows hold now."""
        self._memory.manager.refresh_blocks()
        for row, request in enumerate(self.requests):
            self._memory.update_rows(request.request_id, [row])
        self._memory.offsets.flush()
        return CachedStep(self._memory, self.pads, self._num_known, self.num_columns)

    def end_step(self) -> None:
        """The step has been computed: prompts can be found by later calls."""
        for request in self.requests:
            if request.is_context_init_state:
                request.move_to_next_context_chunk()
                request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
                self._memory.manager.store_context_blocks(request)
        self._num_known = self.num_columns - self.pads
        self._is_sound = True

    def release(self) -> None:
        """Give up the sequences; what has been computed stays for reuse."""
        for request in self.requests:
            if self._is_sound:
                # The newest token of a request counts as not computed yet. Here all are, so another one stands there.
                request.add_new_token(0)
            self._memory.manager.remove_sequence(request.request_id, request if self._is_sound else None)

    # -- beams --------------------------------------------------------------------------------------------

    def reorder(self, parents: Sequence[int], windows: Sequence[int | None]) -> None:
        """Let each row continue another one with the same prompt: copy its tokens, and their keys and values.

        ``windows``: of each layer, what a token sees (None: everything).
        """
        prompts = [request.get_tokens()[: request.prompt_len].tolist() for request in self.requests]
        if any(prompts[row] != prompts[parent] for row, parent in enumerate(parents)):
            raise InvalidInputError("rows can only continue rows with the same prompt")
        outputs = [request.get_tokens()[request.prompt_len :].tolist() for request in self.requests]
        prompt_lens = torch.tensor([request.prompt_len for request in self.requests])
        num_generated = len(outputs[0])
        rows, parent_rows = torch.arange(self.size), torch.tensor(parents)
        for layer_idx, window in enumerate(windows):
            pool_idx = self._memory.get_pool_idx(layer_idx)
            # What has left the window may be another's by now.
            first = 0 if window is None else max(0, num_generated - window + 1)
            positions = prompt_lens[:, None] + torch.arange(first, num_generated)
            source = self._memory.index_tokens(pool_idx, parent_rows[:, None].expand_as(positions), positions)
            keys, values = self._memory.read(layer_idx, source).transpose(1, 2).flatten(2, 3)
            own = rows[:, None].expand_as(positions)
            target = self._memory.index_tokens(pool_idx, own.reshape(1, -1), positions.reshape(1, -1))
            self._memory.write(layer_idx, target, keys, values)
        for request, parent in zip(self.requests, parents, strict=True):
            request.set_generated_tokens([outputs[parent]])


class CachedStep:
    """Where the layers of a forward pass write and read; an index is made once for all layers of a pool and window."""

    def __init__(self, memory: PagedKvCache, pads: torch.Tensor, num_known: torch.Tensor, num_columns: int) -> None:
        self.first_column = int((pads + num_known).min())
        """First column that is computed."""
        self.num_columns = num_columns
        """Columns of keys that attention sees."""
        self._memory = memory
        self._pads = pads
        self.positions = torch.arange(self.first_column, num_columns) - pads[:, None]
        """Positions [rows, computed columns] of tokens in their rows; negative in padding."""
        is_new = self.positions >= num_known[:, None]  # what is known may lie in blocks that others share
        rows = torch.arange(len(pads))[:, None].expand_as(self.positions)
        self._new_places = is_new.flatten().nonzero()[:, 0].to(memory.device)
        self._new_rows, self._new_positions = rows[is_new][None], self.positions[is_new][None]
        self._first_new = torch.maximum(num_known, self.first_column - pads)
        self._writes: dict[int, PagedIndex] = {}
        self._reads: dict[tuple[int, int | None], PagedIndex] = {}

    def update(
        self, layer_idx: int, window: int | None, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store what is new of ``key`` and ``value`` [rows, heads, computed columns, dim]; return those of all columns.

        In padding, and before the window of a row's first new token, there is some other token of the row, as the mask
        hides both.
        """
        pool_idx = self._memory.get_pool_idx(layer_idx)
        if pool_idx not in self._writes:
            self._writes[pool_idx] = self._memory.index_tokens(pool_idx, self._new_rows, self._new_positions)
        new = [states.transpose(0, 1).flatten(1, 2)[:, self._new_places] for states in (key, value)]
        self._memory.write(layer_idx, self._writes[pool_idx], *new)
        if (pool_idx, window) not in self._reads:
            self._reads[pool_idx, window] = self._find_history(pool_idx, window)
        keys, values = self._memory.read(layer_idx, self._reads[pool_idx, window])
        return keys, values

    def _find_history(self, pool_idx: int, window: int | None) -> PagedIndex:
        first = torch.zeros_like(self._pads) if window is None else (self._first_new - window + 1).clamp(min=0)
        positions = torch.maximum(torch.arange(self.num_columns) - self._pads[:, None], first[:, None])
        rows = torch.arange(len(self._pads))[:, None].expand_as(positions)
        return self._memory.index_tokens(pool_idx, rows, positions)
