"""Random operations while transfers, files and listeners fail: after each, all rules hold and cached blocks are right.

    python -m tests.stress.failing_operations [--operations 1000000] [--seed 0]

runs programs of all scenarios in turn until so many calls of the manager were made, and counts the failures put in.
"""

from __future__ import annotations

import argparse
import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tests.stress.checked_program import CheckedProgram, Scenario
from tests.stress.scenarios import SCENARIOS
from trtkv.blocks.block_listener import RemovalReason
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import RECURRENT_STATES, RequestId, WindowSize
from trtkv.errors import LogicError, TrtkvError
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.transfers.copy_engine import OFFLOAD, ONBOARD, BlockCopy, LostBlockError, OffloadFailedError

FAILURE_RATE = 0.05
NUM_ACTIONS = 300


class InjectedError(Exception):
    """A device that is lost, or a listener that is wrong."""


class FaultyListener:
    """Fails now and then; otherwise looks at what is free when something cached is evicted."""

    program: FailingProgram

    def on_match(
        self, request_id: RequestId, window_size: WindowSize, blocks: Sequence[KVCacheBlock], num_tokens: int
    ) -> None:
        self.program.maybe_fail("on_match")

    def on_allocation(self, request_id: RequestId, window_size: WindowSize) -> None:
        self.program.maybe_fail("on_allocation")

    def on_moved(self, block: KVCacheBlock, window_size: WindowSize, level: int) -> None:
        self.program.maybe_fail("on_moved")

    def on_removed(self, block: KVCacheBlock, window_size: WindowSize, reason: RemovalReason) -> None:
        self.program.maybe_fail("on_removed")
        if reason is RemovalReason.EVICTED:
            window = self.program.manager.block_manager.get_window_block_manager(window_size)
            for _, ids in window.eviction_policy.get_level_of(block).free_ids():
                for block_id in ids:
                    other = window.get_block_by_id(block_id)
                    assert other.lookup_node is not None, f"{block.block_id} is evicted, {block_id} is free"


class FailingProgram(CheckedProgram):
    """A program in which things fail; whoever fails is removed, and the others go on."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        listener = FaultyListener()
        listener.program = self
        self.faults = random.Random(f"faults {scenario.name}/{seed}")
        self.counts: Counter[str] = Counter()
        self.is_faulty = False
        super().__init__(scenario, seed, listener)
        self.memory.copy_block = self._copy_block  # type: ignore[method-assign]
        self.is_faulty = True

    def maybe_fail(self, what: str) -> None:
        """Raise now and then."""
        if self.is_faulty and self.faults.random() < FAILURE_RATE:
            self.counts[f"failures of {what}"] += 1
            raise InjectedError(what)

    def _copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        if self.is_faulty and self.faults.random() < FAILURE_RATE:
            self.counts[f"failures of {copy.kind}"] += 1
            choice = self.faults.random()
            if copy.kind == OFFLOAD and choice < 0.5:
                raise OffloadFailedError("the disk is full")
            if copy.kind == ONBOARD and choice < 0.5 and copy.window_size != RECURRENT_STATES:
                self.memory.slot(copy.window_size, copy.src_index).clear()
                raise LostBlockError("the file is gone")
            self.memory.slots[copy.window_size, copy.dst_index] = {0: 0}  # a part was written
            raise InjectedError(copy.kind)
        return type(self.memory).copy_block(self.memory, copy, pools)

    def call(self, name: str, *args: Any) -> Any:
        """Call the manager; snapshots around each call are the business of other tests."""
        self.counts["operations"] += 1
        self.log.append(name)
        try:
            return getattr(self.manager, name)(*args)
        except LogicError:
            raise
        except TrtkvError:
            self.counts["refusals"] += 1
            raise

    def run(self, num_actions: int) -> None:
        """Perform actions, and check after each."""
        functions = [function for function, _ in self.actions]
        weights = [weight for _, weight in self.actions]
        for _ in range(num_actions):
            action = self.random.choices(functions, weights)[0]
            try:
                action()
            except (InjectedError, OffloadFailedError):
                self.counts["failed actions"] += 1
                self._let_go()
            self.check()
            self.memory.check_tree(self.manager, with_states=False)
        self.is_faulty = False
        self._let_go()
        self.finish()

    def check_found(self, found: int, expected: int, count: int) -> None:
        """Blocks may be lost between the probe and the admission."""
        assert found <= expected

    def _let_go(self) -> None:
        """Remove what was going on, as an engine does with requests whose step failed."""
        for request_id in list(self.manager.sequences):
            self.manager.remove_sequence(request_id, None)
        self.live.clear()


def run_programs(seed: int) -> Iterator[FailingProgram]:
    """One program of each scenario, and so on with the next seed."""
    while True:
        for scenario in SCENARIOS:
            program = FailingProgram(scenario, seed)
            try:
                program.run(NUM_ACTIONS)
            except BaseException:
                print(f"scenario {scenario.name}, seed {seed}; the last calls were {program.log[-12:]}")
                raise
            yield program
        seed += 1


def main() -> int:
    """Run until so many operations are done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    counts: Counter[str] = Counter()
    for program in run_programs(arguments.seed):
        counts += program.counts
        counts["programs"] += 1
        if counts["operations"] >= arguments.operations:
            break
    print(", ".join(f"{count:,} {name}" for name, count in sorted(counts.items())))
    print("0 violations")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
