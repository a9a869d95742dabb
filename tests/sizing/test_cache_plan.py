"""Windows, bytes and blocks of models, and the options that change them."""

from __future__ import annotations

import pytest

from tests.sizing.models import GIB, NAMES, plan_of, shape_of
from trtkv.common import RECURRENT_STATES, DataType
from trtkv.errors import ConfigurationError, InvalidInputError
from trtkv.pools.capacity_estimation import WINDOW_SIZE_SHARES_VARIABLE, calculate_max_num_blocks
from trtkv.sizing.cache_plan import SizingOptions, make_cache_plan

BYTES_PER_TOKEN = {
    # in the model's own type; per window where there are two
    "llama-3.1-8b": [32 * 8 * 128 * 2 * 2],
    "qwen2.5-7b": [28 * 4 * 128 * 2 * 2],
    "qwen3-8b": [36 * 8 * 128 * 2 * 2],
    "gemma-2-9b": [21 * 8 * 256 * 2 * 4] * 2,
    "gemma-3-4b": [29 * 4 * 256 * 2 * 2, 5 * 4 * 256 * 2 * 2],
    "mistral-7b-v0.1": [32 * 8 * 128 * 2 * 2],
    "mistral-nemo-12b": [40 * 8 * 128 * 2 * 2],
    "gpt-oss-20b": [12 * 8 * 64 * 2 * 2] * 2,
    "deepseek-v2-lite": [27 * 576 * 2],
    "deepseek-v3": [61 * 576 * 2],
    "deepseek-v3.2": [61 * (576 * 2 + 128 + 4)],
    "nemotron-h-8b": [None, 4 * 8 * 128 * 2 * 2],
    "jamba-v0.1": [None, 4 * 8 * 128 * 2 * 2],
    "qwen3-next-80b": [None, 12 * 2 * 256 * 2 * 2],
}


@pytest.mark.parametrize("name", NAMES)
def test_bytes_of_a_token(name: str) -> None:
    plan = plan_of(name)
    assert [window.bytes_per_token for window in plan.windows] == BYTES_PER_TOKEN[name]
    assert plan.bytes_per_token == sum(size or 0 for size in BYTES_PER_TOKEN[name])


def test_blocks_of_a_model_with_one_window() -> None:
    plan = plan_of("llama-3.1-8b", host_memory_bytes=200 * GIB, kv_dtype="fp8", tp_size=2)
    (window,) = plan.windows
    # 32 layers x 4 heads x 128 x 2 = 32 KiB a token, 1 MiB a block.
    assert (window.bytes_per_token, window.bytes_per_block, window.kv_heads) == (32768, 2**20, (4,))
    assert plan.blocks_per_window == {131072: (40 * 1024, 200 * 1024)}
    assert (window.primary_tokens, window.secondary_tokens) == (40 * 1024 * 32, 200 * 1024 * 32)
    assert (window.blocks_per_sequence, window.num_sequences, plan.num_sequences) == (4096, 10, 10)
    assert (plan.primary_bytes, plan.secondary_bytes) == (40 * GIB, 200 * GIB)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8", "nvfp4"])
def test_a_plan_fills_its_memory_but_not_more(name: str, tp_size: int, kv_dtype: str) -> None:
    plan = plan_of(name, 40 * GIB, host_memory_bytes=100 * GIB, kv_dtype=kv_dtype, tp_size=tp_size)
    block = sum(window.bytes_per_block for window in plan.windows)
    assert 40 * GIB - 2 * block < plan.primary_bytes < 40 * GIB + block
    assert 100 * GIB - 2 * block < plan.secondary_bytes <= 100 * GIB
    for window in plan.windows:
        assert window.primary_blocks > 0


def test_blocks_are_those_of_the_managers_own_arithmetic() -> None:
    plan = plan_of("gemma-3-4b", 10**10, host_memory_bytes=10**11, tokens_per_block=64, max_sequence_length=50_000)
    assert plan.blocks_per_window == calculate_max_num_blocks(
        dtype=DataType.BF16,
        num_kv_heads_per_layer=[4] * 34,
        size_per_head=256,
        tokens_per_block=64,
        window_size_to_layers={
            1024: [i for i in range(34) if (i + 1) % 6],
            50_000: [5, 11, 17, 23, 29],
        },
        allotted_primary_mem_bytes=10**10,
        allotted_secondary_mem_bytes=10**11,
        kv_factor=2,
    )


def test_latent_vectors_are_on_every_rank() -> None:
    assert plan_of("deepseek-v3", tp_size=8).bytes_per_token == plan_of("deepseek-v3").bytes_per_token
    assert plan_of("llama-3.1-8b", tp_size=16).bytes_per_token == plan_of("llama-3.1-8b", tp_size=8).bytes_per_token


def test_nvfp4_includes_its_scales() -> None:
    assert plan_of("llama-3.1-8b", kv_dtype="nvfp4").bytes_per_token == 32 * 8 * 128 * 2 * 9 // 16


def test_a_window_beyond_the_longest_sequence_is_full_attention() -> None:
    plan = plan_of("mistral-7b-v0.1", max_sequence_length=4096)
    assert [(window.window_size, window.is_full) for window in plan.windows] == [(4096, True)]
    plan = plan_of("gemma-2-9b", max_sequence_length=2048)
    assert [(window.window_size, window.num_layers) for window in plan.windows] == [(2048, 42)]


def test_windows_of_the_user_go_before_those_of_the_model() -> None:
    plan = plan_of("gemma-2-9b", windows=(None,))
    assert [(window.window_size, window.num_layers) for window in plan.windows] == [(8192, 42)]
    plan = plan_of("llama-3.1-8b", windows=(512, 512, None))
    assert [(window.window_size, window.num_layers) for window in plan.windows] == [(512, 22), (131072, 10)]
    plan = plan_of("jamba-v0.1", windows=(1000,))
    assert [(window.window_size, window.num_layers) for window in plan.windows] == [(RECURRENT_STATES, 28), (1000, 4)]


def test_shares_of_the_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    equal = plan_of("gpt-oss-20b")
    small, large = equal.windows
    assert small.primary_blocks == large.primary_blocks
    given = plan_of("gpt-oss-20b", window_size_shares="0.25,0.75")
    assert [window.primary_bytes // GIB for window in given.windows] == [10, 30]
    monkeypatch.setenv(WINDOW_SIZE_SHARES_VARIABLE, "0.25,0.75")
    assert plan_of("gpt-oss-20b").blocks_per_window == given.blocks_per_window


def test_states_without_reuse_are_one_for_each_sequence() -> None:
    plan = plan_of("nemotron-h-8b", block_reuse=False, max_batch_size=16)
    states, tokens = plan.windows
    assert (states.primary_blocks, states.secondary_blocks, states.blocks_per_sequence) == (16, 0, 1)
    assert states.primary_bytes + tokens.primary_bytes <= 40 * GIB
    assert tokens.primary_bytes > 39 * GIB


def test_states_with_reuse_have_snapshots() -> None:
    states = plan_of("nemotron-h-8b").windows[0]
    assert states.blocks_per_sequence == 8192 // 256 + 1
    assert plan_of("nemotron-h-8b", snapshot_interval=1024).windows[0].blocks_per_sequence == 8 + 1
    assert plan_of("nemotron-h-8b", snapshot_interval=0).windows[0].blocks_per_sequence == 1 + 1
    with pytest.raises(ConfigurationError, match="snapshot interval is 100 tokens; give a multiple of a block of 32"):
        plan_of("nemotron-h-8b", snapshot_interval=100)


def test_head_sizes_that_differ_are_one_pool_each() -> None:
    shape = shape_of("gemma-3-4b", text_config={"model_type": "gemma4_text"})
    plan = make_cache_plan(shape, SizingOptions(GIB))
    assert [(window.size_per_head, window.bytes_per_token) for window in plan.windows] == [
        (256, 25 * 4 * 256 * 2 * 2),
        (512, 5 * 4 * 512 * 2 * 2),
    ]
    with pytest.raises(ConfigurationError, match="layers of one window have different head sizes"):
        make_cache_plan(shape, SizingOptions(GIB, max_sequence_length=512))


def test_a_prompt_has_to_fit_into_every_window_whole() -> None:
    assert plan_of("llama-3.1-8b").longest_prompt == 131072
    plan = plan_of("gemma-3-4b", 10**10)
    assert plan.longest_prompt == plan.windows[0].primary_tokens
    assert plan.windows[0].num_sequences > 10
    assert plan_of("jamba-v0.1").longest_prompt == 262144


def test_the_longest_sequence_must_be_known() -> None:
    shape = shape_of("llama-3.1-8b", model_type="new", max_position_embeddings=...)
    with pytest.raises(
        ConfigurationError, match=r"llama-3\.1-8b names no longest sequence; give it with --max-seq-len"
    ):
        make_cache_plan(shape, SizingOptions(GIB))
    assert make_cache_plan(shape, SizingOptions(GIB, max_sequence_length=100)).max_sequence_length == 100


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"memory_bytes": 0}, "memory is 0; give at least 1"),
        ({"host_memory_bytes": -1}, "host memory is -1"),
        ({"tokens_per_block": 0}, "tokens per block is 0"),
        ({"tp_size": 0}, "tensor parallel size is 0"),
        ({"max_batch_size": 0}, "batch size is 0"),
        ({"max_sequence_length": 0}, "longest sequence is 0 tokens"),
        ({"kv_dtype": "fp7"}, "kv dtype is 'fp7'; give one of auto"),
        ({"kv_dtype": "int64"}, "kv dtype is 'int64'"),
        ({"windows": (0,)}, "attention window is 0 tokens"),
        ({"memory_bytes": 1000}, "1000 bytes leave window 131072 without a block"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], told: str) -> None:
    settings: dict[str, object] = {"memory_bytes": GIB, **options}
    with pytest.raises(InvalidInputError, match=told):
        plan_of("llama-3.1-8b", **settings)  # type: ignore[arg-type]
