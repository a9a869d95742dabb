"""Default mode against compatibility mode: equal where no fault of the original is touched, better where one is."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.builders import add, block_ids, decode, finish_prompt, make_kv_cache_manager, make_request, prefill
from tests.fake_clock import FakeClock
from tests.fake_memory import FakeEngine, FakeMemory, WrongContentError
from trtkv.errors import OutOfBlocksError
from trtkv.inspection.invariants import find_violations
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest


class Twin:
    """The same program on a manager of either mode; every answer must be the same."""

    def __init__(self, seed: int, options: dict[str, Any], max_beam_width: int = 1):
        self.random = random.Random(seed)
        self.clocks = [FakeClock(), FakeClock()]
        self.memories = [FakeMemory(), FakeMemory()]
        self.managers: list[KVCacheManager] = [
            make_kv_cache_manager(
                clock=clock,
                copy_engine=memory,
                compatibility=compatibility,
                hash_map_order=True,
                max_beam_width=max_beam_width,
                **options,
            )
            for clock, memory, compatibility in zip(self.clocks, self.memories, (False, True), strict=True)
        ]
        self.max_beam_width = max_beam_width
        self.live: dict[int, list[LlmRequest]] = {}
        self.next_id = 0

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.random.choice((self.admit, self.admit, self.step, self.step, self.step, self.finish, self.refresh))()
            self.compare()

    def compare(self) -> None:
        described = [self.describe(index) for index in (0, 1)]
        assert described[0] == described[1]

    def describe(self, index: int) -> dict[str, Any]:
        manager = self.managers[index]
        windows = manager.block_manager.window_block_managers
        return {
            "ids": {i: [manager.get_cache_block_ids(i, window) for window in windows] for i in self.live},
            "prepopulated": {i: pair[index].prepopulated_prompt_len for i, pair in self.live.items()},
            "queues": {window: m.eviction_policy.free_queues() for window, m in windows.items()},
            "counters": {window: m.counters for window, m in windows.items()},
            "transfers": self.memories[index].copies,
            "events": manager.num_free_blocks_per_window_size,
        }

    def admit(self) -> None:
        count = self.random.choice((1, 1, 2))
        pairs = [self.make_pair() for _ in range(count)]
        infos = [(pair[0].request_id, pair[0].prompt_len, pair[0].beam_width) for pair in pairs]
        try:
            self.managers[0].add_sequence_batch(infos, [pair[0] for pair in pairs])
        except OutOfBlocksError:
            return  # the original would leave the batch half done
        self.managers[1].add_sequence_batch(infos, [pair[1] for pair in pairs])
        for pair in pairs:
            self.live[pair[0].request_id] = pair
            for manager, request in zip(self.managers, pair, strict=True):
                finish_prompt(request)
                manager.store_context_blocks(request)

    def make_pair(self) -> list[LlmRequest]:
        rng = self.random
        length = rng.randint(1, 30)
        tokens = [5] * rng.randrange(length + 1)
        tokens = (tokens + [rng.randrange(3) for _ in range(length)])[:length]
        width = rng.randint(1, self.max_beam_width)
        self.next_id += 1
        return [LlmRequest(self.next_id, tokens, 20, beam_width=width) for _ in range(2)]

    def step(self) -> None:
        for request_id, pair in self.live.items():
            if pair[0].get_num_tokens() >= 60:
                continue
            try:
                self.managers[0].add_token(request_id)
            except OutOfBlocksError:
                continue  # the original would count the token all the same
            self.managers[1].add_token(request_id)
            token = self.random.randrange(3)
            for request in pair:
                for beam in range(request.beam_width):
                    request.add_new_token(token, beam)

    def finish(self) -> None:
        if self.live:
            request_id = self.random.choice(list(self.live))
            with_request = self.random.random() < 0.8
            pair = self.live.pop(request_id)
            for manager, request in zip(self.managers, pair, strict=True):
                manager.remove_sequence(request_id, request if with_request else None)

    def refresh(self) -> None:
        for manager, clock in zip(self.managers, self.clocks, strict=True):
            clock.advance_ms(3)
            manager.refresh_blocks()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("options", "max_beam_width"),
    [
        ({"num_blocks": 24}, 1),
        ({"num_blocks": 24, "copy_on_partial_reuse": False}, 1),
        ({"num_blocks": 24, "enable_partial_reuse": False}, 1),
        ({"num_blocks": 40}, 3),
        ({"num_blocks": 24, "enable_block_reuse": False}, 2),
    ],
    ids=["plain", "no-copy", "whole-blocks", "beams", "no-reuse"],
)
def test_programs_that_touch_no_fault_give_equal_ids(seed: int, options: dict[str, Any], max_beam_width: int) -> None:
    """With a host tier or retention priorities the two evict in another order (decision 0150)."""
    Twin(seed, options, max_beam_width).run(150)


# -- faults of the original: shown in compatibility mode, absent by default --------------------------


def store_after_sliding(compatibility: bool) -> tuple[KVCacheManager, dict[int, LlmRequest]]:
    """A sequence leaves its first block, another takes it, and the first one is stored."""
    manager = make_kv_cache_manager(4, window=4, compatibility=compatibility)
    first = finish_prompt(add(manager, make_request(1, [1, 1, 1, 1, 2])))
    decode(manager, first, [3] * 3)  # eight tokens: the first block has left the window
    assert manager.get_sequence(1).get_num_front_blocks_removed(4) == 1
    second = finish_prompt(add(manager, make_request(2, [8, 8, 8, 8, 9, 9, 9, 9, 7])))
    assert block_ids(manager, 1)[0] in block_ids(manager, 2)
    manager.store_context_blocks(first)
    return manager, {1: first, 2: second}


def test_live_block_is_never_filed_under_the_key_of_another_sequence() -> None:
    manager, requests = store_after_sliding(compatibility=False)
    assert find_violations(manager, requests) == []
    assert manager.probe_prefix_match_length(make_request(3, [1, 1, 1, 1, 5])) == 0


def test_original_files_a_recycled_block_under_a_key_that_is_not_its_own() -> None:
    manager, requests = store_after_sliding(compatibility=True)
    assert [text for text in find_violations(manager, requests) if text.startswith("23:")]
    assert manager.probe_prefix_match_length(make_request(3, [1, 1, 1, 1, 5])) == 4


@pytest.mark.parametrize("compatibility", [False, True])
def test_request_cancelled_before_its_first_step_leaves_nothing_to_find(compatibility: bool) -> None:
    manager = make_kv_cache_manager(compatibility=compatibility)
    request = add(manager, make_request(1, 9))
    manager.remove_sequence(1, request)
    found = manager.probe_prefix_match_length(make_request(2, 9))
    assert found == (8 if compatibility else 0)  # recorded: eight tokens that nobody ever computed


@pytest.mark.parametrize("compatibility", [False, True])
def test_rewound_tokens_are_not_found_under_the_old_key(compatibility: bool) -> None:
    memory = FakeMemory()
    manager = make_kv_cache_manager(compatibility=compatibility, copy_engine=memory)
    engine = FakeEngine(manager, memory)
    request = add(manager, make_request(1, 5))
    engine.compute(request, 0, 5)
    finish_prompt(request).add_new_token(6)
    manager.add_token(1)
    engine.compute(request, 5, 6)
    request.add_new_token(7)
    manager.store_blocks_for_reuse(1, request)  # tokens 1 to 6
    manager.rewind_kv_cache(1, 1)
    request.set_generated_tokens([[60]])
    manager.add_token(1)
    engine.compute(request, 5, 6)
    other = add(manager, make_request(2, 7))
    if compatibility:
        assert other.prepopulated_prompt_len == 6
        with pytest.raises(WrongContentError):
            engine.compute(other, 6, 7)
    else:
        assert other.prepopulated_prompt_len == 4
        engine.compute(other, 4, 7)


@pytest.mark.parametrize("compatibility", [False, True])
def test_unpinning_takes_no_reference_of_a_sequence(compatibility: bool) -> None:
    manager = make_kv_cache_manager(compatibility=compatibility)
    prefill(manager, make_request(1, 8))
    ids = block_ids(manager, 1)
    if compatibility:
        manager.unpin_blocks_by_id(ids)
        assert {text.split(":")[0] for text in find_violations(manager)} >= {"3"}
    else:
        with pytest.raises(ValueError, match=r"cannot remove 1 pins .* it has 0"):
            manager.unpin_blocks_by_id(ids)
        assert find_violations(manager) == []
