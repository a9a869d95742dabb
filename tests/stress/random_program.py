"""Random programs over a manager: every call that moves cached blocks, the failing ones included."""

from __future__ import annotations

import contextlib
import random
from typing import Any, NamedTuple

from tests.fake_clock import FakeClock
from tests.fake_memory import FakeMemory
from trtkv import KVCacheManager, LlmRequest
from trtkv.common import RECURRENT_STATES
from trtkv.errors import TrtkvError
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.eviction.registry import DEFAULT_EVICTION
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.records.llm_request import LlmRequestState, MultimodalInput
from trtkv.records.retention_config import KvCacheRetentionConfig, TokenRangeRetentionConfig

MAX_SEQUENCE_LENGTH = 40
MAX_REWIND = 5


class Shape(NamedTuple):
    """What a manager is built with; drawn from the seed."""

    tokens_per_block: int
    blocks_per_window: dict[int, tuple[int, int]]
    max_beam_width: int
    enable_partial_reuse: bool
    copy_on_partial_reuse: bool
    offload_min_priority: int
    has_recurrent_states: bool


def draw_shape(rng: random.Random) -> Shape:
    tokens_per_block = rng.choice([2, 4, 4])
    windows = rng.choice([[MAX_SEQUENCE_LENGTH], [8], [MAX_SEQUENCE_LENGTH, 8], [MAX_SEQUENCE_LENGTH, 10, 6]])
    has_recurrent_states = windows == [MAX_SEQUENCE_LENGTH] and rng.random() < 0.3
    if has_recurrent_states:
        windows = [MAX_SEQUENCE_LENGTH, RECURRENT_STATES]
    host = rng.random() < 0.6
    has_full_attention_only = windows == [MAX_SEQUENCE_LENGTH]
    return Shape(
        tokens_per_block,
        {window: (rng.randint(16, 28), rng.randint(1, 24) if host else 0) for window in windows},
        rng.choice([1, 2]) if has_full_attention_only else 1,
        not has_recurrent_states and rng.random() < 0.8,
        rng.random() < 0.7,
        rng.choice([0, 30, 36]),
        has_recurrent_states,
    )


class RandomProgram:
    """Steps of one program; a second one of the same seed takes the same steps as long as its manager does."""

    def __init__(
        self,
        seed: int,
        event_manager: KVCacheEventManager | None,
        *,
        compatibility: bool = False,
        with_memory: bool = False,
        eviction: Any = DEFAULT_EVICTION,
        enable_partial_reuse: bool | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.shape = draw_shape(self.rng)
        if enable_partial_reuse is not None:
            self.shape = self.shape._replace(enable_partial_reuse=enable_partial_reuse)
        if with_memory:
            self.shape = self.shape._replace(max_beam_width=1)
        self.memory = FakeMemory() if with_memory else None
        self.clock = FakeClock()
        windows = list(self.shape.blocks_per_window)
        linear = LinearAttentionMetadata(states_snapshot_interval=2 * self.shape.tokens_per_block)
        self.manager = KVCacheManager.from_arguments(
            [1] * len(windows),
            4,
            self.shape.tokens_per_block,
            self.shape.blocks_per_window,
            8,
            self.shape.max_beam_width,
            windows,
            max_sequence_length=MAX_SEQUENCE_LENGTH,
            secondary_offload_min_priority=self.shape.offload_min_priority,
            event_manager=event_manager,
            enable_partial_reuse=self.shape.enable_partial_reuse,
            copy_on_partial_reuse=self.shape.copy_on_partial_reuse,
            linear_attention_metadata=linear if self.shape.has_recurrent_states else None,
            copy_engine=self.memory,
            clock=self.clock,
            compatibility=compatibility,
            eviction=eviction,
        )
        self.manager.set_spec_decoding_budget(0, MAX_REWIND)  # sliding windows keep what a rewind needs
        self.windows = windows
        self.requests: dict[int, LlmRequest] = {}
        self.longest: dict[int, int] = {}
        self.pinned: list[int] = []
        self.rewound: set[int] = set()
        self.prompts: list[list[int]] = []
        self.next_id = 0
        self.num_failed = 0
        self.actions = [
            (self.admit, 16),
            (self.compute_chunk, 16),
            (self.decode, 40),
            (self.store_new_block, 4),
            (self.store_context, 5),
            (self.store_for_reuse, 6),
            (self.rewind, 6),
            (self.remove, 17),
            (self.unpin, 3),
            (self.truncate, 4),
            (self.refresh, 5),
            (self.commit, 3),
            (self.offload, 1.5),
            (self.reset, 0.3),
        ]

    def step(self) -> str:
        """One action; calls that fail are part of the program. Returns the action's name."""
        action = self.rng.choices([a for a, _ in self.actions], [weight for _, weight in self.actions])[0]
        try:
            action()
        except TrtkvError:
            self.num_failed += 1
        return action.__name__

    # -- requests -----------------------------------------------------------------------------------

    def draw_prompt(self) -> list[int]:
        rng = self.rng
        prompt = list(rng.choice(self.prompts)) if self.prompts and rng.random() < 0.75 else []
        del prompt[rng.randint(0, len(prompt)) :]
        prompt += [rng.randint(0, 2) for _ in range(rng.randint(1, 12))]
        prompt = prompt[: MAX_SEQUENCE_LENGTH - 12]
        self.prompts.append(prompt)
        return prompt

    def draw_retention(self) -> KvCacheRetentionConfig | None:
        rng = self.rng
        if rng.random() < 0.6:
            return None
        ranges = []
        start = 0
        for _ in range(rng.randint(0, 2)):
            end = start + rng.randint(1, 12)
            ranges.append(TokenRangeRetentionConfig(start, end, rng.choice([0, 20, 35, 80]), rng.choice([None, 5, 50])))
            start = end
        return KvCacheRetentionConfig(ranges, rng.choice([10, 35, 90]), rng.choice([None, 20]))

    def draw_request(self) -> LlmRequest:
        rng, prompt = self.rng, self.draw_prompt()
        self.next_id += 1
        image = None
        if rng.random() < 0.06:
            image = MultimodalInput([[rng.randint(0, 1)] * 8], [rng.randint(0, len(prompt) - 1)], [rng.randint(1, 5)])
        return LlmRequest(
            self.next_id,
            prompt,
            MAX_SEQUENCE_LENGTH - len(prompt),
            beam_width=rng.randint(1, self.shape.max_beam_width),
            lora_task_id=rng.choice([None] * 20 + [1]),
            cache_salt=rng.choice([None] * 20 + ["a", "b"]),
            input_token_extra_ids=[rng.randint(0, 1)] * len(prompt) if rng.random() < 0.06 else None,
            multimodal_input=image,
            kv_cache_retention_config=self.draw_retention(),
            is_dummy_request=rng.random() < 0.03,
        )

    def admit(self) -> None:
        if len(self.requests) > 4 and self.rng.random() < 0.8:
            return
        batch = [self.draw_request() for _ in range(self.rng.choice([1, 1, 2, 3]))]
        self.manager.add_sequence_batch([(r.request_id, r.prompt_len, r.beam_width) for r in batch], batch)
        self.requests.update({request.request_id: request for request in batch})
        if self.memory is not None:
            for request in batch:
                self.memory.num_computed[request.request_id] = request.prepopulated_prompt_len

    def pick(self, generating: bool | None = None) -> LlmRequest | None:
        candidates = [
            request
            for request in self.requests.values()
            if generating is None or (request.state is LlmRequestState.GENERATION_IN_PROGRESS) == generating
        ]
        return self.rng.choice(candidates) if candidates else None

    def compute_chunk(self) -> None:
        request = self.pick(generating=False)
        if request is None:
            return
        width = self.shape.tokens_per_block
        request.set_context_chunk_size(self.rng.choice([width, 2 * width, MAX_SEQUENCE_LENGTH]))
        if self.shape.has_recurrent_states:
            request.set_context_chunk_size(MAX_SEQUENCE_LENGTH)
        start = request.context_current_position
        request.move_to_next_context_chunk()
        if self.memory is not None:
            self.memory.write(self.manager, request, start, request.context_current_position)
        if request.context_remaining_length == 0:
            request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
        self.manager.store_context_blocks(request)

    def decode(self) -> None:
        request = self.pick(generating=True)
        if request is None or request.get_num_tokens(0) >= MAX_SEQUENCE_LENGTH:
            return
        self.manager.add_token(request.request_id)
        request.add_new_tokens([[self.rng.randint(0, 2)] for _ in range(request.beam_width)])
        self.longest[request.request_id] = max(self.longest.get(request.request_id, 0), request.get_num_tokens(0))
        if self.memory is not None:
            self.memory.write(self.manager, request, request.get_num_tokens(0) - 1, request.get_num_tokens(0))
        with contextlib.suppress(TrtkvError):
            self.manager.copy_linear_attention_block(request)

    # -- storing and letting go ---------------------------------------------------------------------

    def store_new_block(self) -> None:
        request = self.pick()
        if request is not None:
            self.manager.store_new_block(request)

    def store_context(self) -> None:
        request = self.pick(generating=True)
        if request is not None:
            self.manager.store_context_blocks(request)

    def store_for_reuse(self) -> None:
        request = self.pick(generating=True)
        if request is not None:
            pin = len(self.windows) == 1 and self.rng.random() < 0.5
            self.pinned += self.manager.store_blocks_for_reuse(request.request_id, request, pin)

    def unpin(self) -> None:
        ids, self.pinned = self.pinned, []
        if len(self.windows) == 1:
            self.manager.unpin_blocks_by_id(ids)

    def rewind(self) -> None:
        request = self.pick(generating=True)
        if request is None:
            return
        generated = request.get_tokens(0)[request.prompt_len :]
        num_tokens = self.rng.randint(1, MAX_REWIND)
        kept = request.get_num_tokens(0) - num_tokens
        if num_tokens <= len(generated) and self.longest[request.request_id] - kept <= MAX_REWIND:
            self.manager.rewind_kv_cache(request.request_id, num_tokens)
            self.rewound.add(request.request_id)
            request.set_generated_tokens([generated[: len(generated) - num_tokens]])
            if self.memory is not None:
                self.memory.num_computed[request.request_id] -= num_tokens

    def remove(self) -> None:
        request = self.pick()
        if request is not None:
            del self.requests[request.request_id]
            self.manager.remove_sequence(request.request_id, request if self.rng.random() < 0.8 else None)

    def truncate(self) -> None:
        if self.prompts:
            self.manager.truncate_blocks(self.rng.choice(self.prompts), self.rng.randint(0, 12))

    def refresh(self) -> None:
        self.clock.advance_ms(self.rng.choice([1, 10, 60]))
        self.manager.refresh_blocks()

    def commit(self) -> None:
        request = self.pick(generating=True)
        if request is not None:
            self.manager.commit_and_get_block_hashes_for_request(request, self.rng.choice(self.windows))

    def offload(self) -> None:
        window = self.rng.choice(self.windows)
        block_manager = self.manager.block_manager
        block = block_manager.get_block_by_id(self.rng.randrange(self.shape.blocks_per_window[window][0]), window)
        if self.memory is not None and block.has_refs:
            return  # a held block belongs on the primary level; whoever moves it has to write its table anew
        if self.shape.blocks_per_window[window][1]:
            block_manager.get_window_block_manager(window).claimer.offload_block(block)

    def reset(self) -> None:
        self.manager.reset_reuse_state()
