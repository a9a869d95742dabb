"""The block manager against expectations worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from trtkv.errors import ConfigurationError, InvalidInputError, OutOfBlocksError
from trtkv.nano import NO_HASH, BlockManager, Sequence, check_invariants, find_violations
from trtkv.nano.hashing import hash_block, pack_tokens, token_bytes

VECTORS = [
    ([1, 2, 3, 4], -1, 8356527653647720045),
    ([5, 6, 7, 8], 8356527653647720045, 610383040053763902),
    ([5, 6, 7, 8], -1, 15290973870868887534),
    (list(range(256)), -1, 5218229187174952702),
    ([151643, 2**31, 2**40, 0], -1, 1917622709549833477),
]


def test_a_block_takes_the_bytes_of_its_tokens_only() -> None:
    block = BlockManager(2, 4).blocks[1]
    for content in ([1, 2, 3, 4], np.arange(4), None, "1234"):
        with pytest.raises(InvalidInputError, match=r"block 1 was given a \w+ as content; give token_bytes"):
            block.update(7, content)  # type: ignore[arg-type]
        assert (block.hash, block.token_ids) == (NO_HASH, [])
    block.update(7, token_bytes(pack_tokens([1, 2, 3, 4])))
    assert (block.hash, block.token_ids) == (7, [1, 2, 3, 4])


def sequence(tokens: object, block_size: int = 4) -> Sequence:
    return Sequence(tokens, block_size=block_size)  # type: ignore[arg-type]


def admit(manager: BlockManager, tokens: object) -> Sequence:
    """Allocate what the manager says and register every full block, as one whole prefill step does."""
    seq = sequence(tokens, manager.block_size)
    num_cached = manager.can_allocate(seq)
    assert num_cached >= 0
    manager.allocate(seq, num_cached)
    compute(manager, seq)
    return seq


def compute(manager: BlockManager, seq: Sequence) -> None:
    seq.num_scheduled_tokens = seq.num_tokens - seq.num_cached_tokens
    manager.hash_blocks(seq)
    seq.num_cached_tokens += seq.num_scheduled_tokens
    seq.num_scheduled_tokens = 0


@pytest.mark.parametrize(("tokens", "prefix", "digest"), VECTORS)
def test_hash_vectors(tokens: list[int], prefix: int, digest: int) -> None:
    assert BlockManager.compute_hash(tokens, prefix) == digest


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.uint32, np.uint64])
def test_hash_does_not_depend_on_the_element_type(dtype: type) -> None:
    assert BlockManager.compute_hash(np.array([1, 2, 3, 4], dtype=dtype)) == VECTORS[0][2]


def test_hash_depends_on_the_parent_even_if_it_is_zero() -> None:
    assert BlockManager.compute_hash([5, 6, 7, 8], 0) != BlockManager.compute_hash([5, 6, 7, 8])


def test_registered_blocks_carry_the_chained_hashes() -> None:
    manager = BlockManager(8, 4)
    seq = admit(manager, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert [manager.blocks[i].hash for i in seq.block_table] == [VECTORS[0][2], VECTORS[1][2], NO_HASH]
    assert manager.blocks[1].token_ids == [5, 6, 7, 8]
    assert manager.hash_to_block_id == {VECTORS[0][2]: 0, VECTORS[1][2]: 1}


def test_blocks_are_handed_out_in_order_and_released_deepest_first() -> None:
    manager = BlockManager(6, 4)
    seq = admit(manager, range(11))
    assert seq.block_table == [0, 1, 2]
    manager.deallocate(seq)
    assert list(manager.free_block_ids) == [3, 4, 5, 2, 1, 0]
    assert (seq.block_table, seq.num_cached_tokens) == ([], 0)


def test_last_block_is_never_matched() -> None:
    manager = BlockManager(8, 4)
    admit(manager, range(8))
    assert manager.can_allocate(sequence(range(8))) == 1
    assert manager.can_allocate(sequence(range(9))) == 2
    assert manager.can_allocate(sequence(range(4))) == 0
    assert manager.can_allocate(sequence(range(3))) == 0


def test_six_hundred_common_tokens_give_two_blocks_of_256() -> None:
    manager = BlockManager(16, 256)
    admit(manager, [*range(600), 1, 2, 3])
    assert manager.can_allocate(sequence([*range(600), 9, 9], 256)) == 2
    other = admit(manager, [*range(600), 9, 9])
    assert other.block_table == [0, 1, 3]


def test_matching_stops_at_the_first_gap() -> None:
    manager = BlockManager(4, 4)
    first = admit(manager, range(16))
    manager.deallocate(first)  # free: 3 2 1 0
    admit(manager, [50, 51, 52, 53])  # takes 3, whose content was the last block
    admit(manager, [60, 61, 62, 63])  # takes 2
    assert manager.can_allocate(sequence(range(5))) == 1
    assert list(manager.free_block_ids) == [1, 0]
    admit(manager, [70])  # takes 1: block 0 stays matchable, blocks behind the gap do not count
    assert manager.can_allocate(sequence(range(5))) == -1
    manager_hits = [i for i in (0, 1, 2, 3) if manager.blocks[i].hash in manager.hash_to_block_id]
    assert manager_hits == [0, 2, 3]


def test_hit_in_use_needs_no_free_block_but_a_hit_in_the_free_queue_does() -> None:
    manager = BlockManager(3, 4)
    holder = admit(manager, range(9))  # all three blocks in use
    assert manager.can_allocate(sequence([*range(8), 99])) == -1  # two shared, one new, none free
    manager.deallocate(holder)
    assert manager.can_allocate(sequence([*range(8), 99])) == 2
    assert manager.can_allocate(sequence([*range(8), *range(90, 98)])) == -1  # two free hits and two new blocks


def test_hit_on_a_free_block_takes_it_out_of_the_middle_of_the_queue() -> None:
    manager = BlockManager(5, 4)
    manager.deallocate(admit(manager, range(8)))
    assert list(manager.free_block_ids) == [2, 3, 4, 1, 0]
    again = admit(manager, [*range(4), 9])
    assert again.block_table == [0, 2]
    assert list(manager.free_block_ids) == [3, 4, 1]


def test_shared_block_returns_with_its_last_holder() -> None:
    manager = BlockManager(4, 4)
    first, second = admit(manager, range(5)), admit(manager, [*range(4), 9])
    assert manager.blocks[0].ref_count == 2
    manager.deallocate(first)
    assert manager.used_block_ids == {0, 2}
    manager.deallocate(second)
    assert list(manager.free_block_ids) == [3, 1, 2, 0]


def test_content_is_forgotten_only_when_its_block_is_handed_out_again() -> None:
    manager = BlockManager(2, 4)
    manager.deallocate(admit(manager, range(5)))
    assert manager.can_allocate(sequence(range(5))) == 1
    manager.deallocate(admit(manager, [70, 71, 72, 73, 74, 75]))  # takes both blocks
    assert manager.can_allocate(sequence(range(5))) == 0
    assert list(manager.hash_to_block_id) == [BlockManager.compute_hash([70, 71, 72, 73])]


def test_two_blocks_of_one_content_both_stay_valid_and_the_later_one_is_found() -> None:
    manager = BlockManager(6, 4)
    first, second = sequence(range(5)), sequence(range(5))
    manager.allocate(first, 0)
    manager.allocate(second, 0)  # neither is registered yet: both compute block 0
    compute(manager, first)
    compute(manager, second)
    assert (first.block_table, second.block_table) == ([0, 1], [2, 3])
    assert list(manager.hash_to_block_id.values()) == [2]
    manager.deallocate(first)
    assert admit(manager, range(5)).block_table == [2, 4]
    check_invariants(manager, [second, sequence_of_blocks([2, 4])])


def sequence_of_blocks(table: list[int]) -> Sequence:
    seq = sequence([0])
    seq.block_table = table
    return seq


def test_equal_hash_with_other_tokens_is_no_hit() -> None:
    manager = BlockManager(4, 4)
    admit(manager, range(5))
    stolen = manager.hash_to_block_id.pop(BlockManager.compute_hash(range(4)))
    manager.hash_to_block_id[BlockManager.compute_hash([5, 5, 5, 5])] = stolen
    assert manager.can_allocate(sequence([5, 5, 5, 5, 1])) == 0
    with pytest.raises(InvalidInputError, match="only 0 blocks"):
        manager.allocate(sequence([5, 5, 5, 5, 1]), 1)


def test_token_ids_that_agree_in_low_bits_are_different() -> None:
    manager = BlockManager(8, 4)
    admit(manager, [1, 2, 3, 4, 5])
    assert manager.can_allocate(sequence([1 + 2**8, 2, 3, 4, 5])) == 0
    assert manager.can_allocate(sequence([1 + 2**32, 2, 3, 4, 5])) == 0


def test_same_tokens_under_another_parent_are_no_hit() -> None:
    manager = BlockManager(8, 4)
    admit(manager, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert manager.can_allocate(sequence([5, 6, 7, 8, 1])) == 0
    assert manager.can_allocate(sequence([0, 0, 0, 0, 5, 6, 7, 8, 1])) == 0


@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 9])
def test_append_takes_a_block_for_the_first_token_of_a_block(length: int) -> None:
    manager = BlockManager(8, 4)
    seq = admit(manager, range(length))
    before = len(seq.block_table)
    seq.append_token(1)
    manager.may_append(seq)
    assert len(seq.block_table) == before + (length % 4 == 0)
    assert len(seq.block_table) == seq.num_blocks


def test_append_needs_a_free_block_only_at_a_boundary() -> None:
    manager = BlockManager(2, 4)
    seq = admit(manager, range(7))
    seq.append_token(1)
    assert manager.can_append(seq)
    manager.may_append(seq)
    seq.append_token(1)
    assert not manager.can_append(seq)
    with pytest.raises(OutOfBlocksError, match="needs 1 free blocks, 0 of 2"):
        manager.may_append(seq)
    assert seq.block_table == [0, 1]


def test_blocks_of_one_token_grow_too() -> None:
    manager = BlockManager(4, 1)
    seq = admit(manager, [1, 2])
    seq.append_token(3)
    manager.may_append(seq)
    compute(manager, seq)
    assert seq.block_table == [0, 1, 2]
    assert manager.can_allocate(sequence([1, 2, 3, 4], 1)) == 3


def test_decode_registers_a_block_when_it_becomes_full() -> None:
    manager = BlockManager(4, 4)
    seq = admit(manager, range(3))
    assert not manager.hash_to_block_id
    seq.append_token(3)
    manager.may_append(seq)
    compute(manager, seq)
    assert list(manager.hash_to_block_id) == [BlockManager.compute_hash(range(4))]


def test_chunk_that_ends_inside_a_block_leaves_it_unregistered() -> None:
    manager = BlockManager(4, 4)
    seq = sequence(range(10))
    manager.allocate(seq, 0)
    registered = []
    for chunk in (3, 4, 3):
        seq.num_scheduled_tokens = chunk
        manager.hash_blocks(seq)
        seq.num_cached_tokens += chunk
        registered.append(len(manager.hash_to_block_id))
    assert registered == [0, 1, 2]


def test_reregistering_a_block_leaves_no_stale_entry() -> None:
    manager = BlockManager(4, 4)
    seq = admit(manager, range(5))
    imposter = sequence([9, 9, 9, 9, 9])
    imposter.block_table = seq.block_table
    compute(manager, imposter)
    assert list(manager.hash_to_block_id) == [BlockManager.compute_hash([9, 9, 9, 9])]
    assert manager.can_allocate(sequence(range(5))) == 0


def test_failed_calls_change_nothing() -> None:
    manager = BlockManager(4, 4)
    holder = admit(manager, range(9))
    before = state(manager)
    bad_table = sequence(range(5))
    bad_table.block_table = [3]
    bare = sequence(range(9))
    bare.num_scheduled_tokens = 9
    for call, error, text in (
        (lambda: manager.allocate(holder, 0), InvalidInputError, "holds 3 blocks already"),
        (lambda: manager.allocate(sequence(range(9)), 3), InvalidInputError, "can match 0..2"),
        (lambda: manager.allocate(sequence(range(9)), -1), InvalidInputError, "can match 0..2"),
        (lambda: manager.allocate(sequence([0, 1, 2, 3, 9, 9, 9, 9, 9]), 2), InvalidInputError, "only 1 blocks"),
        (lambda: manager.allocate(sequence(range(50, 59)), 0), OutOfBlocksError, "needs 3 free blocks, 1 of 4"),
        (lambda: manager.can_allocate(sequence(range(9), 8)), InvalidInputError, "blocks of 8 tokens"),
        (lambda: manager.deallocate(bad_table), InvalidInputError, "block 3, which it cannot hold"),
        (lambda: manager.hash_blocks(bare), InvalidInputError, "in 0 blocks cannot complete"),
    ):
        with pytest.raises(error, match=text):
            call()
        assert state(manager) == before
    assert bad_table.block_table == [3]


def state(manager: BlockManager) -> object:
    blocks = [(block.ref_count, block.hash, block.content) for block in manager.blocks]
    return list(manager.free_block_ids), dict(manager.hash_to_block_id), blocks


def test_successor_of_an_unregistered_block_is_not_hashed() -> None:
    manager = BlockManager(4, 4)
    seq = sequence(range(9))
    manager.allocate(seq, 0)
    seq.num_cached_tokens, seq.num_scheduled_tokens = 4, 4
    with pytest.raises(InvalidInputError, match=r"block 0 of sequence [0-9]+ was not hashed"):
        manager.hash_blocks(seq)
    assert not manager.hash_to_block_id


def test_second_release_does_nothing() -> None:
    manager = BlockManager(4, 4)
    seq = admit(manager, range(9))
    manager.deallocate(seq)
    before = state(manager)
    manager.deallocate(seq)
    assert state(manager) == before


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (4, 0), (-1, 4)])
def test_impossible_pools_are_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ConfigurationError):
        BlockManager(num_blocks, block_size)


def test_blocks_are_hashed_once_however_often_they_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = BlockManager(8, 4)
    hashed = []

    def counting_hash(parent: bytes, content: bytes) -> int:
        hashed.append(content)
        return hash_block(parent, content)

    monkeypatch.setattr("trtkv.nano.block_chain.hash_block", counting_hash)
    seq = sequence(range(13))
    for _ in range(3):
        manager.can_allocate(seq)
    manager.allocate(seq, 0)
    compute(manager, seq)
    assert len(hashed) == 3
    manager.deallocate(seq)  # preempted: admitted again without hashing anything
    manager.allocate(seq, manager.can_allocate(seq))
    assert seq.num_cached_tokens == 12
    assert len(hashed) == 3


def test_violations_are_all_named() -> None:
    manager = BlockManager(4, 4)
    seq = admit(manager, range(5))
    assert find_violations(manager, [seq]) == []
    manager.blocks[0].ref_count = 2
    manager.free_block_ids[1] = None
    manager.hash_to_block_id[5] = 3
    found = find_violations(manager, [seq])
    assert len(found) == 3
    assert "block 0 counts 2 holders" in found[0]
    assert "block 1" in found[1]
    assert "hash 5 leads to block 3" in found[2]
