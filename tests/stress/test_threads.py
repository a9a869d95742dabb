"""Several threads on one manager: every rule holds at the end, and nobody waits for ever."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.builders import make_event_manager, make_kv_cache_manager
from tests.event_mirror import EventMirror
from trtkv.errors import OutOfBlocksError, UnknownIdError
from trtkv.inspection.invariants import check_invariants
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest, LlmRequestState

DEADLINE_S = 60


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Let threads interrupt each other every few instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def serve_requests(manager: KVCacheManager, first_id: int, seed: int, num_requests: int) -> None:
    """Requests of one thread: admitted when there is room, decoded, stored, pinned and unpinned, removed."""
    rng = random.Random(seed)
    for request_id in range(first_id, first_id + num_requests):
        length = rng.randint(1, 24)
        request = LlmRequest(request_id, [1] * rng.randrange(length) + [rng.randrange(3) for _ in range(length)], 8)
        info = (request_id, request.prompt_len, 1)
        while not try_to(manager.add_sequence_batch, [info], [request]):
            time.sleep(0)
        request.set_context_current_position(request.prompt_len)
        request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
        manager.store_context_blocks(request)
        for _ in range(rng.randrange(8)):
            if not try_to(manager.add_token, request_id):
                break
            request.add_new_token(rng.randrange(3))
        if rng.random() < 0.2:
            pinned = manager.store_blocks_for_reuse(request_id, request, True)
            manager.unpin_blocks_by_id(pinned)
        manager.remove_sequence(request_id, request if rng.random() < 0.8 else None)


def try_to(call: Callable[..., object], *args: object) -> bool:
    try:
        call(*args)
    except OutOfBlocksError:
        return False
    return True


def look_around(manager: KVCacheManager, done: threading.Event, window: int) -> None:
    """Everything that only reads, until the others are done."""
    probe = LlmRequest(10**6, [1] * 20)
    table = np.zeros((1, 1, 2, 64), dtype=np.int32)
    while not done.is_set():
        manager.probe_prefix_match_length(probe)
        manager.analyze_prefix_reuse(probe)
        manager.get_remaining_blocks_to_completion(probe, window)
        assert manager.verify_queue_integrity(window)
        stats = manager.get_kv_cache_stats()
        assert 0 <= stats.free_num_blocks <= stats.max_num_blocks
        manager.get_iteration_stats()
        manager.get_priority_by_block_id(stats.max_num_blocks - 1, window)
        manager.start_scheduling()
        for request_id in list(manager.sequences):
            try:
                manager.copy_block_offsets(table, 0, request_id)
                manager.get_cache_block_ids(request_id, window)
            except LookupError:  # it left in the meantime
                continue


def run_threads(workers: list[Callable[[], None]], watchers: list[Callable[[], None]], done: threading.Event) -> None:
    """Run all, end the watchers when the workers are through, and raise what any of them raised."""
    errors: list[BaseException] = []

    def guarded(function: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                function()
            except BaseException as error:
                errors.append(error)

        return run

    threads = [threading.Thread(target=guarded(function), daemon=True) for function in workers + watchers]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + DEADLINE_S
    for thread in threads[: len(workers)]:
        thread.join(max(0, deadline - time.monotonic()))
    done.set()
    for thread in threads[len(workers) :]:
        thread.join(max(1, deadline - time.monotonic()))
    stuck = [thread.name for thread in threads if thread.is_alive()]
    assert not stuck, f"threads {stuck} still wait after {DEADLINE_S} s"
    if errors:
        raise errors[0]


@pytest.mark.usefixtures("quick_switches")
@pytest.mark.parametrize(("window", "num_secondary_blocks"), [(64, 0), (64, 6), (8, 0)])
def test_threads_share_a_manager(window: int, num_secondary_blocks: int) -> None:
    events = make_event_manager(100_000)
    manager = make_kv_cache_manager(40, num_secondary_blocks, window=window, event_manager=events)
    done = threading.Event()
    mirror = EventMirror()

    def listen() -> None:
        while not done.is_set():
            manager.flush_iteration_events()
            for event in manager.get_latest_events(timeout_ms=1):
                mirror.apply(event)

    workers = [lambda i=i: serve_requests(manager, 1000 * i, i, 40) for i in range(4)]
    run_threads(workers, [lambda: look_around(manager, done, window), listen], done)
    check_invariants(manager)
    assert manager.num_free_blocks == 40
    assert not manager.sequences
    manager.flush_iteration_events()
    for event in manager.get_latest_events():
        mirror.apply(event)
    mirror.check(manager)


class BusyLock:
    """A lock that another thread got first: it does something before it lets the caller in."""

    def __init__(self, lock: Any, action: Callable[[], None]) -> None:
        self._lock = lock
        self._actions = [action]

    def __enter__(self) -> None:
        if self._actions:
            self._actions.pop()()
        self._lock.__enter__()

    def __exit__(self, *details: object) -> None:
        self._lock.__exit__(*details)


def test_sequence_removed_by_another_thread_takes_no_block_any_more() -> None:
    manager = make_kv_cache_manager(16)
    request = LlmRequest(1, [1] * 8)
    manager.add_sequence_batch([(1, 8, 1)], [request])
    manager._lock = BusyLock(manager._lock, lambda: manager.remove_sequence(1))  # type: ignore[assignment]
    with pytest.raises(UnknownIdError, match="request 1 has no sequence"):
        manager.add_token(1)
    assert manager.num_free_blocks == 16
    check_invariants(manager)


@pytest.mark.usefixtures("quick_switches")
@pytest.mark.parametrize("window", [64, 8])
def test_requests_cancelled_by_another_thread_leave_nothing_behind(window: int) -> None:
    manager = make_kv_cache_manager(40, window=window)
    done = threading.Event()

    def serve(first_id: int) -> None:
        for request_id in range(first_id, first_id + 60):
            request = LlmRequest(request_id, [request_id % 3] * 7, 8)
            while not try_to(manager.add_sequence_batch, [(request_id, 7, 1)], [request]):
                time.sleep(0)
            try:
                for _ in range(30):
                    manager.add_token(request_id)
            except UnknownIdError:
                continue
            except OutOfBlocksError:
                pass
            manager.remove_sequence(request_id)

    def cancel() -> None:
        rng = random.Random(3)
        while not done.is_set():
            ids = list(manager.sequences)
            if ids:
                manager.remove_sequence(rng.choice(ids))

    run_threads([lambda i=i: serve(1000 * i) for i in range(3)], [cancel], done)
    check_invariants(manager)
    assert manager.num_free_blocks == 40


@pytest.mark.usefixtures("quick_switches")
def test_a_reader_that_waits_for_events_does_not_hold_up_the_others() -> None:
    manager = make_kv_cache_manager(16, event_manager=make_event_manager())
    manager.flush_iteration_events()
    manager.get_latest_events()
    found: list[object] = []
    done = threading.Event()

    def wait() -> None:
        found.extend(manager.get_latest_events(timeout_ms=DEADLINE_S * 1000))

    def work() -> None:
        serve_requests(manager, 0, 5, 3)
        manager.flush_iteration_events()

    run_threads([work, wait], [], done)
    assert found
