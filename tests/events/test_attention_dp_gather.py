"""Events of several ranks arrive on rank 0: two processes over gloo."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.stress.manager_tree import read_trees
from tests.stress.random_program import RandomProgram
from trtkv.errors import InvalidInputError
from trtkv.events.attention_dp_gather import AttentionDpEventGatherer
from trtkv.events.kv_cache_event_consumer import RankedEventConsumer
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import KVCacheEvent

MAX_EVENTS = 10_000
WAIT_MS = 20_000


def run_rank(body: Callable[[int], Any], rank: int, world_size: int, rendezvous: str, results: Any) -> None:
    import torch.distributed as distributed

    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
    try:
        results.put((rank, body(rank)))
    except BaseException:
        results.put((rank, traceback.format_exc()))
    finally:
        distributed.destroy_process_group()


def run_ranks(body: Callable[[int], Any], tmp_path: Path, world_size: int = 2) -> list[Any]:
    """What each rank returns, in rank order; a traceback where one fails."""
    pytest.importorskip("torch.distributed", reason="torch is not installed; events are gathered through it")
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [
        context.Process(target=run_rank, args=(body, rank, world_size, str(tmp_path / "rendezvous"), results))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    found = dict(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0] * world_size
    return [found[rank] for rank in range(world_size)]


def run_program(rank: int, events: KVCacheEventManager) -> dict[int, dict[int, Any]]:
    """A random program with a flush after each step; returns the tree at the end."""
    program = RandomProgram(200 + rank, events)
    for _ in range(120):
        program.step()
        program.manager.flush_iteration_events()
    return read_trees(program.manager)


def read_until_quiet(events: KVCacheEventManager, expected: dict[int, int]) -> RankedEventConsumer:
    """Read on rank 0 until the given number of events of each rank has arrived."""
    consumer = RankedEventConsumer()
    for _ in range(1000):
        ranks = consumer.ranks
        if all(rank in ranks and ranks[rank].next_event_id >= count for rank, count in expected.items()):
            break
        consumer.apply(events.get_events(timeout_ms=WAIT_MS))
    return consumer


def gather_with_worker(rank: int) -> Any:
    import torch.distributed as distributed

    gatherer = AttentionDpEventGatherer(MAX_EVENTS, period_ms=2)
    events = KVCacheEventManager(MAX_EVENTS, attention_dp_rank=rank, gather=gatherer)
    gatherer.start(events.deliver)
    trees = run_program(rank, events)
    mine: tuple[int, Any] = (events.next_event_id, trees)
    shared: list[Any] = [None] * 2
    distributed.all_gather_object(shared, mine)  # another group: it does not get mixed up with the worker's calls
    if rank != 0:
        gatherer.close()
        return events.get_events(0)
    consumer = read_until_quiet(events, {index: count for index, (count, _) in enumerate(shared)})
    gatherer.close()
    found = {
        index: {window: dict(tree.blocks) for window, tree in ranked.windows.items()}
        for index, ranked in consumer.ranks.items()
    }
    expected = {index: {w: t for w, t in trees.items() if t} for index, (_, trees) in enumerate(shared)}
    found = {index: {w: t for w, t in trees.items() if t} for index, trees in found.items()}
    return consumer.needs_resync, found == expected, any(expected[1].values()), gatherer.num_dropped_events


def test_rank_0_rebuilds_the_trees_of_both_ranks(tmp_path: Path) -> None:
    first, second = run_ranks(gather_with_worker, tmp_path)
    assert first == (False, True, True, 0)
    assert second == []  # readers of other ranks get nothing


def exchange_in_step(rank: int) -> Any:
    gatherer = AttentionDpEventGatherer(3, period_ms=0)
    results = []
    for step in range(3):
        events = [KVCacheEvent(10 * step + i, None, 64, rank) for i in range(rank * 4)]  # type: ignore[arg-type]
        assert gatherer(events) == []
        gathered, is_over = gatherer.exchange(is_closing=rank == 0 or step == 2)
        results.append(([[event.event_id for event in part] for part in gathered], is_over))
    return results, gatherer.num_dropped_events


def test_ranks_in_step_exchange_without_a_worker(tmp_path: Path) -> None:
    first, second = run_ranks(exchange_in_step, tmp_path)
    # Rank 1 has room for 3 of its 4 events; the exchange is over when both close.
    assert first == ([([[], [1, 2, 3]], False), ([[], [11, 12, 13]], False), ([[], [21, 22, 23]], True)], 0)
    assert second == ([([], False), ([], False), ([], True)], 3)


def close_early(rank: int) -> Any:
    gatherer = AttentionDpEventGatherer(MAX_EVENTS, period_ms=1)
    events = KVCacheEventManager(MAX_EVENTS, attention_dp_rank=rank, gather=gatherer)
    gatherer.start(events.deliver)
    if rank == 1:
        for window in range(50):
            events.enqueue_created_event((1, 1), window)
            events.flush()
    gatherer.close()
    return [event.window_size for event in events.get_events(0)]


def test_closing_waits_for_the_events_of_the_others(tmp_path: Path) -> None:
    first, second = run_ranks(close_early, tmp_path)
    assert first == list(range(50))
    assert second == []


def lose_a_rank(rank: int) -> Any:
    import datetime as dt

    import torch.distributed as distributed

    group = distributed.new_group(backend="gloo", timeout=dt.timedelta(seconds=1))
    gatherer = AttentionDpEventGatherer(MAX_EVENTS, period_ms=1, group=group)
    events = KVCacheEventManager(MAX_EVENTS, attention_dp_rank=rank, gather=gatherer)
    if rank == 1:
        distributed.barrier()
        return None  # never exchanges anything
    gatherer.start(events.deliver)
    events.enqueue_created_event((1, 1), 64)
    events.flush()
    failed = ""
    try:
        gatherer.close(timeout_s=60)
    except Exception as error:
        failed = type(error).__name__
    events.enqueue_created_event((1, 1), 128)
    events.flush()
    distributed.barrier()
    return failed, gatherer.failure is not None, [event.window_size for event in events.get_events(0)]


def test_a_rank_that_is_gone_ends_the_exchange_but_not_the_server(tmp_path: Path) -> None:
    first, _ = run_ranks(lose_a_rank, tmp_path)
    assert first == ("GatherFailedError", True, [128])


def refuse(rank: int) -> Any:
    gatherer = AttentionDpEventGatherer(1, clock=lambda: 0)
    gatherer.start(lambda events: None)
    with pytest.raises(InvalidInputError, match="started already"):
        gatherer.start(lambda events: None)
    gatherer.close()
    with pytest.raises(InvalidInputError, match="period_ms is -1; give a number of at least 0"):
        AttentionDpEventGatherer(1, period_ms=-1)
    return gatherer.rank, gatherer.world_size


def test_wrong_use_is_refused_and_one_rank_is_a_group_too(tmp_path: Path) -> None:
    assert run_ranks(refuse, tmp_path, world_size=1) == [(0, 1)]


def test_without_a_process_group_the_reason_is_named() -> None:
    pytest.importorskip("torch.distributed", reason="torch is not installed; events are gathered through it")
    with pytest.raises(InvalidInputError, match="init_process_group"):
        AttentionDpEventGatherer(10)
