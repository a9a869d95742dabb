"""A router's index that listens to vLLM's form: restarts, gaps, repeats, media, groups."""

from __future__ import annotations

import pytest

from trtkv.errors import InvalidInputError
from trtkv.events.router_index import RouterIndex, WorkerRank
from trtkv.exporters.vllm_events import AllBlocksCleared, BlockRemoved, BlockStored, WireBatch, WireEvent
from trtkv.exporters.vllm_listener import VllmListener

NAME = WorkerRank("a")


def make_listener(*windows: int) -> tuple[RouterIndex, VllmListener]:
    index = RouterIndex(4)
    return index, VllmListener(index, "a", windows or (64,))


def batch(ts: float, *events: WireEvent, rank: int | None = None) -> WireBatch:
    return WireBatch(ts, list(events), rank)


def store(*hashes: int, medium: str | None = "GPU", group: int | None = None) -> BlockStored:
    return BlockStored(list(hashes), None, [0] * 4 * len(hashes), 4, medium=medium, group_idx=group)


def test_blocks_come_and_go() -> None:
    index, listener = make_listener()
    listener.take(0, batch(1, AllBlocksCleared(), store(1, 2, 3)))
    listener.take(1, batch(2, store(1), BlockRemoved([3])))
    assert index.find([1, 2, 3]) == {NAME: 8}
    listener.take(2, batch(3, BlockRemoved([1])))  # reported once, as listeners keep sets
    assert index.find([1, 2, 3]) == {}
    assert (listener.needs_resync, listener.num_missed, listener.num_restarts) == (False, 0, 0)


def test_repeats_are_skipped_and_gaps_ask_for_a_snapshot() -> None:
    index, listener = make_listener()
    first = batch(1, AllBlocksCleared(), store(1))
    listener.take(0, first)
    listener.take(1, batch(2, BlockRemoved([1])))
    listener.take(0, first)
    assert index.find([1]) == {}
    listener.take(4, batch(5, store(2)))
    assert (listener.needs_resync, listener.num_missed, listener.next_sequence) == (True, 2, 5)
    listener.take(5, batch(6, AllBlocksCleared(), store(3)))
    assert not listener.needs_resync
    assert [index.has(NAME, 64, block_hash) for block_hash in (1, 2, 3)] == [False, False, True]


def test_late_start_is_noticed() -> None:
    _, listener = make_listener()
    listener.take(7, batch(1, store(1)))
    assert listener.needs_resync


@pytest.mark.parametrize("is_whole", [True, False])
def test_restart_forgets_all_ranks(is_whole: bool) -> None:
    index, listener = make_listener()
    for rank in (0, 1):
        listener.take(rank, batch(1 + rank, AllBlocksCleared(), store(1), rank=rank))
    listener.take(2, batch(3, store(2), rank=0))
    listener.take(0 if is_whole else 1, batch(4, *([AllBlocksCleared()] if is_whole else []), store(5), rank=0))
    assert index.find([1]) == {}
    assert index.find([5]) == {WorkerRank("a", 0): 4}
    assert listener.num_restarts == 1
    assert listener.needs_resync  # rank 1 has not been heard of since
    listener.take(listener.next_sequence, batch(5, AllBlocksCleared(), rank=1))
    assert listener.needs_resync is not is_whole


def test_block_counts_as_long_as_one_medium_has_it() -> None:
    index, listener = make_listener()
    listener.take(0, batch(1, AllBlocksCleared(), store(1), store(1, medium="CPU"), BlockRemoved([1], "GPU")))
    assert index.find([1]) == {NAME: 4}
    listener.take(1, batch(2, BlockRemoved([1], "GPU")))
    assert index.find([1]) == {NAME: 4}
    listener.take(2, batch(3, store(1, medium="FS"), BlockRemoved([1], "CPU"), BlockRemoved([1], "FS")))
    assert index.find([1]) == {}


def test_groups_are_windows() -> None:
    index, listener = make_listener(64, 8)
    listener.take(0, batch(1, AllBlocksCleared(), store(1, 2, group=0), store(1, group=1)))
    assert index.find([1, 2]) == {NAME: 4}
    with pytest.raises(InvalidInputError, match="group 2"):
        listener.take(1, batch(2, store(3, group=0), store(3, group=2)))
    assert listener.next_sequence == 1
    with pytest.raises(InvalidInputError, match="no windows"):
        VllmListener(index, "a", [])
