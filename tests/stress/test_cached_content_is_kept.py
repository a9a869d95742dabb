"""Along random programs nothing cached is evicted while a block that holds nothing is free."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.stress.checked_program import CheckedProgram, Scenario
from tests.stress.scenarios import SCENARIOS
from trtkv.blocks.block_listener import RemovalReason
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import RequestId, WindowSize


class EvictionWatch:
    """A BlockListener that looks at what else was free when something cached is evicted."""

    program: CheckedProgram
    num_evicted = 0

    def on_match(
        self, request_id: RequestId, window_size: WindowSize, blocks: Sequence[KVCacheBlock], num_tokens: int
    ) -> None:
        pass

    def on_allocation(self, request_id: RequestId, window_size: WindowSize) -> None:
        pass

    def on_moved(self, block: KVCacheBlock, window_size: WindowSize, level: int) -> None:
        pass

    def on_removed(self, block: KVCacheBlock, window_size: WindowSize, reason: RemovalReason) -> None:
        if reason is not RemovalReason.EVICTED:
            return
        self.num_evicted += 1
        window = self.program.manager.block_manager.get_window_block_manager(window_size)
        level = window.eviction_policy.get_level_of(block)
        for _, ids in level.free_ids():
            for block_id in ids:
                other = window.get_block_by_id(block_id)
                assert other.lookup_node is not None, f"{block.block_id} is evicted, {block_id} is free"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_nothing_cached_is_evicted_while_a_block_without_content_is_free(scenario: Scenario) -> None:
    num_evicted = 0
    for seed in range(400, 404):
        watch = EvictionWatch()
        watch.program = CheckedProgram(scenario, seed, watch)
        watch.program.run(100)
        num_evicted += watch.num_evicted
    assert num_evicted > 3 or not watch.program.manager.enable_block_reuse
