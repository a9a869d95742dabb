"""Every transfer of a program is made to fail once: rules, content and room stay as if it had not been asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.stress.checked_program import CheckedProgram, Scenario
from tests.stress.scenarios import SCENARIOS
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.transfers.copy_engine import BlockCopy

NUM_ACTIONS = 60
MOST_FAILURES = 25


class TransferFailedError(Exception):
    """What a copy engine raises when a disk is full or a device is lost."""


class FailingProgram(CheckedProgram):
    """A program whose n-th transfer fails when a part of the block is written."""

    def __init__(self, scenario: Scenario, seed: int, fail_at: int) -> None:
        super().__init__(scenario, seed)
        self.fail_at = fail_at
        self.num_transfers = 0
        self.memory.copy_block = self._copy_block  # type: ignore[method-assign]

    def _copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        self.num_transfers += 1
        if self.num_transfers == self.fail_at:
            self.memory.slot(copy.window_size, copy.dst_index)[0] = 0
            raise TransferFailedError(copy.kind)
        return type(self.memory).copy_block(self.memory, copy, pools)

    def run(self, num_actions: int) -> None:
        """Perform actions up to the failure, and remove everything."""
        try:
            super().run(num_actions)
        except TransferFailedError as error:
            self.log.append(f"  -> transfer {self.fail_at} failed: {error}")
            self.check_all()
            self.finish()
            self.check_all()

    def check_all(self) -> None:
        """Rules, and the content of whatever is cached."""
        self.check()
        self.memory.check_tree(self.manager, with_states=False)


@pytest.mark.parametrize("seed", range(300, 302))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_each_transfer_may_fail(scenario: Scenario, seed: int) -> None:
    program = FailingProgram(scenario, seed, fail_at=0)
    program.run(NUM_ACTIONS)
    num_transfers = program.num_transfers
    for fail_at in range(1, num_transfers + 1, 1 + num_transfers // MOST_FAILURES):
        program = FailingProgram(scenario, seed, fail_at)
        try:
            program.run(NUM_ACTIONS)
        except BaseException:
            print(f"scenario {scenario.name}, seed {seed}, transfer {fail_at}; the last calls were")
            print("\n".join(program.log[-6:]))
            raise


def test_scenarios_have_transfers_of_every_kind() -> None:
    kinds = set()
    for scenario in SCENARIOS:
        program = CheckedProgram(scenario, 300)
        program.run(NUM_ACTIONS)
        kinds |= {copy.kind for copy in program.memory.copies}
    assert kinds == {"offload", "onboard", "copy"}
