"""nano-vllm's engine: every greedy token is that of the model without a cache; sampling follows the temperature."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch

from tests.executor.reference_models import VOCABULARY, find_greedy_mismatch, get_models
from trtkv import NanoEngine
from trtkv.errors import InvalidInputError
from trtkv.nano import SamplingParams, SchedulerConfig, check_invariants
from trtkv.nano_engine.sampler import Sampler

NUM_WORKLOADS = 50
NAMES = ["llama", "qwen", "gemma", "mixed heads"]
PROMPT = [5, 17, 3, 44, 9, 28, 60, 2, 31, 7, 12, 50, 23]


def make_engine(name: str, seed: int | None = None, **sizes: int) -> NanoEngine:
    """An engine whose memory starts as NaN, so that a read of what nobody wrote shows."""
    config = SchedulerConfig(**({"num_kvcache_blocks": 24, "kvcache_block_size": 4} | sizes))
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    engine = NanoEngine(get_models(name)[0], config, generator=generator)
    for tensor in engine.memory.tensors:
        tensor.fill_(float("nan"))
    return engine


def draw_prompt(rng: random.Random, seen: list[list[int]]) -> list[int]:
    """Often the beginning of what came before, and something new."""
    start = rng.choice(seen) if seen and rng.random() < 0.75 else []
    start = start[: rng.randint(0, len(start))] if rng.random() < 0.5 else start
    return [*start, *(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 16)))][:40]


def run_workload(seed: int, counts: Counter[str]) -> list[str]:
    """Sequences that arrive while others are under way, in a pool too small for all; differences from the model."""
    rng = random.Random(seed)
    name = NAMES[seed % len(NAMES)]
    engine = make_engine(
        name,
        num_kvcache_blocks=rng.randint(14, 20),
        max_num_seqs=rng.choice([3, 8]),
        max_num_batched_tokens=rng.choice([8, 24, 1000]),
        eos=rng.randrange(VOCABULARY),
    )
    seen: list[list[int]] = []
    seqs: list[Any] = []
    num_left = 10
    while num_left or not engine.is_finished():
        for _ in range(min(num_left, rng.randint(0 if not engine.is_finished() else 1, 4))):
            prompt = draw_prompt(rng, seen)
            params = SamplingParams(temperature=0, max_tokens=rng.randint(1, 16), ignore_eos=rng.random() < 0.5)
            seqs.append(engine.add_request(prompt, params))
            seen.append(prompt)
            num_left -= 1
        seen += [seq.token_ids for seq in engine.step()]
        check_invariants(engine.scheduler.block_manager, seqs)
    counts.update({name: getattr(engine.stats, name) for name in engine.stats.__slots__})
    counts["tokens"] += sum(seq.num_completion_tokens for seq in seqs)
    reference = get_models(name)[1]
    found = []
    for seq in seqs:
        end = None if seq.ignore_eos else engine.scheduler.eos
        text = find_greedy_mismatch(reference, seq.prompt_token_ids, seq.completion_token_ids, seq.max_tokens, end)
        if text:
            found.append(f"workload {seed}, {name}, prompt of {seq.num_prompt_tokens}: {text}")
    return found


def test_every_greedy_token_equals_that_of_the_model_without_a_cache() -> None:
    counts: Counter[str] = Counter()
    mismatches = [text for seed in range(NUM_WORKLOADS) for text in run_workload(seed, counts)]
    assert mismatches == []
    rare = {name: number for name, number in counts.items() if number < NUM_WORKLOADS}
    assert rare == {}
    assert counts["tokens"] > 50 * NUM_WORKLOADS


def test_generate_gives_outputs_in_the_order_of_the_prompts_and_finds_prefixes() -> None:
    engine = make_engine("llama")
    prompts = [PROMPT, PROMPT[:3], [*PROMPT[:9], 1]]
    settings = [SamplingParams(temperature=0, max_tokens=number) for number in (7, 1, 4)]
    outputs = engine.generate(prompts, settings)
    assert [len(output) for output in outputs] == [7, 1, 4]
    reference = get_models("llama")[1]
    for prompt, output, params in zip(prompts, outputs, settings, strict=True):
        assert find_greedy_mismatch(reference, prompt, output, params.max_tokens, None) is None
    before = engine.stats.num_computed_tokens
    assert engine.generate([PROMPT], settings[0]) == outputs[:1]
    assert engine.stats.num_cached_tokens == 12
    assert engine.stats.num_computed_tokens - before == 1 + 6  # the rest of the prompt, then all tokens but the last


def test_a_long_prompt_is_computed_in_parts() -> None:
    engine = make_engine("qwen", max_num_batched_tokens=5)
    whole = make_engine("qwen").generate([PROMPT], SamplingParams(temperature=0, max_tokens=6))
    assert engine.generate([PROMPT], SamplingParams(temperature=0, max_tokens=6)) == whole
    assert engine.stats.num_cut_prompts == 2
    assert engine.stats.num_prefill_steps == 3


def test_drawn_tokens_follow_the_generator_and_greedy_neighbours_are_not_disturbed() -> None:
    greedy, drawn = SamplingParams(temperature=0, max_tokens=8), SamplingParams(temperature=5, max_tokens=8)
    outputs = [make_engine("llama", seed).generate([PROMPT, PROMPT[:5]], [drawn, greedy]) for seed in (1, 1, 2)]
    assert outputs[0] == outputs[1]
    assert outputs[0][0] != outputs[2][0]
    assert outputs[0][1] == outputs[2][1] == make_engine("llama").generate([PROMPT[:5]], greedy)[0]


def test_tokens_are_drawn_as_often_as_softmax_says() -> None:
    sampler = Sampler(torch.Generator().manual_seed(0))
    logits = torch.tensor([0.0, 1.0, 2.0, -50.0]).expand(20_000, -1)
    for temperature in (0.5, 1.0, 3.0):
        counts = Counter(sampler.sample(logits, [temperature] * len(logits)))
        expected = torch.softmax(logits[0].double() / temperature, 0).tolist()
        for token, share in enumerate(expected):
            assert counts[token] / len(logits) == pytest.approx(share, abs=0.015)
    assert sampler.sample(logits[:3], [0, 1e-10, 1e-3]) == [2, 2, 2]


def test_what_cannot_end_well_is_refused_at_once() -> None:
    engine = make_engine("llama", num_kvcache_blocks=4)
    assert len(engine.generate([range(10)], SamplingParams(temperature=0, max_tokens=7))[0]) == 7  # 16 tokens stored
    with pytest.raises(InvalidInputError, match="need 5 blocks, the pool has 4"):
        engine.add_request(range(10), SamplingParams(max_tokens=8))
    with pytest.raises(InvalidInputError, match="need 5 blocks"):
        engine.generate([[1, 2], range(17)], SamplingParams(max_tokens=1))
    with pytest.raises(InvalidInputError, match="3 prompts but 2 sampling_params"):
        engine.generate([[1], [2], [3]], [SamplingParams()] * 2)
    assert engine.is_finished()
    with pytest.raises(InvalidInputError, match="no sequence to schedule"):
        engine.step()
