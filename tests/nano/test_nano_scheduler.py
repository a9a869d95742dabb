"""The scheduler against expectations worked out by hand."""

from __future__ import annotations

import pytest

from trtkv.errors import ConfigurationError, InvalidInputError, OutOfBlocksError
from trtkv.nano import SamplingParams, Scheduler, SchedulerConfig, Sequence, SequenceStatus, check_invariants


def scheduler(num_blocks: int = 16, **settings: int) -> Scheduler:
    return Scheduler(SchedulerConfig(num_kvcache_blocks=num_blocks, kvcache_block_size=4, **settings))


def add(target: Scheduler, tokens: object, max_tokens: int = 8, *, ignore_eos: bool = False) -> Sequence:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
    seq = Sequence(tokens, params, block_size=target.block_size)  # type: ignore[arg-type]
    target.add(seq)
    return seq


def step(target: Scheduler, token: int = 1) -> tuple[list[Sequence], bool]:
    seqs, is_prefill = target.schedule()
    target.postprocess(seqs, [token] * len(seqs), is_prefill)
    return seqs, is_prefill


def test_waiting_sequences_are_prefilled_before_running_ones_decode() -> None:
    target = scheduler()
    first = add(target, range(5))
    assert step(target) == ([first], True)
    second = add(target, range(50, 53))
    assert step(target) == ([second], True)
    assert first.num_completion_tokens == 1
    assert step(target) == ([first, second], False)
    assert (first.completion_token_ids, second.completion_token_ids) == ([1, 1], [1, 1])


def test_only_the_first_sequence_of_a_step_is_cut_to_the_budget() -> None:
    target = scheduler(max_num_batched_tokens=6)
    long, short = add(target, range(10)), add(target, range(50, 53))
    assert target.schedule() == ([long], True)
    assert (long.num_scheduled_tokens, long.status) == (6, SequenceStatus.WAITING)
    target.postprocess([long], [9], True)
    assert long.num_completion_tokens == 0  # the token of an unfinished prompt is ignored
    seqs, _ = target.schedule()  # 4 left of the long one; 3 do not fit into the other 2
    assert [(seq is long, seq.num_scheduled_tokens) for seq in seqs] == [(True, 4)]
    target.postprocess(seqs, [9], True)
    assert long.completion_token_ids == [9]
    assert step(target)[0] == [short]


def test_sequences_fill_a_step_while_they_fit_whole() -> None:
    target = scheduler(max_num_batched_tokens=9)
    first, second, third = (add(target, range(10 * i, 10 * i + 4)) for i in range(1, 4))
    assert step(target) == ([first, second], True)
    assert step(target) == ([third], True)


def test_sequence_limit_holds_for_both_kinds_of_step() -> None:
    target = scheduler(max_num_seqs=2)
    seqs = [add(target, [i]) for i in range(3)]
    assert step(target)[0] == seqs[:2]
    assert step(target)[0] == seqs[2:]
    assert step(target) == (seqs[:2], False)


def test_prefix_computed_in_the_same_step_is_not_shared_but_in_the_next_it_is() -> None:
    target = scheduler()
    first, second = add(target, range(9)), add(target, range(9))
    step(target)
    assert not set(first.block_table) & set(second.block_table)
    third = add(target, range(9))
    seqs, _ = target.schedule()
    assert seqs == [third]
    assert (third.num_cached_tokens, third.num_scheduled_tokens) == (8, 1)
    assert third.block_table[:2] == second.block_table[:2]


def test_sequence_ends_at_its_limit_or_at_the_end_token() -> None:
    target = scheduler(eos=7)
    limited, ended, stubborn = (
        add(target, [1], max_tokens=2, ignore_eos=True),
        add(target, [2]),
        add(target, [3], ignore_eos=True),
    )
    seqs, is_prefill = target.schedule()
    target.postprocess(seqs, [7, 7, 7], is_prefill)
    assert [seq.is_finished for seq in (limited, ended, stubborn)] == [False, True, False]
    seqs, is_prefill = target.schedule()
    assert seqs == [limited, stubborn]
    target.postprocess(seqs, [7, 7], is_prefill)
    assert [seq.is_finished for seq in (limited, ended, stubborn)] == [True, True, False]
    assert list(target.running) == [stubborn]
    check_invariants(target.block_manager, [stubborn])


def test_last_sequence_is_preempted_and_resumes_from_its_cached_blocks() -> None:
    target = scheduler(num_blocks=4)
    first, second = add(target, range(8), max_tokens=4), add(target, range(50, 58))
    step(target)  # both hold two full blocks, each has one more token to store
    assert step(target) == ([first], False)
    assert (second.status, second.is_prefill, second.block_table) == (SequenceStatus.WAITING, True, [])
    assert list(target.waiting) == [second]
    # The first one needs 3 of 4 blocks to its end: the second waits for it, and then hits what survived.
    while not first.is_finished:
        assert step(target)[0] == [first]
    seqs, is_prefill = target.schedule()
    assert (seqs, is_prefill) == ([second], True)
    assert second.num_cached_tokens == 4  # its last block was handed out, the first one was still there


def test_whole_run_finishes_everything_and_gives_all_blocks_back() -> None:
    target = scheduler(num_blocks=7, max_num_batched_tokens=11)
    seqs = [add(target, range(i, i + 9), max_tokens=9) for i in range(6)]
    num_steps = 0
    while not target.is_finished():
        step(target, num_steps % 5)
        check_invariants(target.block_manager, seqs)
        num_steps += 1
    assert all(seq.num_completion_tokens == 9 for seq in seqs)
    assert target.block_manager.num_free_blocks == 7
    assert num_steps > 9


def test_lone_sequence_that_cannot_grow_is_an_error_and_stays_as_it_was() -> None:
    target = scheduler(num_blocks=2)
    seq = add(target, range(8))
    step(target)
    for _ in range(2):
        with pytest.raises(OutOfBlocksError, match="needs one more block than the pool's 2"):
            target.schedule()
        assert list(target.running) == [seq]
        assert (seq.block_table, seq.num_cached_tokens, seq.is_prefill) == ([0, 1], 8, True)


def test_sequences_that_share_all_their_blocks_but_none_of_them_new_do_not_help_to_grow() -> None:
    target = scheduler(num_blocks=2)
    first = add(target, range(5))
    step(target)
    twin = Sequence(range(4), block_size=4)  # holds only what the first one holds too
    twin.block_table = [first.block_table[0]]
    target.block_manager.blocks[first.block_table[0]].ref_count += 1
    target.running.append(twin)
    for token in (1, 1, 1):
        first.append_token(token)
    with pytest.raises(OutOfBlocksError):
        target.schedule()
    assert list(target.running) == [first, twin]
    assert twin.block_table == [first.block_table[0]]


@pytest.mark.parametrize(
    ("tokens", "block_size", "text"), [(range(9), 4, "needs 3 blocks, the pool has 2"), ([1], 8, "blocks of 8 tokens")]
)
def test_sequences_that_never_fit_are_refused_at_once(tokens: range, block_size: int, text: str) -> None:
    target = scheduler(num_blocks=2)
    with pytest.raises(InvalidInputError, match=text):
        target.add(Sequence(tokens, block_size=block_size))
    assert target.is_finished()


def test_nothing_to_schedule_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match="no sequence"):
        scheduler().schedule()


def test_bad_results_of_a_step_change_nothing() -> None:
    target = scheduler()
    seq = add(target, range(5))
    seqs, is_prefill = target.schedule()
    for bad, text in (([], "1 sequences but 0 tokens"), (["x"], "token ids must be integers")):
        with pytest.raises(InvalidInputError, match=text):
            target.postprocess(seqs, bad, is_prefill)  # type: ignore[arg-type]
        assert (seq.num_cached_tokens, seq.num_scheduled_tokens, seq.num_tokens) == (0, 5, 5)
    target.postprocess(seqs, [1], is_prefill)
    with pytest.raises(InvalidInputError, match="was not scheduled"):
        target.postprocess(seqs, [1], is_prefill)
    assert seq.num_tokens == 6


@pytest.mark.parametrize("name", ["num_kvcache_blocks", "kvcache_block_size", "max_num_seqs", "max_num_batched_tokens"])
def test_impossible_sizes_are_refused(name: str) -> None:
    settings = {"num_kvcache_blocks": 4, name: 0}
    with pytest.raises(ConfigurationError, match=f"{name} is 0; give at least 1"):
        SchedulerConfig(**settings)
