"""No block is ever filed under a key that is not its content's, and no sequence loses what it has computed."""

from __future__ import annotations

import pytest

from tests.stress.manager_tree import read_trees
from tests.stress.random_program import RandomProgram
from trtkv.invariants import check_invariants


@pytest.mark.parametrize("seed", range(100, 140))
def test_blocks_hold_what_their_keys_say(seed: int) -> None:
    program = RandomProgram(seed, None, with_memory=True)
    memory = program.memory
    assert memory is not None
    num_computed = memory.num_computed
    for step in range(150):
        action = program.step()
        try:
            memory.check_tree(program.manager)
            for request in program.requests.values():
                memory.check_sequence(program.manager, request, num_computed[request.request_id])
            read_trees(program.manager)
            check_invariants(program.manager, program.requests, rewound=program.rewound)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}, {action}: {error}") from error
