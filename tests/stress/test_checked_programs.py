"""Random programs in default mode: all invariants, right content, true events, and no half-done failure.

The seed stands in the name of the test. TRTKV_STRESS_SEEDS is the number of seeds for each kind of manager, from
TRTKV_STRESS_FIRST_SEED on.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from typing import Any

import pytest

from tests.stress.checked_program import CheckedProgram, Scenario
from tests.stress.scenarios import SCENARIOS
from trtkv.errors import OutOfBlocksError
from trtkv.window_block_manager.planning import ClaimPlanner

NUM_SEEDS = int(os.environ.get("TRTKV_STRESS_SEEDS", "3"))
FIRST_SEED = int(os.environ.get("TRTKV_STRESS_FIRST_SEED", "0"))
NUM_ACTIONS = 100


def run(scenario: Scenario, seed: int) -> CheckedProgram:
    program = CheckedProgram(scenario, seed)
    try:
        program.run(NUM_ACTIONS)
    except BaseException:
        print(f"scenario {scenario.name}, seed {seed}; the last calls were")
        print("\n".join(program.log[-12:]))
        raise
    return program


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + NUM_SEEDS))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_no_rule_is_broken_along_a_random_program(scenario: Scenario, seed: int) -> None:
    run(scenario, seed)


def test_programs_reach_what_they_are_meant_to_test() -> None:
    """Hits, copies, transfers and every kind of refusal occur, or the test above would prove little."""
    reached: Counter[str] = Counter()
    for scenario in SCENARIOS:
        program = run(scenario, 100)
        stats = program.manager.get_kv_cache_stats()
        reached["hits"] += stats.reused_blocks
        reached["calls refused for their input"] += sum(n for k, n in program.failures.items() if "Invalid" in k)
        reached["batches without room"] += program.failures["add_sequence_batch: OutOfBlocksError"]
        reached["tokens without room"] += program.failures["add_token: OutOfBlocksError"]
        reached.update(copy.kind for copy in program.memory.copies)
        for manager in program.manager.block_manager.window_block_managers.values():
            reached["partial hits"] += manager.counters.partial_reused
            reached["recurrent hits"] += manager.settings.is_recurrent_state and manager.counters.full_reused
            reached["hits in sliding windows"] += manager.settings.is_swa and manager.counters.reused
    expected = {
        "hits": 150,
        "partial hits": 50,
        "recurrent hits": 3,
        "hits in sliding windows": 60,
        "offload": 100,
        "onboard": 5,
        "copy": 50,
        "batches without room": 50,
        "tokens without room": 50,
        "calls refused for their input": 100,
    }
    missing = {name: (reached[name], least) for name, least in expected.items() if reached[name] < least}
    assert not missing, f"too few of these were reached (found, least): {missing}; all: {dict(reached)}"


class UntilRefusal(CheckedProgram):
    """Runs until a batch finds no room; ``refused_at`` counts the calls up to there."""

    class Refused(Exception):  # noqa: N818 - ends the program, is no error
        pass

    refused_at: int | None = None

    def call(self, name: str, *args: Any) -> Any:
        self.log.append(name)
        try:
            return getattr(self.manager, name)(*args)
        except OutOfBlocksError:
            if name == "add_sequence_batch":
                self.refused_at = len(self.log)
                raise self.Refused from None
            raise

    def check(self) -> None:
        pass

    def provoke(self) -> None:
        pass

    def run_until_refusal(self) -> int | None:
        with contextlib.suppress(self.Refused):
            self.run(NUM_ACTIONS)
        return self.refused_at


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_batch_is_refused_only_if_it_would_run_out_of_blocks(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check beforehand counts exactly: without it the same batch, and no earlier one, fails on the way."""
    refused_at = [UntilRefusal(scenario, seed).run_until_refusal() for seed in range(200, 204)]
    monkeypatch.setattr(ClaimPlanner, "check_room", lambda *_: None)
    assert [UntilRefusal(scenario, seed).run_until_refusal() for seed in range(200, 204)] == refused_at
    assert any(refused_at)
