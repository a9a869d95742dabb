"""Objects that go straight to the collector's oldest generation, and what is left alone."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from tests.builders import add, make_kv_cache_manager, make_request
from trtkv.blocks.old_generation import OldGeneration
from trtkv.inspection.invariants import check_invariants

pytestmark = pytest.mark.pure


MANY = 20_000
"""More than is made in the usual way."""


class Thing:
    """Something the collector tracks."""

    def __init__(self) -> None:
        self.other: Thing | None = None


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The collector as it is in a fresh interpreter, and as it was afterwards."""
    was_enabled = gc.isenabled()
    gc.enable()
    yield
    if not was_enabled:
        gc.disable()


def generation_of(thing: object) -> int | None:
    return next((n for n in range(3) if any(thing is found for found in gc.get_objects(n))), None)


def make_things() -> list[Thing]:
    return [Thing() for _ in range(3000)]


def test_new_objects_are_in_the_oldest_generation() -> None:
    things = OldGeneration().fill(MANY, make_things)
    assert len(things) == 3000
    assert {generation_of(things[0]), generation_of(things[-1]), generation_of(things)} == {2}
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_few_objects_are_made_in_the_usual_way() -> None:
    old = OldGeneration()
    assert generation_of(old.fill(3000, make_things)[-1]) != 2
    assert generation_of(old.fill(MANY, make_things)[-1]) == 2


def test_full_collections_come_with_growth() -> None:
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    old = OldGeneration()
    gc.callbacks.append(note)
    try:
        for _ in range(9):
            old.fill(MANY, list)
    finally:
        gc.callbacks.remove(note)
    assert generations == [2, 1, 1, 1, 1, 1, 1, 1, 2]


def test_no_collection_runs_while_they_are_made() -> None:
    phases: list[int] = []
    made: list[int] = []

    def make() -> list[Thing]:
        phases.clear()
        things = make_things()
        made.append(len(phases))
        return things

    def note(phase: str, info: dict[str, int]) -> None:
        phases.append(info["generation"])

    gc.callbacks.append(note)
    try:
        OldGeneration().fill(MANY, make)
    finally:
        gc.callbacks.remove(note)
    assert made == [0]


def test_young_garbage_is_not_made_old() -> None:
    thing = Thing()
    thing.other = thing
    gone = weakref.ref(thing)
    del thing
    OldGeneration().fill(MANY, make_things)
    assert gone() is None


def test_full_collection_still_finds_garbage_among_them() -> None:
    things = OldGeneration().fill(MANY, make_things)
    things[7].other = things[7]
    gone = weakref.ref(things[7])
    del things
    assert gone() is not None
    gc.collect()
    assert gone() is None


def test_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        things = OldGeneration().fill(MANY, make_things)
        assert not gc.isenabled()
        assert generation_of(things[-1]) == 0
    finally:
        gc.enable()


def test_collector_is_on_again_after_an_error() -> None:
    def fail() -> list[Thing]:
        raise MemoryError("no room")

    with pytest.raises(MemoryError):
        OldGeneration().fill(MANY, fail)
    assert gc.isenabled()


def test_what_somebody_froze_stays_frozen() -> None:
    program = """
import gc
from trtkv.blocks.old_generation import OldGeneration
old = OldGeneration()
gc.freeze()
count = gc.get_freeze_count()
things = old.fill(20_000, lambda: [[] for _ in range(10)])
assert count and gc.get_freeze_count() == count, (count, gc.get_freeze_count())
gc.unfreeze()
more = old.fill(20_000, lambda: [[] for _ in range(10)])
assert any(entry is more[0] for entry in gc.get_objects(0)), "does not look again"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_garbage_among_old_objects_does_not_pile_up() -> None:
    program = """
import gc
from trtkv.blocks.old_generation import OldGeneration

class Thing:
    num_alive = 0
    def __init__(self):
        self.itself = self
        Thing.num_alive += 1
    def __del__(self):
        Thing.num_alive -= 1

gc.collect()
most = 0
for _ in range(80):
    OldGeneration().fill(20_000, lambda: [Thing() for _ in range(20_000)])
    most = max(most, Thing.num_alive)
assert most <= 40_000, most
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_pools_that_are_given_up_do_not_pile_up() -> None:
    program = """
import weakref
from tests.builders import make_kv_cache_manager

managers = []
most = 0
for _ in range(40):
    manager = make_kv_cache_manager(20_000)
    manager.block_manager.get_block_by_id(19_999, 64)
    managers.append(weakref.ref(manager))
    most = max(most, sum(manager() is not None for manager in managers))
assert most < 20, most
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_finalizer_may_ask_for_blocks_while_others_are_about_to_be_made() -> None:
    manager = make_kv_cache_manager(3000)

    class Curious:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            manager.get_priority_by_block_id(1500, 64)

    gc.collect()
    Curious()
    assert manager.block_manager.get_block_by_id(0, 64).block_id == 0
    blocks = manager.block_manager.window_block_managers[64].block_objects()
    assert [block.block_id for block in blocks] == list(range(len(blocks)))
    assert len(blocks) > 1500


def test_preallocation_leaves_a_collector_that_is_off_alone() -> None:
    runs: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        runs.append(phase)

    gc.callbacks.append(note)
    gc.disable()
    try:
        make_kv_cache_manager(preallocate_blocks=True)
    finally:
        gc.enable()
        gc.callbacks.remove(note)
    assert runs == []


def test_admission_that_runs_out_of_memory_loses_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make_kv_cache_manager(3000)

    def fail(_: OldGeneration, count: int, make: object) -> list[object]:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(OldGeneration, "fill", fail)
        with pytest.raises(MemoryError):
            add(manager, make_request(1, 60))
    check_invariants(manager)
    add(manager, make_request(1, 60))
    check_invariants(manager)
