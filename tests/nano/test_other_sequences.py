"""Sequences of other classes under our block manager and scheduler: the interface of nano-vllm's, nothing more."""

from __future__ import annotations

import gc
import random
from collections import deque
from enum import Enum
from typing import Any, NamedTuple

import pytest

from trtkv.errors import InvalidInputError
from trtkv.nano import BlockManager, SamplingParams, Scheduler, SchedulerConfig, Sequence, check_invariants
from trtkv.nano.hashing import hash_block

BLOCK_SIZE = 4


class State(Enum):
    """A status of its own, with the names that nano-vllm gives."""

    WAITING = "w"
    RUNNING = "r"
    FINISHED = "f"


class Settings(NamedTuple):
    """Sampling settings that are not ours."""

    temperature: float
    max_tokens: int
    ignore_eos: bool


class ListSequence:
    """Tokens in a list, and exactly the members that nano-vllm's Sequence has."""

    block_size = BLOCK_SIZE
    num_made = 0

    def __init__(self, tokens: list[int], settings: Settings) -> None:
        self.seq_id = ListSequence.num_made
        ListSequence.num_made += 1
        self.status = State.WAITING
        self.token_ids = list(tokens)
        self.num_prompt_tokens = len(tokens)
        self.num_cached_tokens = self.num_scheduled_tokens = 0
        self.is_prefill = True
        self.block_table: list[int] = []
        self.temperature, self.max_tokens, self.ignore_eos = settings

    def __len__(self) -> int:
        return len(self.token_ids)

    def __getitem__(self, key: Any) -> Any:
        return self.token_ids[key]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def last_token(self) -> int:
        return self.token_ids[-1]

    @property
    def num_blocks(self) -> int:
        return -(-len(self) // self.block_size)

    @property
    def num_completion_tokens(self) -> int:
        return len(self) - self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        return self.status is State.FINISHED

    def append_token(self, token: int) -> None:
        self.token_ids.append(token)


def make_prompts(rng: random.Random, count: int) -> list[list[int]]:
    prompts: list[list[int]] = []
    for _ in range(count):
        start = rng.choice(prompts) if prompts and rng.random() < 0.7 else []
        prompts.append([*start[: rng.randint(0, len(start))], *(rng.randrange(9) for _ in range(rng.randint(1, 15)))])
    return [prompt[:40] for prompt in prompts]


def describe(scheduler: Scheduler, sequences: list[Any]) -> list[object]:
    manager = scheduler.block_manager
    return [
        [(seq.block_table, seq.num_cached_tokens, seq.status.name, list(seq[:])) for seq in sequences],
        list(manager.free_block_ids),
        manager.hash_to_block_id,
        [(block.ref_count, block.hash) for block in manager.blocks],
    ]


def test_other_sequences_are_served_step_by_step_like_ours() -> None:
    num_preempted = 0
    for seed in range(20):
        rng = random.Random(seed)
        config = SchedulerConfig(num_kvcache_blocks=16, kvcache_block_size=BLOCK_SIZE, max_num_batched_tokens=30, eos=8)
        schedulers = [Scheduler(config), Scheduler(config)]
        sequences: list[list[Any]] = [[], []]
        for prompt in make_prompts(rng, 12):
            settings = Settings(0.5, rng.randint(1, 12), rng.random() < 0.5)
            sequences[0].append(Sequence(prompt, settings, block_size=BLOCK_SIZE))
            sequences[1].append(ListSequence(prompt, settings))
            for scheduler, mine in zip(schedulers, sequences, strict=True):
                scheduler.add(mine[-1])
        while not schedulers[0].is_finished():
            num_waiting = len(schedulers[0].waiting)
            steps = [scheduler.schedule() for scheduler in schedulers]
            num_preempted += not steps[0][1] and len(schedulers[0].waiting) > num_waiting
            tokens = [rng.randrange(9) for _ in steps[0][0]]
            for scheduler, (seqs, is_prefill) in zip(schedulers, steps, strict=True):
                scheduler.postprocess(seqs, tokens, is_prefill)
            assert describe(schedulers[0], sequences[0]) == describe(schedulers[1], sequences[1])
            check_invariants(schedulers[1].block_manager, sequences[1])
        assert schedulers[1].is_finished()
        assert all(seq.status is State.FINISHED for seq in sequences[1])
    assert num_preempted > 10


def compute(manager: BlockManager, seq: ListSequence) -> None:
    seq.num_scheduled_tokens = len(seq) - seq.num_cached_tokens
    manager.hash_blocks(seq)
    seq.num_cached_tokens = len(seq)
    seq.num_scheduled_tokens = 0


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Content of every block that is hashed."""
    contents: list[bytes] = []

    def counting_hash(parent: bytes, content: bytes) -> int:
        contents.append(content)
        return hash_block(parent, content)

    monkeypatch.setattr("trtkv.nano.block_chain.hash_block", counting_hash)
    return contents


def test_hashes_survive_preemption_and_end_with_the_sequence(hashed: list[bytes]) -> None:
    manager = BlockManager(8, BLOCK_SIZE)
    seq = ListSequence(list(range(13)), Settings(1.0, 5, True))
    manager.allocate(seq, manager.can_allocate(seq))
    compute(manager, seq)
    manager.deallocate(seq)
    manager.allocate(seq, manager.can_allocate(seq))
    assert seq.num_cached_tokens == 12
    assert len(hashed) == 3
    seq.status = State.FINISHED
    manager.deallocate(seq)
    assert manager.can_allocate(seq) == 3
    assert len(hashed) == 6  # forgotten at the end, hashed anew


def test_a_sequence_that_is_dropped_without_an_end_leaves_nothing_behind(hashed: list[bytes]) -> None:
    manager = BlockManager(8, BLOCK_SIZE)
    ListSequence.num_made = 0
    for _ in range(3):
        ListSequence.num_made = 5  # the same id again: sequences are told apart by what they are
        seq = ListSequence([len(hashed)] * 9, Settings(1.0, 5, True))
        assert manager.can_allocate(seq) == 0
        assert len(manager._chains) == 1
        del seq
        gc.collect()
    assert len(manager._chains) == 0
    assert len(hashed) == 6


def test_sampling_settings_of_others_are_checked_like_ours() -> None:
    seq = Sequence([1], Settings(0.5, 3, True))
    assert (seq.temperature, seq.max_tokens, seq.ignore_eos) == (0.5, 3, True)
    assert SamplingParams.from_settings(Settings(0.0, 3, False)) == SamplingParams(0.0, 3)
    with pytest.raises(InvalidInputError, match="max_tokens is 0"):
        Sequence([1], Settings(0.5, 0, True))
    with pytest.raises(InvalidInputError, match="give temperature, max_tokens and ignore_eos"):
        Sequence([1], deque())  # type: ignore[arg-type]
