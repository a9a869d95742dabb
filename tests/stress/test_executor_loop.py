"""Random loads through schedulers and resource manager: every request ends, no step exceeds its tokens."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.executor_loop import ExecutorLoop
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest
from trtkv.resource_manager import KVCacheResourceManager
from trtkv.scheduler.capacity_scheduler import CapacityScheduler
from trtkv.scheduler.micro_batch_scheduler import MicroBatchScheduler
from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy, ChunkingPolicy, ContextChunkingConfig

TOKENS_PER_BLOCK = 4
MAX_NUM_TOKENS = 24
LONGEST = 64


def make_loop(
    policy: CapacitySchedulerPolicy, chunking: ChunkingPolicy | None, rng: random.Random, **options: Any
) -> ExecutorLoop:
    windows = options.pop("windows", [LONGEST + 16])
    num_blocks = options.pop("num_blocks", 24)
    num_drafts = options.pop("num_drafts", 0)
    manager = KVCacheManager.from_arguments(
        [1] * len(windows),
        1,
        TOKENS_PER_BLOCK,
        {window: (num_blocks, options.pop("num_secondary", 0)) for window in windows},
        16,
        1,
        windows,
        max_sequence_length=LONGEST + 16,
        chunk_size=MAX_NUM_TOKENS,
        **options,
    )
    resources = KVCacheResourceManager(
        manager,
        max_num_tokens=None if chunking is None else MAX_NUM_TOKENS,
        enable_chunked_prefill=chunking is not None,
        draft_token_reserve=num_drafts,
    )
    config = None if chunking is None else ContextChunkingConfig(chunking, TOKENS_PER_BLOCK)
    return ExecutorLoop(
        CapacityScheduler(8, policy),
        MicroBatchScheduler(config),
        resources,
        max_batch_size=6,
        num_drafts=lambda request: rng.randint(0, num_drafts),
        num_accepted=lambda request: rng.randint(0, num_drafts),
    )


def make_requests(rng: random.Random, count: int, longest: int) -> list[LlmRequest]:
    """Prompts that share prefixes of a few roots, block-aligned or not."""
    roots = [[rng.randrange(100) for _ in range(longest)] for _ in range(3)]
    requests = []
    for request_id in range(count):
        prompt = roots[rng.randrange(3)][: rng.randint(1, longest - 8)]
        prompt += [rng.randrange(100) for _ in range(rng.randint(0, 6))] if rng.random() < 0.7 else []
        prompt = prompt[: longest - 1]
        requests.append(LlmRequest(request_id, prompt, rng.randint(1, longest - len(prompt))))
    return requests


def run(loop: ExecutorLoop, requests: list[LlmRequest], rng: random.Random) -> None:
    """Let requests arrive in bursts and run them to the end, checking every step."""
    manager = loop.kv_cache.impl
    expected = {request.request_id: request.prompt_len + request.max_new_tokens for request in requests}
    waiting = list(requests)
    for request in requests:
        loop.kv_cache.check_can_ever_fit(request, loop.capacity_scheduler)
        loop.micro_batch_scheduler.check_can_ever_fit(request, loop.kv_cache.max_num_tokens)
    for _ in range(4000):
        for _ in range(min(len(waiting), rng.choice([0, 0, 1, 3]))):
            loop.add([waiting.pop(0)])
        if loop.active:
            batch = loop.step()
            assert batch.batch_size or waiting, "nobody runs and nobody will come"
            if loop.kv_cache.max_num_tokens is not None:
                assert loop.last_num_tokens <= loop.kv_cache.max_num_tokens
            assert all(manager.verify_queue_integrity(window) for window in manager.window_sizes_metadata)
        elif not waiting:
            break
    assert not loop.active
    assert not waiting
    assert {request.request_id: request.get_num_tokens() for request in requests} == expected
    assert not manager.sequences
    free = manager.num_free_blocks_per_window_size
    assert free == {window: entry.allotted_primary_blocks for window, entry in manager.window_sizes_metadata.items()}


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
@pytest.mark.parametrize("chunking", [None, *ChunkingPolicy])
@pytest.mark.parametrize("seed", range(4))
def test_every_request_ends(policy: CapacitySchedulerPolicy, chunking: ChunkingPolicy | None, seed: int) -> None:
    rng = random.Random(f"{policy.value} {chunking} {seed}")
    loop = make_loop(policy, chunking, rng)
    run(loop, make_requests(rng, 40, LONGEST), rng)


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
@pytest.mark.parametrize("seed", range(4))
def test_every_request_ends_with_drafts(policy: CapacitySchedulerPolicy, seed: int) -> None:
    rng = random.Random(f"drafts {policy.value} {seed}")
    loop = make_loop(policy, ChunkingPolicy.FIRST_COME_FIRST_SERVED, rng, num_drafts=3, num_blocks=28)
    run(loop, make_requests(rng, 40, LONGEST), rng)


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
@pytest.mark.parametrize("windows", [[16], [16, LONGEST + 16]])
@pytest.mark.parametrize("seed", range(3))
def test_every_request_ends_with_sliding_windows(
    policy: CapacitySchedulerPolicy, windows: list[int], seed: int
) -> None:
    rng = random.Random(f"windows {policy.value} {windows} {seed}")
    loop = make_loop(policy, ChunkingPolicy.FIRST_COME_FIRST_SERVED, rng, windows=windows)
    run(loop, make_requests(rng, 30, LONGEST), rng)


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
@pytest.mark.parametrize("seed", range(3))
def test_every_request_ends_with_a_host_level_or_without_reuse(policy: CapacitySchedulerPolicy, seed: int) -> None:
    for options in ({"num_secondary": 8}, {"enable_block_reuse": False}, {"copy_on_partial_reuse": False}):
        rng = random.Random(f"{options} {policy.value} {seed}")
        loop = make_loop(policy, ChunkingPolicy.EQUAL_PROGRESS, rng, **dict(options))
        run(loop, make_requests(rng, 30, LONGEST), rng)


def test_max_utilization_pauses_and_the_others_never_do() -> None:
    pauses = {}
    for policy in CapacitySchedulerPolicy:
        rng = random.Random(3)
        loop = make_loop(policy, ChunkingPolicy.FIRST_COME_FIRST_SERVED, rng)
        run(loop, make_requests(rng, 60, LONGEST), rng)
        pauses[policy] = loop.num_pauses
    assert pauses[CapacitySchedulerPolicy.MAX_UTILIZATION] > 0
    assert pauses[CapacitySchedulerPolicy.GUARANTEED_NO_EVICT] == 0
    assert pauses[CapacitySchedulerPolicy.STATIC_BATCH] == 0
