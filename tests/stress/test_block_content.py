"""No block is ever filed under a key that is not its content's, and no sequence loses what it has computed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.stress.manager_tree import read_trees
from tests.stress.random_program import RandomProgram
from trtkv.common import RECURRENT_STATES
from trtkv.errors import TrtkvError
from trtkv.inspection.invariants import check_invariants
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.transfers.copy_engine import BlockCopy


@pytest.mark.parametrize("seed", range(100, 140))
def test_blocks_hold_what_their_keys_say(seed: int) -> None:
    program = RandomProgram(seed, None, with_memory=True)
    memory = program.memory
    assert memory is not None
    num_computed = memory.num_computed
    for step in range(150):
        action = program.step()
        try:
            memory.check_tree(program.manager, with_states=False)
            for request in program.requests.values():
                memory.check_sequence(program.manager, request, num_computed[request.request_id])
            read_trees(program.manager)
            check_invariants(program.manager, program.requests, rewound=program.rewound)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}, {action}: {error}") from error


class CopyFailedError(TrtkvError):
    """What a copy engine raises when a disk is full or a device is lost."""


@pytest.mark.parametrize("seed", range(200, 260))
def test_failing_copies_leave_no_trace(seed: int) -> None:
    program = RandomProgram(seed, None, with_memory=True)
    memory, manager = program.memory, program.manager
    assert memory is not None
    rng = random.Random(seed)
    copy_block = memory.copy_block
    num_failed = 0

    def fail_now_and_then(copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        nonlocal num_failed
        if copy.window_size != RECURRENT_STATES and rng.random() < 0.3:
            num_failed += 1
            memory.slots[copy.window_size, copy.dst_index] = dict.fromkeys(range(8), 0)  # a part was written
            raise CopyFailedError("no space left")
        return copy_block(copy, pools)

    memory.copy_block = fail_now_and_then  # type: ignore[method-assign]
    for step in range(200):
        failures_before = num_failed
        sequences = {i: (s.num_tokens, s.beam_width) for i, s in manager.sequences.items()}
        action = program.step()
        try:
            if num_failed > failures_before:
                after = {i: (s.num_tokens, s.beam_width) for i, s in manager.sequences.items()}
                assert after == sequences
            memory.check_tree(manager, with_states=False)
            for request in program.requests.values():
                memory.check_sequence(manager, request, memory.num_computed[request.request_id])
            read_trees(manager)
            check_invariants(manager, program.requests, rewound=program.rewound)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}, {action}: {error}") from error
