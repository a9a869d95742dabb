"""Replays of a server that is given as a model and its memory."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner, Result

from tests.replay.helpers import DATA, make_request
from tests.sizing.models import MODELS, plan_of
from trtkv import cli
from trtkv.errors import ConfigurationError, InvalidInputError
from trtkv.replay.bounds.bounds import has_bounds
from trtkv.replay.closed_loop.run import replay_trace
from trtkv.replay.config import ReplayConfig
from trtkv.replay.model_capacity import apply_cache_plan, check_lengths, describe_cache_plan
from trtkv.traces.trace import RequestTrace
from trtkv.traces.trace_reader import read_trace

CHAT = str(DATA / "chat_120.jsonl")
REPLAY = ("replay", CHAT, "--block-size", "64", "--tokens-per-block", "64", "--live", "4")
SETTINGS = ReplayConfig(tokens_per_block=64, live=4)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments)


def model(name: str) -> str:
    return str(MODELS / f"{name}.json")


def test_one_window_gives_the_counts_of_its_capacity() -> None:
    # 32,768 bytes a token with two ranks and fp8: 2 GiB are 65,536 tokens, 1 GiB half of them.
    options = ("--memory", "2GiB", "--host-memory", "1GiB", "--kv-dtype", "fp8", "--tp", "2")
    sized = run(*REPLAY, "--model", model("llama-3.1-8b"), *options, "--json", "-")
    assert sized.exit_code == 0, sized.output
    written = run(*REPLAY, "--capacity-tokens", "65536", "--host-tokens", "32768", "--json", "-")
    ours, theirs = json.loads(sized.stdout), json.loads(written.stdout)
    assert ours.pop("max_sequence_length") == 131072 + 2 * 64
    assert ours["windows"][0].pop("window_size") == 131072 + 2 * 64
    theirs.pop("max_sequence_length")
    theirs["windows"][0].pop("window_size")
    assert ours == theirs
    assert ours["windows"][0]["offloaded"] > 0
    assert "size: llama-3.1-8b, 32,768 bytes per token in fp8; window full: 1,024 blocks" in sized.stderr


def test_several_windows_have_their_own_blocks() -> None:
    plan = plan_of("gemma-3-4b", 2**33, host_memory_bytes=2**30, tokens_per_block=64)
    config = apply_cache_plan(SETTINGS, plan)
    assert config.windows == (1024, None)
    blocks = [(window.primary_blocks, window.secondary_blocks) for window in plan.windows]
    assert list(config.window_blocks) == blocks
    assert blocks[0] < blocks[1]
    assert (config.capacity_tokens, config.host_tokens) == (blocks[0][0] * 64, blocks[0][1] * 64)
    trace = read_trace(CHAT, block_size=64)
    result, _ = replay_trace(trace, config)
    assert [(window.primary_blocks, window.secondary_blocks) for window in result.windows] == blocks
    assert [window.full_attention for window in result.windows] == [False, True]
    assert not has_bounds(trace.requests, config)
    assert result.counts.requests == 120


def test_a_window_wider_than_the_trace_stays_a_window_of_its_own() -> None:
    config = apply_cache_plan(SETTINGS, plan_of("gemma-2-9b", 2**33, tokens_per_block=64))
    requests = [make_request(0, 100, 5)]
    assert config.layer_windows(requests) == [4096, config.max_sequence_length(requests)]
    assert config.max_sequence_length(requests) > 8192
    assert len(config.build_manager(requests).window_sizes_metadata) == 2


def test_a_model_with_sliding_windows_only() -> None:
    config = apply_cache_plan(SETTINGS, plan_of("mistral-7b-v0.1", 2**33, tokens_per_block=64))
    assert (config.windows, config.window_blocks) == ((4096,), ())
    assert config.capacity_tokens == 2**33 // 131072


def test_longer_requests_than_the_model_takes_are_refused() -> None:
    config = apply_cache_plan(SETTINGS, plan_of("llama-3.1-8b", max_sequence_length=100))
    check_lengths(config, RequestTrace("t", "tokens", None, [make_request(0, 95, 5)]))
    with pytest.raises(InvalidInputError, match="t has a request of 101 tokens, but the longest sequence of the model"):
        check_lengths(config, RequestTrace("t", "tokens", None, [make_request(0, 96, 5)]))
    check_lengths(SETTINGS, RequestTrace("t", "tokens", None, [make_request(0, 10**6, 5)]))


def test_blocks_are_needed_for_each_window() -> None:
    with pytest.raises(ConfigurationError, match="blocks are given for 1 windows of 2"):
        replace(SETTINGS, windows=(None, 128), window_blocks=((5, 0),))


def test_the_line_about_the_size_names_every_window() -> None:
    text = describe_cache_plan(plan_of("gemma-3-4b", 2**33, tokens_per_block=64))
    assert text.startswith("gemma-3-4b, 139,264 bytes per token in bf16; window 1024: ")
    assert ", window full: " in text


def test_schedulers_run_on_a_sized_cache() -> None:
    options = ("--memory", "2GiB", "--kv-dtype", "fp8", "--scheduler", "guaranteed-no-evict", "--limit", "20")
    result = run(*REPLAY[:-2], "--model", model("gemma-3-4b"), *options, "--max-num-tokens", "30000", "--json", "-")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["settings"]["attention_windows"] == [1024, "full"]


def test_nano_runs_on_a_sized_cache_with_one_full_window() -> None:
    options = ("--memory", "8GiB", "--system", "nano", "--json", "-")
    report = json.loads(run(*REPLAY, "--model", model("llama-3.1-8b"), *options).stdout)
    assert report["capacity_tokens"] == 65536
    refused = run(*REPLAY, "--model", model("gemma-3-4b"), *options)
    assert refused.exit_code == 2
    assert "--system nano knows none of" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--model", model("llama-3.1-8b")), "give both"),
        (("--memory", "1GiB"), "give both"),
        (("--tp", "2"), "give both"),
        (("--max-seq-len", "2"), "give both"),
        (("--model", model("llama-3.1-8b"), "--memory", "1GiB", "--capacity-tokens", "inf"), "leave --capacity-tokens"),
        (("--model", model("llama-3.1-8b"), "--memory", "1GiB", "--window", "full"), "leave --capacity-tokens"),
        (("--model", model("llama-3.1-8b"), "--memory", "1G"), "--memory is '1G'"),
        (("--model", model("llama-3.1-8b"), "--memory", "1GiB", "--max-seq-len", "1000"), "longest sequence of the mo"),
        (("--model", model("gemma-3-4b"), "--memory", "8GiB", "--bounds"), "all windows the same room"),
    ],
)
def test_options_that_do_not_go_together(arguments: tuple[str, ...], told: str) -> None:
    result = run(*REPLAY, *arguments)
    assert result.exit_code == 2
    assert told in result.stderr
