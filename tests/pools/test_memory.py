"""Block counts from bytes and settings, warnings, and agreement of ranks over gloo."""

from __future__ import annotations

import logging
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trtkv.common import RECURRENT_STATES, BlocksPerWindow, CacheType, DataType
from trtkv.errors import ConfigurationError, MissingExtraError
from trtkv.pools import memory
from trtkv.pools.memory import CacheMemory, DeviceMemory
from trtkv.records.config import KvCacheConfig, ModelConfig
from trtkv.records.linear_attention import LinearAttentionMetadata


def make_model(**changes: Any) -> ModelConfig:
    """Two layers of one head of 2 half elements: 16 bytes a token over both."""
    settings: dict[str, Any] = {
        "num_layers": 2,
        "num_kv_heads_per_layer": 1,
        "size_per_head": 2,
        "max_sequence_length": 64,
    }
    return ModelConfig(**(settings | changes))


def make_config(**changes: Any) -> KvCacheConfig:
    return KvCacheConfig(**({"tokens_per_block": 4} | changes))


def count_blocks(
    config: KvCacheConfig, model: ModelConfig, primary_bytes: int, secondary_bytes: int = 0, **options: Any
) -> BlocksPerWindow:
    return memory.calculate_blocks_per_window(
        config,
        model,
        CacheMemory(primary_bytes, secondary_bytes),
        window_size_shares=options.pop("shares", None),
        **options,
    )


def test_bytes_given_become_blocks_of_the_one_window() -> None:
    assert count_blocks(make_config(), make_model(), 64 * 20, 64 * 7 + 63) == {64: (20, 7)}


def test_the_cache_type_of_the_settings_goes_before_the_models() -> None:
    assert make_config().resolve_dtype(make_model(dtype="bf16")) is DataType.BF16
    assert count_blocks(make_config(dtype="fp8"), make_model(), 64 * 20) == {64: (40, 0)}


def test_windows_are_repeated_over_the_layers_and_cut_to_the_longest_sequence() -> None:
    config = make_config(max_attention_window=[16, 1000])
    assert config.resolve_attention_windows(make_model(num_layers=3)) == [16, 64, 16]
    assert count_blocks(config, make_model(), 64 * 40) == {16: (40, 0), 64: (40, 0)}


def test_layers_with_recurrent_states_have_their_own_window() -> None:
    model = make_model(
        linear_layer_indices=[0], linear_attention_metadata=LinearAttentionMetadata(all_recurrent_states_bytes=64)
    )
    assert make_config().resolve_attention_windows(model) == [RECURRENT_STATES, 64]
    assert count_blocks(make_config(), model, 64 * 40) == {RECURRENT_STATES: (20, 0), 64: (40, 0)}


def test_the_cross_cache_takes_its_fraction() -> None:
    config = make_config(cross_kv_cache_fraction=0.25)
    assert count_blocks(config, make_model(), 64 * 80) == {64: (60, 0)}
    assert count_blocks(config, make_model(cache_type=CacheType.CROSS), 64 * 80) == {64: (20, 0)}


def test_shares_come_from_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(max_attention_window=[16, 64])
    monkeypatch.setenv("TRTLLM_WINDOW_SIZE_SHARES", "0.25,0.75")
    assert count_blocks(config, make_model(), 64 * 40) == {16: (20, 0), 64: (60, 0)}
    assert count_blocks(config, make_model(), 64 * 40, shares="0.5,0.5") == {16: (40, 0), 64: (40, 0)}


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="15 bytes leave window 64 without a block"):
        count_blocks(make_config(), make_model(), 15)


def test_free_memory_is_limited_by_fraction_and_bytes() -> None:
    device = DeviceMemory(1000, 2000)
    assert memory.calculate_free_mem_bytes(make_config(host_cache_size=77), device) == (900, 77)
    assert memory.calculate_free_mem_bytes(make_config(free_gpu_memory_fraction=0.5), device) == (500, 0)
    assert memory.calculate_free_mem_bytes(make_config(max_gpu_total_bytes=300), device) == (300, 0)
    with pytest.raises(ConfigurationError, match="2001 bytes free of 2000"):
        memory.calculate_free_mem_bytes(make_config(), DeviceMemory(2001, 2000))


def test_two_limits_that_were_written_down_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    device = DeviceMemory(64 * 100, 64 * 100)
    memory.calculate_free_mem_bytes(make_config(max_tokens=80), device)
    assert not caplog.records
    config = make_config(max_tokens=80, free_gpu_memory_fraction=0.5)
    found = memory.calculate_free_mem_bytes(config, device)
    assert "free_gpu_memory_fraction (0.5) and max_tokens (80)" in caplog.text
    assert memory.calculate_blocks_per_window(config, make_model(), found) == {64: (20, 0)}
    config = make_config(max_tokens=4000, free_gpu_memory_fraction=0.5)
    assert memory.calculate_blocks_per_window(config, make_model(), found) == {64: (50, 0)}


@pytest.mark.parametrize(
    ("settings", "bytes_given", "message"),
    [
        ({}, (64 * 20, 63), "host_cache_size of 63 bytes gives window 64 no block"),
        ({"enable_block_reuse": False}, (64 * 20, 64), "host_cache_size of 64 bytes is of no use without block reuse"),
        ({}, (64 * 15, 0), "window 64 has 15 blocks of 4 tokens, fewer than one sequence of 64 tokens"),
        ({"max_tokens": 100, "max_attention_window": [16, 64]}, (64 * 40, 0), "max_tokens 100 has no effect"),
    ],
)
def test_settings_that_do_not_do_what_they_say_are_warned_about(
    settings: dict[str, Any], bytes_given: tuple[int, int], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="trtkv.pools.memory"):
        count_blocks(make_config(**settings), make_model(), *bytes_given)
    assert [message in record.getMessage() for record in caplog.records] == [True]


def test_no_warning_without_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    count_blocks(make_config(max_tokens=64), make_model(), 64 * 20, 64)
    assert not caplog.records


class FakeCuda:
    """torch.cuda of a device with 1000 bytes, 400 of them free and 50 cached by the allocator without use."""

    def __init__(self, available: bool = True) -> None:
        self.calls: list[str] = []
        self._available = available

    def is_available(self) -> bool:
        return self._available

    def synchronize(self, device: object) -> None:
        self.calls.append("synchronize")

    def mem_get_info(self, device: object) -> tuple[int, int]:
        self.calls.append("mem_get_info")
        return 400, 1000

    def memory_reserved(self, device: object) -> int:
        return 150

    def memory_allocated(self, device: object) -> int:
        return 100


def test_memory_cached_by_the_allocator_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert memory.get_device_memory() == DeviceMemory(450, 1000)
    assert cuda.calls == ["synchronize", "mem_get_info"]


def test_without_a_device_bytes_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=FakeCuda(available=False)))
    with pytest.raises(ConfigurationError, match="give the bytes of the cache"):
        memory.get_device_memory()


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"trtkv\[torch\]"):
        memory.get_device_memory()


@pytest.mark.gpu
def test_a_real_device_reports_its_memory() -> None:
    found = memory.get_device_memory()
    assert 0 < found.free_bytes <= found.total_bytes


# -- ranks ----------------------------------------------------------------------------------------------


def test_ranks_agree_on_the_smallest_counts() -> None:
    ranks: list[BlocksPerWindow] = [{16: (5, 9), 64: (8, 0)}, {16: (6, 2), 64: (7, 1)}]
    assert memory.reduce_block_counts(ranks) == {16: (5, 2), 64: (7, 0)}


def test_recurrent_states_may_be_missing_on_a_rank() -> None:
    ranks: list[BlocksPerWindow] = [{64: (8, 0)}, {RECURRENT_STATES: (3, 0), 64: (7, 1)}]
    assert memory.reduce_block_counts(ranks) == {RECURRENT_STATES: (3, 0), 64: (7, 0)}


def test_ranks_with_other_windows_are_named() -> None:
    ranks: list[BlocksPerWindow] = [{64: (8, 0)}, {64: (8, 0)}, {16: (1, 0), 64: (8, 0)}]
    with pytest.raises(ConfigurationError, match=r"rank 0: \[64\], rank 2: \[16, 64\]"):
        memory.reduce_block_counts(ranks)


def test_without_a_process_group_counts_stay_as_they_are() -> None:
    assert memory.synchronize_block_counts({64: (8, 1)}) == {64: (8, 1)}


def agree_in_rank(rank: int, rendezvous: str, given: list[BlocksPerWindow], results: Any) -> None:
    """Body of one process."""
    import torch.distributed as distributed

    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=len(given))
    try:
        results.put((rank, memory.synchronize_block_counts(given[rank])))
    except ConfigurationError as error:
        results.put((rank, str(error)))
    finally:
        distributed.destroy_process_group()


def count_in_rank(rank: int, rendezvous: str, given: list[int], results: Any) -> None:
    """The same through calculate_blocks_per_window, with bytes that differ between the ranks."""
    import torch.distributed as distributed

    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=len(given))
    try:
        results.put((rank, count_blocks(make_config(), make_model(), given[rank], across_ranks=True)))
    except ConfigurationError as error:
        results.put((rank, str(error)))
    finally:
        distributed.destroy_process_group()


def run_ranks(target: Callable[..., None], given: list[Any], tmp_path: Path) -> list[Any]:
    """Run one process per entry and return what each found, in rank order."""
    pytest.importorskip("torch.distributed", reason="torch is not installed; ranks agree through torch.distributed")
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [
        context.Process(target=target, args=(rank, str(tmp_path / "rendezvous"), given, results))
        for rank in range(len(given))
    ]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0] * len(given)
    return [result for _, result in found]


def test_two_processes_agree_over_gloo(tmp_path: Path) -> None:
    found = run_ranks(agree_in_rank, [{16: (5, 9), 64: (8, 0)}, {16: (6, 2), 64: (7, 1)}], tmp_path)
    assert found == [{16: (5, 2), 64: (7, 0)}] * 2


def test_two_processes_with_other_windows_both_fail(tmp_path: Path) -> None:
    found = run_ranks(agree_in_rank, [{64: (8, 0)}, {32: (8, 0)}], tmp_path)
    assert found[0] == found[1]
    assert "rank 0: [64], rank 1: [32]" in found[0]


def test_a_rank_without_room_does_not_leave_the_other_waiting(tmp_path: Path) -> None:
    found = run_ranks(count_in_rank, [64 * 20, 3], tmp_path)
    assert all("without a block" in result for result in found)
    (tmp_path / "again").mkdir()
    assert run_ranks(count_in_rank, [64 * 20, 64 * 18], tmp_path / "again") == [{64: (18, 0)}] * 2
