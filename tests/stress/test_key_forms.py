"""Random programs with digests for keys: every rule holds, and everything happens as with the tokens themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.stress.checked_program import CheckedProgram, Scenario
from tests.stress.scenarios import SCENARIOS
from trtkv.common import KeyForm

NUM_ACTIONS = 100


def run(scenario: Scenario, key_form: KeyForm, seed: int) -> CheckedProgram:
    options = {**scenario.options, "enable_partial_reuse": False, "key_form": key_form}
    program = CheckedProgram(replace(scenario, options=options, events=False), seed)
    program.run(NUM_ACTIONS)
    return program


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_digests_and_tokens_do_the_same(scenario: Scenario) -> None:
    for seed in range(2):
        programs = {key_form: run(scenario, key_form, seed) for key_form in KeyForm}
        plain = programs[KeyForm.TOKENS]
        for program in programs.values():
            assert program.log == plain.log
            assert program.failures == plain.failures
            assert program.memory.copies == plain.memory.copies
            assert program.manager.get_kv_cache_stats() == plain.manager.get_kv_cache_stats()


def test_programs_with_digests_find_blocks() -> None:
    """Or the test above would prove little."""
    programs = [run(scenario, KeyForm.DIGESTS, 0) for scenario in SCENARIOS]
    assert sum(program.manager.get_kv_cache_stats().reused_blocks for program in programs) > 100
