"""Random programs on nano-vllm's own classes and on ours: every visible state must agree after every call."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.nano.original_nano_vllm import Original, find_package, load_original
from trtkv.errors import InvalidInputError, OutOfBlocksError
from trtkv.nano import BlockManager, SamplingParams, Scheduler, SchedulerConfig, Sequence, check_invariants

NUM_PROGRAMS = int(os.environ.get("TRTKV_NANO_PROGRAMS", "300"))
EOS = 7


@pytest.fixture(scope="module")
def original() -> Iterator[Original]:
    folder = find_package()
    if folder is None:
        pytest.skip("nano-vllm is not importable: set TRTKV_NANO_VLLM to a checkout of it")
    with load_original(folder) as modules:
        yield modules


def assert_same_sequence(theirs: Any, ours: Sequence) -> None:
    for name in (
        "token_ids",
        "last_token",
        "num_tokens",
        "num_prompt_tokens",
        "num_cached_tokens",
        "num_scheduled_tokens",
        "is_prefill",
        "block_table",
        "num_blocks",
        "last_block_num_tokens",
        "num_completion_tokens",
        "prompt_token_ids",
        "completion_token_ids",
        "is_finished",
    ):
        assert getattr(theirs, name) == getattr(ours, name), name
    assert theirs.status.name == ours.status.name
    assert len(theirs) == len(ours)
    assert theirs.__getstate__() == ours.__getstate__()[:6]
    assert [theirs.block(i) for i in range(theirs.num_blocks)] == [ours.block(i) for i in range(ours.num_blocks)]


def assert_same_manager(theirs: Any, ours: BlockManager) -> None:
    assert list(theirs.free_block_ids) == list(ours.free_block_ids)
    assert theirs.hash_to_block_id == ours.hash_to_block_id
    assert theirs.used_block_ids == ours.used_block_ids
    for a, b in zip(theirs.blocks, ours.blocks, strict=True):
        assert (a.block_id, a.ref_count, a.hash, a.token_ids) == (b.block_id, b.ref_count, b.hash, b.token_ids)


def random_prompt(rng: random.Random, earlier: list[list[int]], max_length: int) -> list[int]:
    """Often a prefix of an earlier prompt, so that blocks are shared, diverge in the middle or match completely."""
    prompt: list[int] = []
    if earlier and rng.random() < 0.7:
        source = rng.choice(earlier)
        prompt = source[: rng.randint(1, len(source))]
    alphabet = rng.choice((2, 50, 2**40))
    prompt = prompt + [rng.randrange(alphabet) for _ in range(rng.randint(0 if prompt else 1, max_length))]
    prompt = prompt[: max(1, max_length)]
    earlier.append(prompt)
    return prompt


class ManagerProgram:
    """One random program at the level of the block manager."""

    def __init__(self, original: Original, seed: int) -> None:
        self.rng = random.Random(seed)
        self.block_size = self.rng.choice((2, 3, 4, 8))
        self.num_blocks = self.rng.randint(2, 24)
        original.sequence.block_size = self.block_size
        self.original = original
        self.theirs = original.block_manager(self.num_blocks, self.block_size)
        self.ours = BlockManager(self.num_blocks, self.block_size)
        self.live: list[tuple[Any, Sequence]] = []
        self.earlier: list[list[int]] = []

    def run(self, num_steps: int) -> None:
        actions, weights = (self.admit, self.compute, self.append, self.free), (2, 3, 2, 1)
        for _ in range(num_steps):
            self.rng.choices(actions, weights)[0]()
            assert_same_manager(self.theirs, self.ours)
            check_invariants(self.ours, [ours for _, ours in self.live])
        while self.live:
            self.free()
        assert_same_manager(self.theirs, self.ours)
        assert self.ours.num_free_blocks == self.num_blocks

    def admit(self) -> None:
        prompt = random_prompt(self.rng, self.earlier, self.block_size * self.num_blocks)
        theirs, ours = self.original.sequence(prompt), Sequence(prompt, block_size=self.block_size)
        num_cached = self.theirs.can_allocate(theirs)
        assert num_cached == self.ours.can_allocate(ours)
        if num_cached == -1:
            with pytest.raises(OutOfBlocksError):
                self.ours.allocate(ours, 0)
            return
        if num_cached and self.rng.random() < 0.2:
            num_cached = self.try_fewer(theirs, ours, num_cached)
        if num_cached is None:
            return
        self.theirs.allocate(theirs, num_cached)
        self.ours.allocate(ours, num_cached)
        self.live.append((theirs, ours))
        assert_same_sequence(theirs, ours)

    def try_fewer(self, theirs: Any, ours: Sequence, num_cached: int) -> int | None:
        """A caller may use fewer hits than there are, if the pool still has room."""
        fewer = self.rng.randrange(num_cached)
        hits, block_hash = [], -1
        for i in range(fewer):
            block_hash = BlockManager.compute_hash(ours.block(i), block_hash)
            hits.append(self.theirs.hash_to_block_id[block_hash])
        in_use = sum(self.theirs.blocks[block_id].ref_count > 0 for block_id in hits)
        fits = ours.num_blocks - in_use <= self.ours.num_free_blocks
        if fits:
            return fewer
        with pytest.raises(OutOfBlocksError):
            self.ours.allocate(ours, fewer)
        return None

    def compute(self) -> None:
        """A chunk of the uncomputed tokens, as a prefill step or a decode step does."""
        pending = [pair for pair in self.live if pair[1].num_cached_tokens < pair[1].num_tokens]
        if not pending:
            return
        pair = self.rng.choice(pending)
        left = pair[1].num_tokens - pair[1].num_cached_tokens
        chunk = left if self.rng.random() < 0.5 else self.rng.randint(1, left)
        for manager, seq in zip((self.theirs, self.ours), pair, strict=True):
            seq.num_scheduled_tokens = chunk
            manager.hash_blocks(seq)
            seq.num_cached_tokens += chunk
            seq.num_scheduled_tokens = 0
        assert_same_sequence(*pair)

    def append(self) -> None:
        done = [pair for pair in self.live if pair[1].num_cached_tokens == pair[1].num_tokens]
        if not done:
            return
        theirs, ours = self.rng.choice(done)
        token = self.rng.randrange(3)
        theirs.append_token(token)
        ours.append_token(token)
        theirs.is_prefill = ours.is_prefill = False
        assert self.theirs.can_append(theirs) == self.ours.can_append(ours)
        if self.ours.can_append(ours):
            self.theirs.may_append(theirs)
            self.ours.may_append(ours)
        else:
            with pytest.raises(OutOfBlocksError):
                self.ours.may_append(ours)
            self.live.remove((theirs, ours))
            self.theirs.deallocate(theirs)
            self.ours.deallocate(ours)
        assert_same_sequence(theirs, ours)

    def free(self) -> None:
        if not self.live:
            return
        theirs, ours = self.live.pop(self.rng.randrange(len(self.live)))
        self.theirs.deallocate(theirs)
        self.ours.deallocate(ours)
        assert_same_sequence(theirs, ours)


@pytest.mark.parametrize("part", range(10))
def test_block_managers_agree_on_random_programs(original: Original, part: int) -> None:
    for seed in range(part, NUM_PROGRAMS, 10):
        ManagerProgram(original, seed).run(num_steps=60)


class SchedulerProgram:
    """One random program at the level of the scheduler: arrivals, steps, sampled tokens, preemption."""

    def __init__(self, original: Original, seed: int) -> None:
        self.rng = random.Random(10**6 + seed)
        block_size = self.rng.choice((2, 3, 4, 8))
        num_blocks = self.rng.randint(2, 30)
        self.max_length = block_size * num_blocks
        sizes = {
            "num_kvcache_blocks": num_blocks,
            "kvcache_block_size": block_size,
            "max_num_seqs": self.rng.choice((1, 2, 5, 100)),
            "max_num_batched_tokens": self.rng.choice((1, 5, 16, 1000)),
            "eos": self.rng.choice((-1, EOS)),
        }
        original.sequence.block_size = block_size
        self.block_size = block_size
        self.original = original
        self.theirs = original.scheduler(SimpleNamespace(**sizes))
        self.ours = Scheduler(SchedulerConfig(**sizes))
        self.pairs: list[tuple[Any, Sequence]] = []
        self.earlier: list[list[int]] = []
        self.num_preempted = self.num_chunked = 0
        self.stuck = False

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            if self.rng.random() < 0.4 or self.ours.is_finished():
                self.arrive()
            if self.ours.is_finished() or self.stuck:
                break
            self.step()
            self.compare()

    def arrive(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            prompt = random_prompt(self.rng, self.earlier, self.max_length)
            settings = {"max_tokens": self.rng.randint(1, 12), "ignore_eos": self.rng.random() < 0.5}
            theirs = self.original.sequence(prompt, self.original.sampling_params(**settings))
            ours = Sequence(prompt, SamplingParams(**settings), block_size=self.block_size)
            self.theirs.add(theirs)
            self.ours.add(ours)
            self.pairs.append((theirs, ours))

    def step(self) -> None:
        before = self.snapshot()
        try:
            theirs, their_kind = self.theirs.schedule()
        except AssertionError:
            with pytest.raises(OutOfBlocksError):
                self.ours.schedule()
            assert self.snapshot() == before, "a failed schedule must change nothing"
            self.stuck = True
            return
        waiting = len(self.ours.waiting)
        ours, our_kind = self.ours.schedule()
        self.num_preempted += not our_kind and len(self.ours.waiting) > waiting
        self.num_chunked += our_kind and ours[-1].status.name == "WAITING"
        assert their_kind == our_kind
        assert [self.index_of(seq, 0) for seq in theirs] == [self.index_of(seq, 1) for seq in ours]
        sampled = [self.rng.randrange(8) for _ in ours]
        self.compare()
        self.theirs.postprocess(theirs, sampled, their_kind)
        self.ours.postprocess(ours, sampled, our_kind)

    def index_of(self, seq: Any, side: int) -> int:
        return next(i for i, pair in enumerate(self.pairs) if pair[side] is seq)

    def snapshot(self) -> object:
        manager = self.ours.block_manager
        return (
            [id(seq) for seq in self.ours.waiting],
            [id(seq) for seq in self.ours.running],
            list(manager.free_block_ids),
            dict(manager.hash_to_block_id),
            [(block.ref_count, block.hash, block.content) for block in manager.blocks],
            [(seq.__getstate__(), list(seq.block_table), seq.status) for _, seq in self.pairs],
        )

    def compare(self) -> None:
        if self.stuck:
            return
        assert_same_manager(self.theirs.block_manager, self.ours.block_manager)
        for name in ("waiting", "running"):
            theirs = [self.index_of(seq, 0) for seq in getattr(self.theirs, name)]
            assert theirs == [self.index_of(seq, 1) for seq in getattr(self.ours, name)]
        for pair in self.pairs:
            assert_same_sequence(*pair)
        assert self.theirs.is_finished() == self.ours.is_finished()
        check_invariants(self.ours.block_manager, [seq for _, seq in self.pairs])


@pytest.mark.parametrize("part", range(10))
def test_schedulers_agree_on_random_programs(original: Original, part: int) -> None:
    seen = [0, 0, 0]
    for seed in range(part, NUM_PROGRAMS, 10):
        program = SchedulerProgram(original, seed)
        program.run(num_steps=50)
        seen = [a + b for a, b in zip(seen, (program.num_preempted, program.num_chunked, program.stuck), strict=True)]
    assert all(seen), f"preemptions, chunked prefills and dead ends all have to occur, got {seen}"


def test_hashes_agree(original: Original) -> None:
    rng = random.Random(3)
    for _ in range(200):
        tokens = [rng.randrange(2**50) for _ in range(rng.randint(1, 40))]
        prefix = rng.choice((-1, 0, rng.randrange(2**64)))
        assert original.block_manager.compute_hash(tokens, prefix) == BlockManager.compute_hash(tokens, prefix)


def test_what_the_pool_can_never_hold_is_refused_where_the_original_dies_later(original: Original) -> None:
    original.sequence.block_size = 4
    sizes = {"kvcache_block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 64, "eos": -1}
    theirs = original.scheduler(SimpleNamespace(num_kvcache_blocks=2, **sizes))
    theirs.add(original.sequence(list(range(9))))
    with pytest.raises(AssertionError):
        theirs.schedule()
    ours = Scheduler(SchedulerConfig(num_kvcache_blocks=2, **sizes))
    with pytest.raises(InvalidInputError, match="needs 3 blocks, the pool has 2"):
        ours.add(Sequence(range(9), block_size=4))
    assert ours.is_finished()
