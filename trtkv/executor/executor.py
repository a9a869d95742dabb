"""PyTorchExecutor: continuous batching over one model and one cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from trtkv.common import RequestId
from trtkv.errors import CapacityError, InvalidInputError, OutOfBlocksError
from trtkv.executor.active_request import ActiveRequest, GenerationResult
from trtkv.executor.attention_group import SequenceSlice
from trtkv.executor.executor_config import Drafter, ExecutorConfig
from trtkv.executor.executor_stats import ExecutorStats
from trtkv.executor.model_engine import EngineInput, ModelEngine
from trtkv.executor.model_spec import read_model_spec
from trtkv.executor.paged_kv_cache import PagedKvCache
from trtkv.executor.table_rows import TableRows
from trtkv.kernels.kernel_launch import Backend
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.records.retention_config import KvCacheRetentionConfig
from trtkv.resource_manager import KVCacheResourceManager
from trtkv.scheduler.capacity_scheduler import CapacityScheduler
from trtkv.scheduler.micro_batch_scheduler import MicroBatchScheduler
from trtkv.scheduler.scheduled_requests import ScheduledRequests
from trtkv.scheduler.scheduler_config import ContextChunkingConfig


class _Output(NamedTuple):
    """What a step says about one request: no rows while its prompt is not complete."""

    logits: torch.Tensor
    chosen: list[int]


class PyTorchExecutor:
    """Runs requests to their end, step by step: schedule, give blocks, one forward pass, sample, store.

    ``drafter`` guesses tokens that the next step verifies (one beam only); rejected ones are rewound. The model is
    switched to paged attention and must not be used elsewhere meanwhile. ``manager`` must have been made for the same
    model and configuration (create_kv_cache_manager).
    """

    def __init__(
        self,
        model: torch.nn.Module,
        manager: KVCacheManager,
        config: ExecutorConfig,
        drafter: Drafter | None = None,
        backend: Backend = None,
    ) -> None:
        self.manager = manager
        self.stats = ExecutorStats()
        self._config = config
        self._drafter = drafter
        num_rows = config.max_batch_size * config.max_beam_width
        self._cache = PagedKvCache(manager, read_model_spec(model), config.device, num_rows, backend)
        self._engine = ModelEngine(model, self._cache)
        self._rows = TableRows(num_rows)
        self._resources = KVCacheResourceManager(
            manager,
            max_num_tokens=config.max_num_tokens,
            enable_chunked_prefill=config.chunk_unit_size is not None,
        )
        chunking = None
        if config.chunk_unit_size is not None:
            chunking = ContextChunkingConfig(config.chunking_policy, config.chunk_unit_size)
        self._capacity_scheduler = CapacityScheduler(config.max_batch_size, config.capacity_policy)
        self._micro_batch_scheduler = MicroBatchScheduler(chunking)
        self._active: dict[RequestId, ActiveRequest] = {}
        self._next_id = 0

    @property
    def num_active(self) -> int:
        """Requests not yet finished."""
        return len(self._active)

    # -- requests ---------------------------------------------------------------------------------

    def submit(
        self,
        prompt: Iterable[int],
        max_new_tokens: int,
        *,
        beam_width: int = 1,
        end_token_id: int | None = None,
        cache_salt: str | None = None,
        retention: KvCacheRetentionConfig | None = None,
    ) -> RequestId:
        """Queue a request; nothing is computed yet. Raises a CapacityError for one that could never run."""
        request = LlmRequest(
            self._next_id,
            prompt,
            max_new_tokens,
            beam_width=beam_width,
            cache_salt=cache_salt,
            kv_cache_retention_config=retention,
        )
        self._check(request)
        entry = ActiveRequest(request, request.prompt_len, max_new_tokens, end_token_id)
        entry.restart_beams()
        self._active[request.request_id] = entry
        self._next_id += 1
        return request.request_id

    def _check(self, request: LlmRequest) -> None:
        limit = self._config.max_sequence_length
        if request.prompt_len < 1 or request.max_new_tokens < 1:
            raise InvalidInputError(
                f"prompt of {request.prompt_len} tokens, {request.max_new_tokens} new ones: at least 1 each is needed"
            )
        if request.prompt_len + request.max_new_tokens > limit:
            raise InvalidInputError(
                f"{request.prompt_len} prompt tokens and {request.max_new_tokens} new ones exceed "
                f"max_sequence_length {limit}"
            )
        if request.beam_width > self._config.max_beam_width:
            raise InvalidInputError(f"beam width {request.beam_width} exceeds {self._config.max_beam_width}")
        self._resources.check_can_ever_fit(request, self._capacity_scheduler)
        self._micro_batch_scheduler.check_can_ever_fit(request, self._config.max_num_tokens)

    def run(self) -> dict[RequestId, GenerationResult]:
        """Step until every request is finished; results by id."""
        results: dict[RequestId, GenerationResult] = {}
        num_idle = 0
        while self._active:
            num_steps = self.stats.num_steps
            for result in self.step():
                results[result.request_id] = result
            num_idle = num_idle + 1 if self.stats.num_steps == num_steps else 0
            if num_idle > 2:
                raise CapacityError(f"none of {len(self._active)} requests can run; enlarge the pools or the step")
        return results

    # -- one step ---------------------------------------------------------------------------------

    def step(self) -> list[GenerationResult]:
        """Advance every scheduled request by a chunk of its prompt or by its next tokens; returns finished ones."""
        batch = self._schedule()
        entries = self._prepare(batch)
        if not entries:
            return []
        inputs = [self._make_inputs(entry) for entry in entries]
        logits = self._engine.forward([entry for parts in inputs for entry in parts])
        outputs = self._split_outputs(logits, [sum(entry.num_logits for entry in parts) for parts in inputs])
        self.stats.num_steps += 1
        self.stats.num_computed_tokens += sum(len(entry.tokens) for parts in inputs for entry in parts)
        accepted = {
            entry.request.request_id: self._update(entry, output)
            for entry, output in zip(entries, outputs, strict=True)
        }
        self._settle(batch, accepted)
        return [self._finish(entry) for entry in entries if entry.is_finished]

    def _schedule(self) -> ScheduledRequests:
        """Choose among the oldest requests, as many as there are table rows; pause those the policy gives up."""
        entries = list(self._active.values())[: self._config.max_batch_size]
        for entry in entries:
            self._propose_drafts(entry)
        fitting = self._capacity_scheduler.schedule([entry.request for entry in entries], self.manager)
        for request in fitting.paused_requests:
            self._pause(self._active[request.request_id])
        batch = self._micro_batch_scheduler.schedule(
            fitting.fitting_requests, (), self._config.max_batch_size, self._config.max_num_tokens
        )
        return ScheduledRequests.from_schedule(
            batch.context_requests, batch.generation_requests, fitting.paused_requests
        )

    def _prepare(self, batch: ScheduledRequests) -> list[ActiveRequest]:
        """Blocks and rows for everything that is computed, transfers in order, the offset table up to date."""
        new = [request for request in batch.context_requests if request.request_id not in self.manager.sequences]
        if not batch.batch_size:
            return []
        try:
            self._resources.prepare_resources(batch)
        except OutOfBlocksError:
            if batch.batch_size:
                raise
            return []  # everybody waits: a copy needs one block more than the budget counted
        self._resources.fit_token_budget(batch)
        entries = [self._active[request.request_id] for request in batch.all_requests]
        for entry in entries:
            self._rows.take(entry)
            self._cache.update_rows(entry.request.request_id, entry.rows)
            if entry.request in new:
                self._count_admission(entry.request)
        self.stats.table_bytes_sent += self._cache.offsets.flush()
        return entries

    def _settle(self, batch: ScheduledRequests, accepted: dict[RequestId, int]) -> None:
        """Rewind rejected drafts and offer the prompts computed so far for reuse."""
        for request_id, num_reserved in batch.num_reserved_draft_tokens.items():
            self.stats.num_rewound_tokens += num_reserved - accepted[request_id]
        reserved = batch.num_reserved_draft_tokens
        self._resources.update_resources(batch, {key: accepted[key] for key in reserved})

    def _propose_drafts(self, entry: ActiveRequest) -> None:
        limit = min(self._config.max_draft_tokens, entry.num_remaining - 1)
        entry.drafts = []
        if self._drafter and limit > 0 and entry.beams is None and entry.request.is_generation_in_progress_state:
            entry.drafts = self._drafter(entry.tokens, limit)[:limit]
        entry.request.set_num_draft_tokens(len(entry.drafts))

    def _pause(self, entry: ActiveRequest) -> None:
        """Give up a sequence; what was generated becomes prompt and is computed, or found in the cache, again."""
        self._free(entry)
        entry.drafts = []
        entry.request.set_num_draft_tokens(0)
        entry.request.pause(self._config.max_sequence_length)
        entry.restart_beams()
        self.stats.num_paused += 1

    def _free(self, entry: ActiveRequest) -> None:
        sequence = self.manager.get_sequence(entry.request.request_id)
        self.stats.num_front_blocks_removed += sum(
            sequence.get_num_front_blocks_removed(window) for window in self.manager.window_sizes_metadata
        )
        self._resources.free_resources(entry.request)
        self._rows.give_back(entry)

    def _count_admission(self, request: LlmRequest) -> None:
        self.stats.num_reused_tokens += request.prepopulated_prompt_len
        sequence = self.manager.get_sequence(request.request_id)
        self.stats.num_shared_admissions += any(
            block.ref_count > request.beam_width and not block.is_placeholder
            for window in self.manager.window_sizes_metadata
            for block in sequence.get_window(window).held
        )

    # -- inputs -----------------------------------------------------------------------------------

    def _make_inputs(self, entry: ActiveRequest) -> list[EngineInput]:
        if entry.request.is_context_init_state:
            return [self._make_context_input(entry)]
        return self._make_generation_inputs(entry)

    def _make_context_input(self, entry: ActiveRequest) -> EngineInput:
        request = entry.request
        begin = request.context_current_position
        end = begin + request.context_chunk_size
        is_last = end == request.prompt_len
        self.stats.num_context_chunks += 1
        self.stats.num_unfinished_chunks += not is_last
        return EngineInput(
            SequenceSlice(entry.rows[0], begin, end - begin), request.get_tokens(0)[begin:end], int(is_last)
        )

    def _make_generation_inputs(self, entry: ActiveRequest) -> list[EngineInput]:
        request, beams = entry.request, entry.beams
        position = request.get_num_tokens(0) - 1
        if beams is None:
            tokens = [request.get_tokens(0)[-1], *entry.drafts]
            return [EngineInput(SequenceSlice(entry.rows[0], position, len(tokens)), tokens, len(tokens))]
        return [
            EngineInput(
                SequenceSlice(
                    entry.rows[beam], position, 1, beams.get_history_rows(beam, entry.rows, request.prompt_len)
                ),
                [tokens[-1]],
                1,
            )
            for beam, tokens in enumerate(beams.tokens)
        ]

    # -- outputs ----------------------------------------------------------------------------------

    def _split_outputs(self, logits: torch.Tensor, sizes: Sequence[int]) -> list[_Output]:
        """Logits and most likely tokens of each request; one choice and one transfer for the whole batch."""
        chosen = logits.argmax(dim=-1).tolist()
        ends = list(accumulate(sizes, initial=0))
        return [
            _Output(rows, chosen[begin : begin + len(rows)])
            for rows, begin in zip(torch.split(logits, list(sizes)), ends, strict=False)
        ]

    def _update(self, entry: ActiveRequest, output: _Output) -> int:
        """Add what the model says to a request; returns how many of its drafts were right."""
        request = entry.request
        if request.is_context_init_state:
            request.move_to_next_context_chunk()
            if request.context_remaining_length:
                return 0
            request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
        num_accepted = 0
        if entry.beams is not None:
            entry.beams.advance(output.logits)
            request.set_generated_tokens(entry.beams.tokens)
        else:
            num_accepted = self._accept(entry, output.chosen)
        if entry.is_finished:
            request.set_state(LlmRequestState.GENERATION_COMPLETE)
        return num_accepted

    def _accept(self, entry: ActiveRequest, chosen: Sequence[int]) -> int:
        """Take the model's tokens as long as the drafts before them were its own choice; returns the right drafts."""
        num_accepted = 0
        while num_accepted < len(entry.drafts) and entry.drafts[num_accepted] == chosen[num_accepted]:
            num_accepted += 1
        for token in chosen[: num_accepted + 1]:
            entry.request.add_new_token(token)
            if token == entry.end_token_id:
                break
        self.stats.num_draft_tokens += len(entry.drafts)
        self.stats.num_accepted_draft_tokens += num_accepted
        return num_accepted

    def _finish(self, entry: ActiveRequest) -> GenerationResult:
        self._free(entry)
        del self._active[entry.request.request_id]
        return entry.get_result()
