"""Replays on nano-vllm's block manager: counts, and equality with the original where it is at hand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.nano.original_nano_vllm import Original, find_package, load_original
from tests.replay.nano.nano_runs import run_nano, run_nano_scheduler
from tests.replay.trace_builders import random_requests, token_request
from trtkv.errors import ConfigurationError, InvalidInputError
from trtkv.nano import BlockManager, check_invariants
from trtkv.traces.trace import KeyConstraints, TraceRequest
from trtkv.traces.trace_reader import read_trace


@pytest.fixture(scope="module")
def original() -> Iterator[Original]:
    folder = find_package()
    if folder is None:
        pytest.skip("nano-vllm is not importable: set TRTKV_NANO_VLLM to a checkout of it")
    with load_original(folder) as modules:
        yield modules


def common_prefix(a: TraceRequest, b: TraceRequest) -> int:
    pairs = zip(a.tokens().tolist(), b.tokens().tolist(), strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(a.input_length, b.input_length))


@pytest.mark.parametrize("seed", range(10))
def test_unlimited_cache_finds_every_full_block_of_an_earlier_prompt(seed: int) -> None:
    requests = random_requests(random.Random(seed), 25, alphabet=2)
    for tokens_per_block in (1, 2, 5):
        expected = sum(
            max((min(common_prefix(a, b), b.input_length - 1) for a in requests[:i]), default=0) // tokens_per_block
            for i, b in enumerate(requests)
        )
        result = run_nano(requests, tokens_per_block=tokens_per_block, capacity_tokens=None, live=1)
        assert result["reused"] == expected
        assert result["prepopulated_tokens"] == expected * tokens_per_block
        assert result["requests"] == 25
        assert result["prompt_tokens"] == sum(request.input_length for request in requests)


def test_counts_of_a_run_worked_out_by_hand() -> None:
    requests = [token_request(0, [1, 2, 3, 4, 5, 6], 3), token_request(1, [1, 2, 3, 4, 5, 9, 9, 9, 9], 0)]
    result = run_nano(requests, tokens_per_block=2, capacity_tokens=40, live=1)
    counts = {key: result[key] for key in ("prompt_blocks", "reused", "missed", "alloc_total", "decode_calls")}
    # 3 and 5 prompt blocks, 2 of the second found; 3 generated tokens, the last never stored: one more block.
    assert counts == {"prompt_blocks": 8, "reused": 2, "missed": 6, "alloc_total": 3 + 1 + 3, "decode_calls": 4}
    rates = {rate["name"]: (rate["numerator"], rate["denominator"]) for rate in result["rates"]}  # type: ignore[attr-defined]
    assert rates == {
        "block_hit_rate": (2, 8),
        "token_hit_rate": (4, 15),
        "mean_request_hit_rate": (4 / 9, 2),
        "zero_hit_share": (1, 2),
    }


def test_requests_admitted_together_do_not_find_each_other() -> None:
    requests = [token_request(i, [1, 2, 3, 4, 5], 2) for i in range(3)]
    assert run_nano(requests, tokens_per_block=2, capacity_tokens=None, live=3)["reused"] == 0
    assert run_nano(requests, tokens_per_block=2, capacity_tokens=None, live=1)["reused"] == 4


def test_generated_blocks_are_found_by_a_prompt_that_repeats_them() -> None:
    requests = [token_request(0, [7, 8], 4), token_request(1, [7, 8, 4, 3, 2, 5, 5])]  # request 0 generates 4 3 2 1
    assert run_nano(requests, tokens_per_block=2, capacity_tokens=None, live=1)["reused"] == 2
    assert run_nano(requests, tokens_per_block=5, capacity_tokens=None, live=1)["reused"] == 1


def test_request_larger_than_the_pool_is_skipped() -> None:
    requests = [token_request(0, [1] * 30), token_request(1, [1] * 3)]
    for run in (run_nano, run_nano_scheduler):
        result = run(requests, tokens_per_block=2, capacity_tokens=20, live=2)
        assert (result["requests"], result["skipped_requests"], result["prompt_tokens"]) == (1, 1, 3)


def test_pool_without_a_block_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="7 tokens holds no block of 8"):
        run_nano([token_request(0, [1])], tokens_per_block=8, capacity_tokens=7, live=1)


def test_times_are_given_by_kind_only_when_a_timer_is_passed() -> None:
    requests = [token_request(0, [1, 2, 3], 2)]
    assert "seconds" not in run_nano(requests, tokens_per_block=2, capacity_tokens=None, live=1)
    ticks = iter(range(1000))
    result = run_nano(requests, tokens_per_block=2, capacity_tokens=None, live=1, timer=lambda: float(next(ticks)))
    assert result["seconds"] == {"add": 1.0, "store": 1.0, "decode": 1.0, "remove": 1.0}


def test_progress_reaches_the_number_of_requests() -> None:
    seen: list[int] = []
    requests = random_requests(random.Random(5), 20)
    run_nano(requests, tokens_per_block=4, capacity_tokens=200, live=3, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 20
    seen.clear()
    run_nano_scheduler(requests, tokens_per_block=4, capacity_tokens=200, live=3, progress=seen.append)
    assert seen[-1] == 20


@pytest.mark.parametrize("seed", range(5))
def test_all_blocks_come_back_and_invariants_hold(seed: int) -> None:
    managers: list[BlockManager] = []

    def make_manager(num_blocks: int, block_size: int) -> BlockManager:
        managers.append(BlockManager(num_blocks, block_size))
        return managers[-1]

    requests = random_requests(random.Random(seed), 40, max_output=20)
    run_nano(requests, tokens_per_block=4, capacity_tokens=120, live=3, make_manager=make_manager)
    check_invariants(managers[0], [])


def test_scheduler_counts_preempted_work_apart() -> None:
    requests = random_requests(random.Random(1), 60, max_output=30)
    tight = run_nano_scheduler(requests, tokens_per_block=4, capacity_tokens=80, live=8, max_num_batched_tokens=16)
    assert tight["preemptions"] > 0
    assert tight["recomputed_tokens"] > 0
    wide = run_nano_scheduler(requests, tokens_per_block=4, capacity_tokens=None, live=8)
    assert (wide["preemptions"], wide["recomputed_tokens"], wide["recovered_tokens"]) == (0, 0, 0)
    for result in (tight, wide):
        assert result["prompt_tokens"] == sum(request.input_length for request in requests)
        assert result["reused"] + result["missed"] == result["prompt_blocks"]
        assert result["prepopulated_tokens"] == 4 * result["reused"]


def test_one_request_at_a_time_is_the_same_on_scheduler_and_closed_loop() -> None:
    requests = random_requests(random.Random(2), 60)
    closed = run_nano(requests, tokens_per_block=4, capacity_tokens=None, live=1)
    stepped = run_nano_scheduler(requests, tokens_per_block=4, capacity_tokens=None, live=1)
    same = ("requests", "prompt_blocks", "reused", "missed", "prepopulated_tokens", "zero_hit_requests")
    assert {key: closed[key] for key in same} == {key: stepped[key] for key in same}


@pytest.mark.parametrize(("tokens_per_block", "live"), [(2, 1), (4, 5), (8, 3)])
def test_original_manager_counts_the_same(original: Original, tokens_per_block: int, live: int) -> None:
    def make_original_sequence(request: TraceRequest, block_size: int) -> Any:
        original.sequence.block_size = block_size
        return original.sequence(request.tokens().tolist())

    for seed in range(10):
        rng = random.Random(seed)
        requests = random_requests(rng, 80, max_output=20)
        settings: dict[str, Any] = {"tokens_per_block": tokens_per_block, "live": live}
        settings["capacity_tokens"] = rng.choice((None, 100, 200, 400))
        ours = run_nano(requests, **settings)
        theirs = run_nano(
            requests, **settings, make_manager=original.block_manager, make_sequence=make_original_sequence
        )
        assert ours == theirs


def test_public_trace_gives_the_known_integers(shared_dir: Path) -> None:
    trace = read_trace(shared_dir / "traces" / "sharegpt" / "sharegpt-llama-3.1-8b-300-sps10.jsonl")
    for tokens_per_block, hit_tokens in ((16, 19_520), (32, 19_328), (64, 18_880)):
        result = run_nano(trace.requests, tokens_per_block=tokens_per_block, capacity_tokens=None, live=1)
        assert (result["prepopulated_tokens"], result["prompt_tokens"]) == (hit_tokens, 257_239)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hit_blocks", "prompt_blocks", "hit_tokens"),
    [("conversation", 105_592, 288_500, 54_063_104), ("synthetic", 77_740, 121_877, 39_802_880)],
)
def test_mooncake_traces_give_the_known_integers(
    shared_dir: Path, name: str, hit_blocks: int, prompt_blocks: int, hit_tokens: int
) -> None:
    trace = read_trace(shared_dir / "traces" / "mooncake" / f"{name}_trace.jsonl", block_size=512)
    result = run_nano(trace.requests, tokens_per_block=512, capacity_tokens=None, live=1)
    found = (result["reused"], result["prompt_blocks"], result["prepopulated_tokens"])
    assert found == (hit_blocks, prompt_blocks, hit_tokens)


@pytest.mark.parametrize(
    ("constraints", "named"),
    [(KeyConstraints(lora_task_id=0), "lora_task_id 0"), (KeyConstraints(cache_salt="a"), "cache_salt 'a'")],
)
def test_what_its_keys_do_not_hold_is_refused_by_name(constraints: KeyConstraints, named: str) -> None:
    request = replace(token_request(3, [1, 2, 3]), constraints=constraints)
    with pytest.raises(InvalidInputError, match=f"request 3 has {named}, which nano-vllm's keys do not hold"):
        run_nano([request], tokens_per_block=4, capacity_tokens=200, live=1)
