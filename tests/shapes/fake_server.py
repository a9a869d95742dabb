"""A server loop over a manager and a fake model: admits, computes chunks, decodes with drafts, stores, removes.

Tokens come from a seeded generator over a few letters, so prompts share prefixes and outputs run into each other.
After every action all cached blocks and all counts are checked.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from tests.fake_memory import FakeMemory, digests
from tests.shapes.fake_model import FakeModel
from trtkv import KVCacheManager, LlmRequest
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import RECURRENT_STATES
from trtkv.errors import OutOfBlocksError
from trtkv.records.llm_request import LlmRequestState


class FakeServer:
    """Running requests of one manager. ``events`` counts what happened, so that a test can ask for coverage."""

    def __init__(self, manager: KVCacheManager, memory: FakeMemory, rng: Random, num_letters: int = 2) -> None:
        self.manager = manager
        self.memory = memory
        self.model = FakeModel(manager, memory)
        self.rng = rng
        self.num_letters = num_letters
        self.running: dict[int, LlmRequest] = {}
        self.events: Counter[str] = Counter()
        self.next_id = 0
        self.has_states = RECURRENT_STATES in manager.window_sizes_metadata
        self.documents: list[list[int]] = []

    # -- tokens -----------------------------------------------------------------------------------

    def make_token(self) -> int:
        return self.rng.randrange(self.num_letters)

    def make_prompt(self, longest: int) -> list[int]:
        """A prefix of something seen before, with some new tokens."""
        length = self.rng.randint(1, longest)
        start = self.rng.choice(self.documents) if self.documents and self.rng.random() < 0.8 else []
        prompt = start[: self.rng.randint(0, length)]
        while len(prompt) < length:
            prompt.append(self.make_token())
        return prompt

    # -- actions ----------------------------------------------------------------------------------

    def admit(self, prompts: list[list[int]], beam_width: int = 1) -> list[LlmRequest]:
        """One batch; an empty list if there was no room."""
        requests = [
            LlmRequest(self.next_id + i, prompt, 100, beam_width=beam_width) for i, prompt in enumerate(prompts)
        ]
        self.next_id += len(prompts)
        infos = [(request.request_id, request.prompt_len, beam_width) for request in requests]
        try:
            self.manager.add_sequence_batch(infos, requests)
        except OutOfBlocksError:
            self.events["refused"] += 1
            self.check()
            return []
        for request in requests:
            self.running[request.request_id] = request
            self.events["prepopulated"] += request.prepopulated_prompt_len > 0
            self.events["prepopulated_tokens"] += request.prepopulated_prompt_len
        self.documents.extend(prompts)
        del self.documents[:-12]
        self.check()
        return requests

    def compute_chunk(self, request: LlmRequest, last: int | None = None) -> None:
        """The next context chunk; its end is drawn among those the blocks allow."""
        first = request.context_current_position
        last = self.draw_chunk_end(request) if last is None else last
        self.events["state_copies"] += self.manager.copy_linear_attention_block(request)
        tokens = [request.get_tokens(beam) for beam in range(request.beam_width)]
        self.model.attend(request, tokens, first, last)
        self.model.advance(request, tokens, first, last)
        request.set_context_current_position(last)
        self.events["chunks"] += 1
        if last == request.prompt_len:
            request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
            request.add_new_tokens([[self.make_token()] for _ in range(request.beam_width)])

    def draw_chunk_end(self, request: LlmRequest) -> int:
        """Any end for attention alone. A recurrent state must be left in the next block that has memory."""
        first, prompt_len = request.context_current_position, request.prompt_len
        if not self.has_states or not self.manager.enable_block_reuse:
            return self.rng.randint(first + 1, prompt_len)
        if first == 0 and self.rng.random() < 0.25:
            self.events["whole_prompts"] += 1
            return prompt_len
        width = self.manager.tokens_per_block
        ids = self.manager.get_cache_block_ids(request.request_id, RECURRENT_STATES)[0]
        index = next(i for i in range(first // width, len(ids)) if ids[i] >= 0)
        end = min((index + 1) * width, prompt_len)
        return end if self.rng.random() < 0.8 else self.rng.randint(max(first, index * width) + 1, end)

    def decode(self, request: LlmRequest, num_drafts: int = 0) -> bool:
        """One step, verifying that many drafts; False if there was no room and the request was removed."""
        num_tokens = request.get_num_tokens(0)
        try:
            for _ in range(num_drafts + 1):
                self.manager.add_token(request.request_id)
        except OutOfBlocksError:
            self.events["paused"] += 1
            self.remove(request, store=self.rng.random() < 0.5)
            return False
        self.events["state_copies"] += self.manager.copy_linear_attention_block(request)
        num_accepted = self.rng.randint(0, num_drafts)
        tokens = [list(request.get_tokens(beam)) for beam in range(request.beam_width)]
        with_drafts = [beam + [self.make_token() for _ in range(num_drafts)] for beam in tokens]
        self.model.attend(request, with_drafts, num_tokens - 1, num_tokens + num_drafts)
        if self.has_states:
            self.promote(request, with_drafts, num_tokens - 1, num_tokens + num_accepted)
        if num_drafts > num_accepted:
            self.manager.rewind_kv_cache(request.request_id, num_drafts - num_accepted)
            self.events["rewinds"] += 1
        num_kept = num_tokens + num_accepted
        new_tokens = [[*beam[num_tokens:num_kept], self.make_token()] for beam in with_drafts]
        request.add_new_tokens(new_tokens)
        self.events["decodes"] += 1
        return True

    def promote(self, request: LlmRequest, tokens: list[list[int]], first: int, last: int) -> None:
        """The state after the accepted tokens goes to the block that is last before the rewind: the live one."""
        for slots, beam_tokens in zip(self.model.read_slots(request, RECURRENT_STATES), tokens, strict=True):
            expected = digests(request, beam_tokens)
            state = self.memory.slot(RECURRENT_STATES, slots[-1])
            assert state.get(0) == expected[first], f"live state of {request.request_id}"
            state[0] = expected[last]
            self.model.num_reads += 1

    def store(self, request: LlmRequest) -> None:
        """One of the calls that put blocks into the tree."""
        kind = self.rng.randrange(3)
        if kind == 0 or request.beam_width > 1:
            self.manager.store_context_blocks(request)
        elif kind == 1:
            self.manager.store_blocks_for_reuse(request.request_id, request)
        elif request.get_num_tokens(0) > request.prompt_len:
            self.manager.store_new_block(request)
        self.events["stores"] += 1
        self.check()

    def remove(self, request: LlmRequest, store: bool = True) -> None:
        del self.running[request.request_id]
        self.documents.append(list(request.get_tokens(0)))
        self.manager.remove_sequence(request.request_id, request if store else None)
        self.events["removals"] += 1
        self.check()

    def forget(self) -> None:
        """Drop cached blocks by hand: those of one document behind some tokens, or all of them."""
        if self.documents and self.rng.random() < 0.9:
            document = self.rng.choice(self.documents)
            self.manager.truncate_blocks(document, self.rng.randrange(len(document) + 1))
            self.events["truncations"] += 1
        else:
            self.manager.reset_reuse_state()
            self.events["resets"] += 1
        self.check()

    def check(self) -> None:
        if self.manager.enable_block_reuse:
            self.events["checked_blocks"] += self.memory.check_tree(self.manager)
        check_free_counts(self.manager)

    # -- the loop -----------------------------------------------------------------------------------

    def run(
        self,
        num_actions: int,
        longest_prompt: int,
        longest_sequence: int,
        max_beam_width: int = 1,
        max_drafts: int = 0,
        max_running: int = 4,
    ) -> None:
        """Random actions; at the end all requests are removed and every block must be free."""
        for _ in range(num_actions):
            if not self.running or (len(self.running) < max_running and self.rng.random() < 0.2):
                prompts = [self.make_prompt(longest_prompt) for _ in range(self.rng.choice((1, 1, 2)))]
                self.admit(prompts, self.rng.randint(1, max_beam_width))
                continue
            if self.rng.random() < 0.03 and not self.manager.compatibility:
                self.forget()
            request = self.rng.choice(list(self.running.values()))
            self.act(request, longest_sequence, max_drafts)
        for request in list(self.running.values()):
            self.remove(request)
        for blocks in self.manager.block_manager.window_block_managers.values():
            assert blocks.num_free_blocks == blocks.settings.num_primary_blocks

    def act(self, request: LlmRequest, longest_sequence: int, max_drafts: int) -> None:
        if request.context_remaining_length:
            self.compute_chunk(request)
            if self.rng.random() < 0.6:
                self.store(request)
        elif request.get_num_tokens(0) + max_drafts + 1 >= longest_sequence or self.rng.random() < 0.05:
            self.remove(request, store=self.rng.random() < 0.8)
        else:
            drafts = self.rng.randint(0, max_drafts) if request.beam_width == 1 else 0
            if self.decode(request, drafts) and self.rng.random() < 0.3:
                self.store(request)
        self.check()


def check_free_counts(manager: KVCacheManager) -> None:
    """Free + held = all in every window, and reference counts are those of the holders."""
    for window, blocks in manager.block_manager.window_block_managers.items():
        holders: dict[KVCacheBlock, int] = {}
        for sequence in manager.sequences.values():
            for block in sequence.get_window(window).held:
                holders[block] = holders.get(block, 0) + 1
        for block in blocks.block_objects():
            assert block.ref_count == holders.get(block, 0), f"window {window}, block {block.block_id}"
        held = [block for block in holders if not block.is_placeholder]
        assert all(block.is_primary for block in held)
        assert blocks.num_free_blocks == blocks.settings.num_primary_blocks - len(held)
        assert blocks.num_free_secondary_blocks == blocks.settings.num_secondary_blocks
        assert manager.verify_queue_integrity(window)
