"""Tokens per second of the executor beside transformers' own generate(), on one CPU thread.

    python tools/bench_executor.py [batch sizes] [--rounds 5] [--profile]

Both run the same seeded Llama with random weights on the same prompts; every token must be equal. A round times one
after the other, so that a busy machine slows both; the ratio is that of the best rounds. ``--profile`` prints where a
run of the executor spends its time instead.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trtkv import ExecutorConfig, PyTorchExecutor, create_kv_cache_manager, read_model_spec

PROMPT_LENGTH, NEW_TOKENS, TOKENS_PER_BLOCK = 256, 48, 16
SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 2048,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
}

Outputs = list[list[int]]


def make_model() -> LlamaForCausalLM:
    """The seeded model; it ends no output by itself."""
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPE, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    return LlamaForCausalLM(config).eval()


def make_prompts(batch_size: int) -> Outputs:
    """Prompts that share nothing."""
    generator = torch.Generator().manual_seed(batch_size)
    return torch.randint(SHAPE["vocab_size"], (batch_size, PROMPT_LENGTH), generator=generator).tolist()


def run_transformers(model: LlamaForCausalLM, prompts: Outputs) -> Outputs:
    """Greedy outputs of generate() with its dynamic cache."""
    tokens = torch.tensor(prompts)
    output = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW_TOKENS, do_sample=False, use_cache=True
    )
    result: Outputs = output[:, PROMPT_LENGTH:].tolist()
    return result


def make_executor(batch_size: int) -> PyTorchExecutor:
    """An executor with room for all prompts at once; nothing of an earlier run is found in it."""
    length = PROMPT_LENGTH + NEW_TOKENS
    model = make_model()
    config = ExecutorConfig(
        max_sequence_length=length,
        num_primary_blocks=batch_size * (-(-length // TOKENS_PER_BLOCK) + 1),
        tokens_per_block=TOKENS_PER_BLOCK,
        max_batch_size=batch_size,
        enable_block_reuse=False,
    )
    return PyTorchExecutor(model, create_kv_cache_manager(read_model_spec(model), config), config)


def run_executor(executor: PyTorchExecutor, prompts: Outputs) -> Outputs:
    """The same by the executor."""
    ids = [executor.submit(prompt, NEW_TOKENS) for prompt in prompts]
    results = executor.run()
    return [results[request_id].token_ids[0] for request_id in ids]


def measure(function: Callable[[], Outputs]) -> tuple[float, Outputs]:
    """Seconds of one call and what it gave."""
    start = time.perf_counter()
    outputs = function()
    return time.perf_counter() - start, outputs


def compare(batch_size: int, rounds: int) -> None:
    """Print one line of the table."""
    model, executor, prompts = make_model(), make_executor(batch_size), make_prompts(batch_size)
    theirs, ours = [], []
    for _ in range(rounds + 1):
        their_seconds, expected = measure(lambda: run_transformers(model, prompts))
        our_seconds, outputs = measure(lambda: run_executor(executor, prompts))
        if outputs != expected:
            raise SystemExit(f"batch {batch_size}: outputs differ")
        theirs.append(their_seconds)
        ours.append(our_seconds)
    num_tokens = batch_size * NEW_TOKENS
    their_best, our_best = min(theirs[1:]), min(ours[1:])  # the first round warms up
    print(
        f"{batch_size:>5} {num_tokens / their_best:>14,.0f} {num_tokens / our_best:>10,.0f} "
        f"{their_best / our_best:>8.2f}   equal"
    )


def profile(batch_size: int) -> None:
    """Print the calls that take longest."""
    executor, prompts = make_executor(batch_size), make_prompts(batch_size)
    run_executor(executor, prompts)
    with cProfile.Profile() as profiler:
        run_executor(executor, prompts)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> None:
    """Compare or profile."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("batch_sizes", nargs="*", type=int, default=[1, 8, 24])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.profile:
        print(f"{'batch':>5} {'transformers/s':>14} {'executor/s':>10} {'ratio':>8}   tokens")
    for batch_size in arguments.batch_sizes:
        if arguments.profile:
            profile(batch_size)
        else:
            compare(batch_size, arguments.rounds)


if __name__ == "__main__":
    main()
