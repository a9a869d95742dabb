"""Objects that go straight to the collector's oldest generation, and what is left alone."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from trtkv.old_generation import OldGeneration

pytestmark = pytest.mark.pure


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
    things = OldGeneration().fill(make_things)
    assert len(things) == 3000
    assert {generation_of(things[0]), generation_of(things[-1]), generation_of(things)} == {2}
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


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
        OldGeneration().fill(make)
    finally:
        gc.callbacks.remove(note)
    assert made == [0]


def test_young_garbage_is_not_made_old() -> None:
    thing = Thing()
    thing.other = thing
    gone = weakref.ref(thing)
    del thing
    OldGeneration().fill(make_things)
    assert gone() is None


def test_full_collection_still_finds_garbage_among_them() -> None:
    things = OldGeneration().fill(make_things)
    things[7].other = things[7]
    gone = weakref.ref(things[7])
    del things
    assert gone() is not None
    gc.collect()
    assert gone() is None


def test_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        things = OldGeneration().fill(make_things)
        assert not gc.isenabled()
        assert generation_of(things[-1]) == 0
    finally:
        gc.enable()


def test_collector_is_on_again_after_an_error() -> None:
    def fail() -> list[Thing]:
        raise MemoryError("no room")

    with pytest.raises(MemoryError):
        OldGeneration().fill(fail)
    assert gc.isenabled()


def test_what_somebody_froze_stays_frozen() -> None:
    program = """
import gc
from trtkv.old_generation import OldGeneration
old = OldGeneration()
gc.freeze()
count = gc.get_freeze_count()
things = old.fill(lambda: [[] for _ in range(10)])
assert count and gc.get_freeze_count() == count, (count, gc.get_freeze_count())
gc.unfreeze()
more = old.fill(lambda: [[] for _ in range(10)])
assert any(entry is more[0] for entry in gc.get_objects(0)), "does not look again"
"""
    subprocess.run([sys.executable, "-c", program], check=True)
