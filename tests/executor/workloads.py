"""Random workloads for the executor: shared prefixes, tight pools, every mechanism switched on by chance."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tests.executor.reference_models import VOCABULARY, WINDOW, find_greedy_mismatch, get_models, search_beams
from trtkv.common import KvCacheTransferMode
from trtkv.errors import CapacityError
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import KVCacheRemovedData
from trtkv.executor.executor import PyTorchExecutor
from trtkv.executor.executor_config import ExecutorConfig, create_kv_cache_manager
from trtkv.executor.model_spec import read_model_spec
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.records.retention_config import KvCacheRetentionConfig
from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy, ChunkingPolicy
from trtkv.transfers.copy_engine import BlockCopy, CopyEngine
from trtkv.transfers.torch_copy_engine import TorchCopyEngine

MAX_SEQUENCE_LENGTH = 72


class CountingCopyEngine:
    """Counts copies by kind on their way to another engine."""

    def __init__(self, inner: CopyEngine) -> None:
        self.inner = inner
        self.counts: Counter[str] = Counter()

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        self.counts[copy.kind] += 1
        self.counts["partial"] += 0 < copy.num_tokens < pools[0].tokens_per_block
        return self.inner.copy_block(copy, pools)

    def sync_with_buffer_manager(self) -> None:
        self.inner.sync_with_buffer_manager()

    def sync_transfers(self) -> None:
        self.inner.sync_transfers()


@dataclass
class Prompt:
    tokens: list[int]
    max_new_tokens: int
    beam_width: int = 1
    end_token_id: int | None = None
    output: list[list[int]] = field(default_factory=list)


@dataclass
class Outcome:
    """What one workload did: differences from the model without paging, and how often each mechanism ran."""

    mismatches: list[str]
    counts: Counter[str]


def draw_config(rng: random.Random, name: str) -> ExecutorConfig:
    """Sizes and switches; pools hold the longest request and little more."""
    tokens_per_block = rng.choice([2, 3, 4, 8])
    longest = -(-MAX_SEQUENCE_LENGTH // tokens_per_block) + 2
    chunk_blocks = rng.choice([None, 1, 2, 3])
    max_drafts = rng.choice([0, 0, 2, 4])
    windows = read_model_spec(get_models(name)[0]).attention_windows
    max_num_tokens = rng.choice([16, 24, 40]) if chunk_blocks else None
    return ExecutorConfig(
        max_sequence_length=MAX_SEQUENCE_LENGTH,
        num_primary_blocks={window: longest + rng.randint(0, longest // 2) for window in set(windows)},
        num_secondary_blocks={window: rng.choice([0, 6, 20, 40]) for window in set(windows)},
        tokens_per_block=tokens_per_block,
        max_batch_size=rng.randint(2, 6),
        max_num_tokens=max_num_tokens,
        max_beam_width=3,
        max_draft_tokens=max_drafts,
        chunk_unit_size=chunk_blocks and chunk_blocks * tokens_per_block,
        chunking_policy=rng.choice([ChunkingPolicy.FIRST_COME_FIRST_SERVED, ChunkingPolicy.EQUAL_PROGRESS]),
        capacity_policy=rng.choice(
            [CapacitySchedulerPolicy.GUARANTEED_NO_EVICT, CapacitySchedulerPolicy.MAX_UTILIZATION]
        ),
        enable_block_reuse=rng.random() < 0.9,
        enable_partial_reuse=rng.random() < 0.85,
        copy_on_partial_reuse=rng.random() < 0.85,
        kv_layout=rng.choice(["HND", "NHD"]),
    )


def draw_prompt(rng: random.Random, seen: Sequence[list[int]]) -> Prompt:
    """A prompt that often continues, or leaves in the middle of a block, what came before."""
    max_new_tokens = rng.randint(1, 14)
    limit = MAX_SEQUENCE_LENGTH - max_new_tokens
    start: list[int] = []
    if seen and rng.random() < 0.75:
        start = rng.choice(seen)
        start = start[: rng.randint(1, len(start))] if rng.random() < 0.6 else list(start)
    tokens = [*start, *(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 20)))][:limit]
    return Prompt(tokens, max_new_tokens, 1, rng.choice([None, None, rng.randrange(VOCABULARY)]))


def draw_beam_prompt(rng: random.Random, seen: Sequence[list[int]]) -> Prompt:
    """A prompt for beam search; short enough that no block leaves a window, which the cache cannot do for beams."""
    prompt = draw_prompt(rng, seen)
    prompt.max_new_tokens = rng.randint(1, 5)
    prompt.tokens = prompt.tokens[: WINDOW - prompt.max_new_tokens]
    prompt.beam_width = rng.choice([2, 3])
    return prompt


class LookupDrafter:
    """Guesses that what followed the newest token last time follows again; now and then guesses wildly."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def __call__(self, tokens: list[int], limit: int) -> list[int]:
        if self._rng.random() < 0.3:
            return [self._rng.randrange(VOCABULARY) for _ in range(self._rng.randint(1, limit))]
        last = len(tokens) - 1
        for place in range(last - 1, -1, -1):
            if tokens[place] == tokens[last]:
                return tokens[place + 1 : place + 1 + limit]
        return []


def run_workload(name: str, seed: int, engine: CopyEngine | None = None, num_requests: int = 9) -> Outcome:
    """Run random requests that arrive while others are under way, and compare every output."""
    rng = random.Random(f"{name} {seed}")
    model, reference = get_models(name)
    config = draw_config(rng, name)
    counting = CountingCopyEngine(TorchCopyEngine() if engine is None else engine)
    events = KVCacheEventManager(1 << 16)
    manager = create_kv_cache_manager(read_model_spec(model), config, counting, events)
    for pool in manager.pool_tensors.pools:
        assert pool.primary is not None
        pool.primary.view(torch.float64).fill_(float("nan"))  # memory nobody has written must never count
    executor = PyTorchExecutor(model, manager, config, LookupDrafter(rng))
    prompts: dict[int, Prompt] = {}
    seen: list[list[int]] = []
    mismatches: list[str] = []
    num_submitted = 0
    while num_submitted < num_requests or executor.num_active:
        while num_submitted < num_requests and (not executor.num_active or rng.random() < 0.6):
            prompt = draw_beam_prompt(rng, seen) if rng.random() < 0.12 else draw_prompt(rng, seen)
            retention = draw_retention(rng)
            num_submitted += 1
            try:
                request_id = executor.submit(
                    prompt.tokens,
                    prompt.max_new_tokens,
                    beam_width=prompt.beam_width,
                    end_token_id=prompt.end_token_id,
                    retention=retention,
                )
            except CapacityError:
                continue
            prompts[request_id] = prompt
            seen.append(prompt.tokens)
        for result in executor.step():
            prompt = prompts[result.request_id]
            prompt.output = result.token_ids
            seen.append([*prompt.tokens, *result.token_ids[0]])
        manager.flush_iteration_events()
        if executor.stats.num_steps > 2000:
            mismatches.append("requests do not end")
            break
    mismatches += compare(reference, prompts)
    counts = Counter(counting.counts)
    counts.update({name: getattr(executor.stats, name) for name in executor.stats.__slots__})
    counts["evicted"] = sum(
        len(event.data.block_hashes)
        for event in manager.get_latest_events()
        if isinstance(event.data, KVCacheRemovedData)
    )
    counts["beam requests"] = sum(prompt.beam_width > 1 for prompt in prompts.values())
    counts["tokens"] = sum(len(beam) for prompt in prompts.values() for beam in prompt.output)
    counts["requests"] = len(prompts)
    return Outcome([f"{name}, workload {seed}: {text}" for text in mismatches], counts)


def draw_retention(rng: random.Random) -> KvCacheRetentionConfig | None:
    """Now and then other priorities: blocks below 30 are dropped instead of offloaded."""
    if rng.random() < 0.7:
        return None
    return KvCacheRetentionConfig(
        decode_retention_priority=rng.choice([10, 35, 80]), transfer_mode=KvCacheTransferMode.DRAM
    )


def compare(reference: torch.nn.Module, prompts: dict[int, Prompt]) -> list[str]:
    """Differences between outputs and the model without paging."""
    mismatches = []
    for request_id, prompt in prompts.items():
        if not prompt.output:
            mismatches.append(f"request {request_id} has no output")
        elif prompt.beam_width == 1:
            text = find_greedy_mismatch(
                reference, prompt.tokens, prompt.output[0], prompt.max_new_tokens, prompt.end_token_id
            )
            if text:
                mismatches.append(f"request {request_id}: {text}")
        else:
            expected = search_beams(
                reference, prompt.tokens, prompt.beam_width, prompt.max_new_tokens, prompt.end_token_id
            )
            if prompt.output != expected:
                mismatches.append(f"request {request_id}: beams {prompt.output}, expected {expected}")
    return mismatches
