"""Rows 21 and 29 to 32 of docs/users_rows.md: what makes two blocks the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TOKENS_PER_BLOCK, WINDOW, make_event_manager, make_kv_cache_manager, make_request
from tests.users.serving import admit, serve
from trtkv.events.kv_cache_event_consumer import KVCacheEventConsumer
from trtkv.keys.block_key import BlockKey
from trtkv.keys.key_builder import build_block_keys
from trtkv.keys.key_hash import hash_block_key
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest, MultimodalInput


def test_row_21_a_lookup_that_ends_early_is_no_hit() -> None:
    """A lookup of a prefix of which only a part is cached returns what it has, and the caller takes it for all."""
    manager = make_kv_cache_manager(8)
    serve(manager, 1, [*range(8), 0])
    keys = [BlockKey(tuple(range(start, start + 4))) for start in (0, 4, 8)]
    assert manager.find_blocks_in_reuse_tree_by_block_keys(keys, WINDOW) is None
    assert manager.find_blocks_in_reuse_tree_by_block_keys(keys[:2], WINDOW) is not None
    assert manager.find_blocks_in_reuse_tree_by_block_key(BlockKey(tuple(range(12))), WINDOW) is None
    found = manager.find_blocks_in_reuse_tree_by_block_key(BlockKey(tuple(range(8))), WINDOW)
    assert found is not None
    assert found.block_key == keys[1].packed
    summary = manager.analyze_prefix_reuse(make_request(2, range(12)))
    assert (summary.reusable_blocks_all, summary.first_new_block) == (2, keys[2].packed)


def test_row_21_keys_with_and_without_extra_ids_share_nothing() -> None:
    """Keys that differ only in whether extra ids are used match each other's tokens."""
    plain, with_ids = BlockKey((1, 2, 3, 4)), BlockKey((1, 2, 3, 4), (0, 0, 0, 0))
    assert plain.num_matching_tokens(with_ids) == with_ids.num_matching_tokens(plain) == 0
    assert plain.packed != with_ids.packed
    manager = make_kv_cache_manager(8)
    serve(manager, 1, 9)
    assert manager.probe_prefix_match_length(make_request(2, 9, input_token_extra_ids=[0] * 9)) == 0


CONSTRAINTS: list[dict[str, Any]] = [
    {},
    {"cache_salt": "tenant a"},
    {"cache_salt": "tenant b"},
    {"lora_task_id": 1},
    {"lora_task_id": 1, "cache_salt": "tenant a"},
    {"input_token_extra_ids": [7] * 13},
    {"multimodal_input": MultimodalInput([[1] * 8], [2], [6])},
    {"multimodal_input": MultimodalInput([[2] * 8], [2], [6])},
]


def route(manager: KVCacheManager, consumer: KVCacheEventConsumer, request: LlmRequest) -> int:
    """Full blocks a router would count on: it hashes the prompt itself and looks the hashes up."""
    manager.flush_iteration_events()
    consumer.apply(manager.get_latest_events(0))
    hashes = [0]
    for key in build_block_keys(request, TOKENS_PER_BLOCK, request.prompt_len - 1, False):
        hashes.append(hash_block_key(key, hashes[-1]))
    return consumer.get_tree(WINDOW).count_cached_prefix(hashes[1:])


@pytest.mark.parametrize("cached", range(len(CONSTRAINTS)))
def test_row_29_probe_admission_and_router_agree_about_salt_and_adapter(cached: int) -> None:
    """The probe or the router leaves out salt or adapter, or hashes them otherwise, and never finds anything."""
    manager = make_kv_cache_manager(32, event_manager=make_event_manager())
    consumer = KVCacheEventConsumer()
    serve(manager, 1, 13, **CONSTRAINTS[cached])
    for asked, constraints in enumerate(CONSTRAINTS):
        request = make_request(10 + asked, 13, **constraints)
        routed = route(manager, consumer, request)
        probed = manager.probe_prefix_match_length(request)
        admit(manager, request)
        assert probed == request.prepopulated_prompt_len == (12 if asked == cached else 0)
        assert routed == probed // TOKENS_PER_BLOCK
        manager.remove_sequence(request.request_id)


def test_row_30_adapters_are_told_apart_by_id() -> None:
    """Two adapters of one name share blocks."""
    manager = make_kv_cache_manager(16)
    serve(manager, 1, 9, lora_task_id=1)
    assert manager.probe_prefix_match_length(make_request(2, 9, lora_task_id=2)) == 0
    assert manager.probe_prefix_match_length(make_request(3, 9)) == 0
    assert manager.probe_prefix_match_length(make_request(4, 9, lora_task_id=1)) == 8


PROGRAM = """
from trtkv.keys.block_key import BlockKey
from trtkv.keys.key_hash import hash_block_key
from trtkv.keys.packed_key import MmKey
plain = BlockKey((1, 2, 3, 4))
rich = BlockKey((5, 6, 151643, -1), (0, 1, 2, 3), 7, "tenant a", (MmKey(bytes(range(32)), 3, "cat"),))
first = plain.hash()
print(first, rich.hash(), rich.hash(first))
"""

HASHES = [924206229973855, 9496225879161017851, 8658744980469908107]


def test_row_31_hashes_are_the_same_in_every_process(repository_root: Path) -> None:
    """Hashes depend on the process's seed, and two workers, or a router, do not understand each other."""
    for seed in ("0", "12345", "random"):
        path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(repository_root)])
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path}
        result = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment
        )
        assert [int(value) for value in result.stdout.split()] == HASHES


@pytest.mark.parametrize("base", [0, 2**8, 2**16, 2**24, 2**31 - 2**8])
def test_row_32_token_ids_keep_all_their_bits(base: int) -> None:
    """Token ids are cut to their low bits, and different prompts are taken for equal."""
    tokens = [base + index for index in range(9)]
    manager = make_kv_cache_manager(16)
    serve(manager, 1, tokens)
    assert manager.probe_prefix_match_length(make_request(2, tokens)) == 8
    for shift in (2**8, 2**16, 2**24):
        other = [(token + shift) % 2**31 for token in tokens]
        assert manager.probe_prefix_match_length(make_request(3, other)) == 0
        assert BlockKey(tuple(other[:4])).hash() != BlockKey(tuple(tokens[:4])).hash()
