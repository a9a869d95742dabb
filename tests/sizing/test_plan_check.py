"""Plans against tensors: what agrees, and that a wrong plan is noticed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.sizing.models import NAMES, plan_of, shape_of
from trtkv.errors import MissingExtraError
from trtkv.sizing.cache_plan import SizingOptions, make_cache_plan
from trtkv.sizing.plan_check import check_plan

SMALL = 8 * 2**20


@pytest.fixture(autouse=True)
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed; pools are torch tensors")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8", "nvfp4"])
def test_plan_and_tensors_agree(name: str, kv_dtype: str) -> None:
    options = {"host_memory_bytes": 10**11, "kv_dtype": kv_dtype, "tp_size": 2}
    outcome = check_plan(plan_of(name, **options), SMALL)
    assert outcome.faults == ()
    assert outcome.is_good
    for window in outcome.windows:
        assert window.primary_blocks >= 1
        assert window.allocated_block_bytes == window.planned_block_bytes


def test_pools_with_heads_and_head_sizes_that_differ() -> None:
    text = {"model_type": "gemma4_text", "attention_k_eq_v": True, "num_global_key_value_heads": 2}
    plan = make_cache_plan(shape_of("gemma-3-4b", text_config=text), SizingOptions(10**9))
    assert check_plan(plan, SMALL).faults == ()


def test_what_is_allocated_stays_within_what_a_check_may_take() -> None:
    outcome = check_plan(plan_of("llama-3.1-8b", host_memory_bytes=2**34), 64 * 2**20)
    assert outcome.allocated_bytes <= 64 * 2**20
    assert outcome.full_primary_bytes == 40 * 2**30


def test_a_plan_with_a_wrong_size_is_noticed() -> None:
    plan = plan_of("gemma-3-4b", host_memory_bytes=2**30)
    small, large = plan.windows
    wrong = replace(plan, windows=(small, large._replace(bytes_per_block=large.bytes_per_block + 1)))
    outcome = check_plan(wrong, SMALL)
    assert not outcome.is_good
    assert [fault.split(" blocks")[0].split(":")[0] for fault in outcome.faults] == ["window 131072"] * 2


def test_a_plan_with_too_many_blocks_is_noticed() -> None:
    plan = plan_of("llama-3.1-8b")
    (window,) = plan.windows
    wrong = replace(plan, windows=(window._replace(primary_blocks=window.primary_blocks + 2),))
    assert check_plan(wrong, SMALL).faults == ("all blocks take 40.008 GiB of 40.000 GiB",)


def test_a_model_with_other_heads_is_noticed() -> None:
    plan = plan_of("llama-3.1-8b")
    layers = tuple(layer._replace(size_per_head=64) for layer in plan.shape.layers)
    outcome = check_plan(replace(plan, shape=replace(plan.shape, layers=layers)), SMALL)
    assert outcome.faults[0] == "layer 0: a block is (2, 8, 32, 128), the model says (2, 8, 32, 64)"


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"trtkv\[torch\]"):
        check_plan(plan_of("llama-3.1-8b"), SMALL)
