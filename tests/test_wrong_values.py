"""Wrong values for public constructors and methods: an error of the ValueError family with the value, and no change."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from io import BytesIO
from math import inf, nan
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from tests.builders import IS_COMPILED, add, make_kv_cache_manager, make_request, prefill
from tests.replay.nano.nano_runs import run_nano
from tests.sizing.models import shape_of
from tests.snapshot import take_snapshot
from trtkv import (
    KVCacheEventManager,
    KvCacheRetentionConfig,
    LinearAttentionMetadata,
    LlmRequest,
    TokenRangeRetentionConfig,
)
from trtkv.common import DataType
from trtkv.errors import InvalidInputError, TrtkvError
from trtkv.exporters.vllm_events import VllmEventTranslator
from trtkv.keys.block_key import BlockKey
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.nano import BlockManager, SamplingParams, Scheduler, SchedulerConfig
from trtkv.nano import Sequence as NanoSequence
from trtkv.pools.capacity_estimation import group_layers_by_window_size
from trtkv.records.config import KvCacheConfig, ModelConfig
from trtkv.records.config import SchedulerConfig as SchedulerSettings
from trtkv.records.llm_request import to_extra_id_array
from trtkv.records.token_array import to_token_array
from trtkv.replay.bounds.bounds import compute_bounds
from trtkv.replay.bounds.capacity_curve import model_curve
from trtkv.replay.bounds.simple_caches import ACCESS_POLICIES
from trtkv.replay.config import ReplayConfig
from trtkv.replay.scheduler_loop.loop_config import LoopConfig
from trtkv.replay.scheduler_loop.step_time import StepTimeModel
from trtkv.resource_manager import KVCacheResourceManager, ResourceManager
from trtkv.resource_manager.dummy_requests import make_dummy_request
from trtkv.scheduler.capacity_scheduler import CapacityScheduler
from trtkv.scheduler.micro_batch_scheduler import MicroBatchScheduler
from trtkv.scheduler.scheduler_config import ContextChunkingConfig
from trtkv.sizing.cache_plan import SizingOptions, make_cache_plan
from trtkv.sizing.memory_size import parse_memory_size
from trtkv.traces.block_names import checked_block_size
from trtkv.traces.generate.workload import generate_workload
from trtkv.traces.rows import json_rows
from trtkv.traces.trace_stream import TraceLines

NO_INTEGERS: Final = (1.5, 2.0, nan, inf, "3", b"3", [1], (), True, np.float64(2), np.bool_(True), 1j)
NO_NAMES: Final = ("x", "", 99, -1, 1.5, nan, None, [1])
NO_STATES: Final = ("x", "", 99, -2, 1.5, nan, None, [1])
TOO_LARGE: Final = (2**31, 2**63)


def below(least: int, *more: object) -> tuple[object, ...]:
    """What is no integer, and integers below ``least``."""
    return (*NO_INTEGERS, least - 1, -(2**31), *more)


POSITIVE: Final = below(1, None)
NOT_NEGATIVE: Final = below(0, None)


class Case(NamedTuple):
    """A call with a place for a wrong value."""

    name: str
    call: Callable[[Any], object]
    wrong: Sequence[object]


def manager_with(**options: Any) -> KVCacheManager:
    """A manager of one layer and one window of 64 tokens but for the options."""
    settings: dict[str, Any] = {
        "num_kv_heads_per_layer": [1],
        "size_per_head": 1,
        "tokens_per_block": 4,
        "blocks_per_window": {64: (8, 0)},
        "max_num_sequences": 4,
        "max_beam_width": 1,
        "max_attention_window_vec": [64],
        "max_sequence_length": 64,
    }
    return KVCacheManager.from_arguments(**(settings | options))


def request_with(**options: Any) -> LlmRequest:
    return LlmRequest(**({"request_id": 1, "tokens": [1, 2, 3], "max_new_tokens": 4} | options))


def option_cases(make: Callable[..., object], name: str, **wrong: Sequence[object]) -> list[Case]:
    """A case for each option of a constructor."""
    return [
        Case(f"{name}({option})", lambda value, option=option: make(**{option: value}), values)
        for option, values in wrong.items()
    ]


CONSTRUCTORS: Final = [
    *option_cases(
        request_with,
        "LlmRequest",
        request_id=(*NO_INTEGERS, None),
        tokens=([1.5], [nan], ["a"], [None], [2**31], [-(2**31) - 1], "abc", 5, None, b"abcd", bytearray(4), [[1]]),
        max_new_tokens=(*NOT_NEGATIVE, *TOO_LARGE),
        beam_width=POSITIVE,
        input_token_extra_ids=([1], [1, 2, 3, 4], [1, 2, -1], [1, 2, 2**64], [1, 2, 1.5], b"12345678", 5),
        lora_task_id=(*below(0), 2**64),
        cache_salt=(5, b"salt", 1.5, ["a"], True),
        encoder_tokens=([1.5], ["a"], [2**31], 5, b"abcd"),
        encoder_output_len=below(0),
        num_draft_tokens=NOT_NEGATIVE,
        state=NO_STATES,
    ),
    Case("to_token_array", to_token_array, ([nan], b"abcd", "a", None, [2**31])),
    Case("to_extra_id_array", to_extra_id_array, ([-1], b"abcdefgh", None, [1.5])),
    *option_cases(
        lambda **options: TokenRangeRetentionConfig(**({"token_start": 0, "token_end": 4} | options)),
        "TokenRangeRetentionConfig",
        token_start=(*NO_INTEGERS, None),
        token_end=NO_INTEGERS,
        priority=below(0, 101, None),
        duration_ms=below(0),
    ),
    *option_cases(
        KvCacheRetentionConfig,
        "KvCacheRetentionConfig",
        token_range_retention_configs=([5], ["a"], [(0, 4)]),
        decode_retention_priority=below(0, 101, None),
        decode_duration_ms=below(0),
        transfer_mode=NO_NAMES,
        directory=(5, None, b"x"),
    ),
    *option_cases(
        lambda **options: KVCacheEventManager(**({"max_kv_event_entries": 4} | options)),
        "KVCacheEventManager",
        max_kv_event_entries=POSITIVE,
        attention_dp_rank=below(0),
    ),
    *option_cases(
        LinearAttentionMetadata,
        "LinearAttentionMetadata",
        linear_layer_indices=([1.5], [-1], ["a"], [True]),
        cache_type=(*NO_INTEGERS, None),
        all_recurrent_states_bytes=(*NO_INTEGERS, None),
        states_snapshot_interval=(*NO_INTEGERS, None),
        num_placeholder_blocks=NO_INTEGERS,
    ),
    *option_cases(
        manager_with,
        "KVCacheManager",
        num_kv_heads_per_layer=([0], [-1], [1.5], [nan], ["a"], [True]),
        size_per_head=POSITIVE,
        tokens_per_block=(*POSITIVE, *TOO_LARGE),
        blocks_per_window=(
            *({64: (number, 0)} for number in (0, -1, 1.5, nan, "8", True, 2**31)),
            *({64: (8, number)} for number in (-1, 1.5, nan, "8", True, 2**31)),
            {64: 8},
            {64: ()},
            {64: (8, 0, 0)},
        ),
        max_num_sequences=POSITIVE,
        max_beam_width=POSITIVE,
        max_attention_window_vec=([0], [-1], [1.5], [nan], ["a"], [True]),
        dtype=NO_NAMES,
        sink_token_length=(1, -1),
        max_sequence_length=(*POSITIVE, *TOO_LARGE),
        chunk_size=below(1),
        cache_type=NO_NAMES,
        secondary_offload_min_priority=below(0, 101),
    ),
    *option_cases(
        KvCacheConfig,
        "KvCacheConfig",
        max_tokens=(0, -1, 1.5, nan, "x"),
        max_attention_window=((), (0,), (-1,), (1.5,), ("x",)),
        sink_token_length=(4, "x"),
        free_gpu_memory_fraction=(0, 1, -0.5, nan, inf, "x"),
        host_cache_size=(-1, 1.5, "x"),
        cross_kv_cache_fraction=(0, 1, nan),
        secondary_offload_min_priority=(-1, 101, 1.5),
        event_buffer_max_size=(-1, 1.5, "x"),
        dtype=("x", "", 5, None),
        tokens_per_block=(0, -1, 1.5, nan, "x", None),
        use_kv_cache_manager_v2=(True, "x"),
        no_such_option=(1,),
    ),
    *option_cases(
        lambda **options: ModelConfig(
            **({"num_layers": 2, "num_kv_heads_per_layer": 1, "size_per_head": 8, "max_sequence_length": 64} | options)
        ),
        "ModelConfig",
        num_layers=(0, -1, 1.5, "x", None),
        num_kv_heads_per_layer=(0, -1, 1.5, "x", (1,), (1, 0, 1)),
        size_per_head=(0, -1, 1.5),
        max_sequence_length=(0, -1, 1.5),
        dtype=("x", 5, None),
        cache_type=("x", 5, None),
        tp_size=(0, -1),
        linear_layer_indices=((2,), (-1,), (0,)),
    ),
    *option_cases(
        SchedulerSettings,
        "SchedulerConfig",
        capacity_scheduler_policy=("x", 5, None),
        max_batch_size=(0, -1, 1.5, nan, "x", None),
        max_num_tokens=(0, -1, 1.5),
        context_chunking_policy=("x", None),
        chunk_unit_size=(0, -1),
    ),
    *option_cases(
        SamplingParams,
        "nano.SamplingParams",
        temperature=(1e-11, -1, nan, inf, "1", None, True, [1]),
        max_tokens=POSITIVE,
    ),
    *option_cases(
        lambda **options: SchedulerConfig(**({"num_kvcache_blocks": 4} | options)),
        "nano.SchedulerConfig",
        num_kvcache_blocks=POSITIVE,
        kvcache_block_size=POSITIVE,
        max_num_seqs=POSITIVE,
        max_num_batched_tokens=POSITIVE,
        eos=(*NO_INTEGERS, None),
    ),
    *option_cases(
        lambda **options: NanoSequence(**({"token_ids": [1]} | options)),
        "nano.Sequence",
        token_ids=([1.5], ["a"], [2**63], "abc", 5, None, b"abcdefgh", [nan]),
        sampling_params=("x", 5),
        block_size=below(1),
        seq_id=NO_INTEGERS,
    ),
    *option_cases(
        lambda **options: BlockManager(**({"num_blocks": 4, "block_size": 4} | options)),
        "nano.BlockManager",
        num_blocks=POSITIVE,
        block_size=POSITIVE,
    ),
    Case(
        "nano.BlockManager.compute_hash(prefix)", lambda value: BlockManager.compute_hash([1], value), below(-1, 2**64)
    ),
    *option_cases(
        lambda **options: CapacityScheduler(**({"max_num_requests": 4, "policy": "max_utilization"} | options)),
        "CapacityScheduler",
        max_num_requests=POSITIVE,
        policy=NO_NAMES,
        no_schedule_until_state=NO_STATES,
        no_schedule_after_state=NO_STATES,
    ),
    *option_cases(
        MicroBatchScheduler,
        "MicroBatchScheduler",
        ctx_chunk_config=(5, "x"),
        max_context_length=below(1),
        no_schedule_until_state=NO_STATES,
        no_schedule_after_state=NO_STATES,
        reuse_discount=tuple(value for value in NO_NAMES if value is not None),
    ),
    *option_cases(
        lambda **options: ContextChunkingConfig(**({"policy": "equal_progress", "chunk_unit_size": 4} | options)),
        "ContextChunkingConfig",
        policy=NO_NAMES,
        chunk_unit_size=POSITIVE,
    ),
    *option_cases(
        lambda **options: KVCacheResourceManager(make_kv_cache_manager(), **options),
        "KVCacheResourceManager",
        max_num_tokens=below(1),
        num_extra_kv_tokens=below(0),
        draft_token_reserve=below(0),
    ),
    Case("ResourceManager", lambda value: ResourceManager({value: None}), ("x", 5)),  # type: ignore[dict-item]
    Case("make_dummy_request(num_tokens)", lambda value: make_dummy_request(1, value, False, 1, 0), POSITIVE),
    Case("make_dummy_request(beam_width)", lambda value: make_dummy_request(1, 2, False, value, 0), POSITIVE),
    Case("make_dummy_request(encoder)", lambda value: make_dummy_request(1, 2, False, 1, value), NOT_NEGATIVE),
    *option_cases(
        ReplayConfig,
        "ReplayConfig",
        tokens_per_block=POSITIVE,
        capacity_tokens=below(32),
        host_tokens=NOT_NEGATIVE,
        live=POSITIVE,
        windows=((), (0,), (-1,), (1.5,), ("x",), (nan,)),
        min_sequence_length=NOT_NEGATIVE,
    ),
    *option_cases(
        LoopConfig,
        "LoopConfig",
        policy=NO_NAMES,
        max_batch_size=POSITIVE,
        max_num_tokens=POSITIVE,
        arrivals=NO_NAMES,
    ),
    *option_cases(
        StepTimeModel,
        "StepTimeModel",
        base_ns=(-1, nan, inf, "1", None, True),
        cached_ns=(-1, nan, inf, "1", None, True),
    ),
    Case("generate_workload(kind)", lambda value: generate_workload(value, 1, Random(1)), ("x", None, 5)),
    Case("generate_workload(num)", lambda value: generate_workload("chat", value, Random(1)), NOT_NEGATIVE),
    Case("generate_workload(block_size)", lambda value: generate_workload("chat", 1, Random(1), value), POSITIVE),
    *option_cases(
        lambda **options: make_cache_plan(
            shape_of("llama-3.1-8b"), SizingOptions(**({"memory_bytes": 2**30} | options))
        ),
        "SizingOptions",
        memory_bytes=POSITIVE,
        host_memory_bytes=NOT_NEGATIVE,
        kv_dtype=("x", None, 5),
        tokens_per_block=POSITIVE,
        max_sequence_length=below(1),
        tp_size=POSITIVE,
        windows=((0,), (-1,), (1.5,), ("x",)),
        max_batch_size=POSITIVE,
    ),
    Case("parse_memory_size", parse_memory_size, (5, None, "x", "", "1", "1XB", "-1GiB", "nanGiB", b"1GiB")),
    *option_cases(
        lambda **options: KVCacheManager.calculate_max_num_blocks(
            **(
                {
                    "dtype": DataType.HALF,
                    "num_kv_heads_per_layer": [1],
                    "size_per_head": 8,
                    "tokens_per_block": 4,
                    "window_size_to_layers": {64: [0]},
                    "allotted_primary_mem_bytes": 4096,
                    "allotted_secondary_mem_bytes": 0,
                    "kv_factor": 2,
                }
                | options
            )
        ),
        "calculate_max_num_blocks",
        tokens_per_block=POSITIVE,
        allotted_primary_mem_bytes=(*NO_INTEGERS, None),
        allotted_secondary_mem_bytes=(*NO_INTEGERS, None),
        extra_cost_memory=(*NO_INTEGERS, None, 4097),
        max_batch_size=NOT_NEGATIVE,
        max_tokens=NO_INTEGERS,
    ),
    *(
        Case(
            f"calculate_max_block_requirements({position})",
            lambda value, position=position: KVCacheManager.calculate_max_block_requirements(
                *(value if index == position else number for index, number in enumerate((8, 4, 0, 64, 1, 4)))
            ),
            wrong,
        )
        for position, wrong in enumerate(
            ((*NO_INTEGERS, None),) * 2 + (NOT_NEGATIVE, (*NO_INTEGERS, None), POSITIVE, POSITIVE)
        )
    ),
    Case("group_layers_by_window_size", lambda value: group_layers_by_window_size([64], value), NOT_NEGATIVE),
    Case("VllmEventTranslator(tokens)", lambda value: VllmEventTranslator(value, [64]), POSITIVE),
    Case("get_events", lambda value: KVCacheEventManager(4).get_events(value), (-1, nan, inf, "1", True, [1])),
    *(
        Case(f"{name}(capacity)", lambda value, policy=policy: policy([[1]], value), POSITIVE)
        for name, policy in ACCESS_POLICIES.items()
    ),
    Case("model_curve", lambda value: model_curve([], value), POSITIVE),
    Case("model_curve(points)", lambda value: model_curve([], 4, num_points=value), POSITIVE),
    *option_cases(
        lambda **options: compute_bounds([], **({"tokens_per_block": 4, "capacity_tokens": 16} | options)),
        "compute_bounds",
        tokens_per_block=POSITIVE,
        capacity_tokens=NO_INTEGERS,
        host_tokens=NOT_NEGATIVE,
        live=POSITIVE,
    ),
    *option_cases(
        lambda **options: run_nano([], **({"tokens_per_block": 4, "capacity_tokens": 16, "live": 1} | options)),
        "run_nano",
        tokens_per_block=POSITIVE,
        capacity_tokens=(*NO_INTEGERS, 3, 0, -1),
        live=POSITIVE,
    ),
    *option_cases(lambda **options: json_rows(TraceLines(BytesIO(), "t"), **options), "json_rows", limit=below(0)),
    Case("checked_block_size", checked_block_size, POSITIVE),
    Case("BlockKey", lambda value: BlockKey(value).packed, ([1.5], ["a"])),
]


def check_refused(call: Callable[[Any], object], value: object) -> None:
    """The call raises an error of this package that is a ValueError; its text has the value."""
    with pytest.raises((ValueError, TypeError) if IS_COMPILED else ValueError) as caught:
        call(value)
    if isinstance(caught.value, TypeError):
        return  # compiled functions look at types before their first line
    assert isinstance(caught.value, TrtkvError), repr(caught.value)
    assert names_value(str(caught.value), value), f"{caught.value} does not show {value!r}"


def refusable(values: Sequence[object]) -> list[object]:
    """The values that can be refused: a compiled function has turned a bool into an integer before it starts."""
    return [value for value in values if not (IS_COMPILED and "True" in repr(value))]


def names_value(text: str, value: object) -> bool:
    """Whether the value, or for a container what is wrong in it, is in the text."""
    if isinstance(value, dict):
        value = next(iter(value.values()))
    parts = list(value) if isinstance(value, list | tuple | set) else [value]
    shown = [value, *parts]
    return any(repr(part) in text or (str(part) and str(part) in text) for part in shown) or bool(
        re.search(
            r"32-bit|64-bit|64 bits|extra ids|empty|for [02] beams|2 layers|linear_layer_indices|no attention window",
            text,
        )
    )


def case_ids(cases: Sequence[Case]) -> list[str]:
    return [case.name for case in cases]


@pytest.mark.parametrize("case", CONSTRUCTORS, ids=case_ids(CONSTRUCTORS))
def test_constructor_refuses_wrong_values(case: Case) -> None:
    for value in refusable(case.wrong):
        check_refused(case.call, value)


REQUEST_CALLS: Final = [
    Case("set_state", lambda request: request.set_state, NO_STATES),
    Case("set_context_current_position", lambda request: request.set_context_current_position, NOT_NEGATIVE),
    Case("set_context_chunk_size", lambda request: request.set_context_chunk_size, NOT_NEGATIVE),
    Case("set_num_draft_tokens", lambda request: request.set_num_draft_tokens, NOT_NEGATIVE),
    Case("discard_draft_tokens", lambda request: request.discard_draft_tokens, (*NOT_NEGATIVE, 3)),
    Case("set_estimated_reusable_tokens", lambda request: request.set_estimated_reusable_tokens, NOT_NEGATIVE),
    Case("pause", lambda request: request.pause, NOT_NEGATIVE),
    Case("add_new_token", lambda request: request.add_new_token, (1.5, nan, "a", None, 2**31, [1])),
    Case("add_new_token(beam)", lambda request: lambda beam: request.add_new_token(1, beam), (1, -1, "a", nan, [1])),
    Case("add_new_tokens", lambda request: request.add_new_tokens, ([[1.5]], [[2**31]], [[1], [2]], [b"abcd"])),
    Case("set_generated_tokens", lambda request: request.set_generated_tokens, ([[1.5]], [[2**31]], [[1], [2]], [])),
    Case("get_tokens", lambda request: request.get_tokens, (1, -1, 1.5, "a")),
    Case("get_num_tokens", lambda request: request.get_num_tokens, (1, -1, 1.5, "a")),
    Case(
        "set_prepopulated_prompt_len",
        lambda request: lambda length: request.set_prepopulated_prompt_len(length, 4),
        (8, 2**31, *NO_INTEGERS, None),
    ),
    Case(
        "set_prepopulated_prompt_len(tokens_per_block)",
        lambda request: lambda size: request.set_prepopulated_prompt_len(2, size),
        POSITIVE,
    ),
]


@pytest.mark.parametrize("case", REQUEST_CALLS, ids=case_ids(REQUEST_CALLS))
def test_request_refuses_wrong_values_and_stays_as_it_was(case: Case) -> None:
    request = make_request(1, 8, num_draft_tokens=2)

    def state() -> list[object]:
        values = [getattr(request, name) for name in LlmRequest.__slots__]
        return [
            list(map(list, value)) if name == "_tokens" else value
            for name, value in zip(LlmRequest.__slots__, values, strict=True)
        ]

    before = state()
    for value in refusable(case.wrong):
        check_refused(case.call(request), value)
        assert state() == before, value


UNKNOWN: Final = (99, -1, "x", None, 1.5)
"""Ids of no request, and windows of no manager."""

MANAGER_CALLS: Final = [
    Case("get_sequence", lambda manager: manager.get_sequence, UNKNOWN),
    Case("add_token", lambda manager: manager.add_token, UNKNOWN),
    Case("add_tokens", lambda manager: lambda value: manager.add_tokens([1, value]), UNKNOWN),
    Case("add_token_rounds(ids)", lambda manager: lambda value: manager.add_token_rounds([1, value], 3), UNKNOWN),
    Case("add_token_rounds(rounds)", lambda manager: lambda value: manager.add_token_rounds([1], value), NOT_NEGATIVE),
    Case("rewind_kv_cache", lambda manager: lambda value: manager.rewind_kv_cache(1, value), (*NOT_NEGATIVE, 99)),
    Case("pin_blocks", lambda manager: manager.pin_blocks, UNKNOWN),
    Case("unpin_blocks_by_id", lambda manager: lambda value: manager.unpin_blocks_by_id([value]), (99, -1, "x", None)),
    Case("truncate_blocks", lambda manager: lambda value: manager.truncate_blocks([1, 2, 3, 4], value), NOT_NEGATIVE),
    Case("truncate_blocks(tokens)", lambda manager: lambda value: manager.truncate_blocks(value, 0), ([1.5], b"abcd")),
    Case(
        "set_spec_decoding_budget",
        lambda manager: lambda value: manager.set_spec_decoding_budget(value, 0),
        NOT_NEGATIVE,
    ),
    Case(
        "set_spec_decoding_budget(reserve)",
        lambda manager: lambda value: manager.set_spec_decoding_budget(0, value),
        NOT_NEGATIVE,
    ),
    Case(
        "get_max_capacity_batch_size",
        lambda manager: lambda value: manager.get_max_capacity_batch_size(value, 1),
        POSITIVE,
    ),
    Case(
        "get_max_capacity_batch_size(output)",
        lambda manager: lambda value: manager.get_max_capacity_batch_size(1, value),
        NOT_NEGATIVE,
    ),
    Case("get_token_count", lambda manager: manager.get_token_count, UNKNOWN),
    Case("get_cache_block_ids", lambda manager: lambda value: manager.get_cache_block_ids(value, 64), UNKNOWN),
    Case("get_cache_block_ids(window)", lambda manager: lambda value: manager.get_cache_block_ids(1, value), UNKNOWN),
    Case(
        "get_batch_cache_block_ids",
        lambda manager: lambda value: manager.get_batch_cache_block_ids([1, value], 64),
        UNKNOWN,
    ),
    Case("get_last_block_id", lambda manager: manager.get_last_block_id, UNKNOWN),
    Case("scheduling_num_free_blocks", lambda manager: manager.scheduling_num_free_blocks, UNKNOWN),
    Case(
        "scheduling_has_free_blocks",
        lambda manager: lambda value: manager.scheduling_has_free_blocks(1, value),
        UNKNOWN,
    ),
    Case("verify_queue_integrity", lambda manager: manager.verify_queue_integrity, UNKNOWN),
    Case(
        "find_block_by_key(window)",
        lambda manager: lambda value: manager.find_blocks_in_reuse_tree_by_block_key(BlockKey([1]), value),
        UNKNOWN,
    ),
    Case(
        "needed_blocks(window)",
        lambda manager: lambda value: manager.get_needed_blocks_one_step(make_request(5), False, value),
        UNKNOWN,
    ),
    Case(
        "remaining_blocks(window)",
        lambda manager: lambda value: manager.get_remaining_blocks_to_completion(make_request(5), value),
        UNKNOWN,
    ),
    Case(
        "block_hashes(window)",
        lambda manager: lambda value: manager.commit_and_get_block_hashes_for_request(make_request(1), value),
        UNKNOWN,
    ),
    Case("store_new_block", lambda manager: lambda value: manager.store_new_block(make_request(value)), (99, -1)),
    Case(
        "store_blocks_for_reuse",
        lambda manager: lambda value: manager.store_blocks_for_reuse(1, make_request(value)),
        (99,),
    ),
    Case("remove_sequence", lambda manager: lambda value: manager.remove_sequence(1, make_request(value)), (99,)),
    Case(
        "add_sequence(known id)",
        lambda manager: lambda value: manager.add_sequence((value, 8, 1), make_request(value)),
        (1,),
    ),
    Case(
        "add_sequence(other id)",
        lambda manager: lambda value: manager.add_sequence((value, 8, 1), make_request(7)),
        (6, "x", None, 1.5),
    ),
    Case(
        "add_sequence(length)",
        lambda manager: lambda value: manager.add_sequence((7, value, 1), make_request(7)),
        (*POSITIVE, 99),
    ),
    Case(
        "add_sequence(beams)",
        lambda manager: lambda value: manager.add_sequence((7, 8, value), make_request(7)),
        (*POSITIVE, 5),
    ),
    Case(
        "add_sequence_batch(twice)",
        lambda manager: lambda value: manager.add_sequence_batch([(value, 8, 1)] * 2, [make_request(value)] * 2),
        (7,),
    ),
    Case(
        "add_sequence_batch(counts)",
        lambda manager: lambda value: manager.add_sequence_batch([(7, 8, 1)], [make_request(7)] * value),
        (0, 2),
    ),
    Case(
        "add_sequence(no tokens)",
        lambda manager: lambda value: manager.add_sequence((7, value, 1), make_request(7, [])),
        (0, 1),
    ),
]


@pytest.mark.parametrize("case", MANAGER_CALLS, ids=case_ids(MANAGER_CALLS))
def test_manager_refuses_wrong_values_and_stays_as_it_was(case: Case) -> None:
    events = KVCacheEventManager(64)
    manager = make_kv_cache_manager(event_manager=events)
    requests = [prefill(manager, make_request(1, 10)), add(manager, make_request(2, 5))]
    for value in refusable(case.wrong):
        before = take_snapshot(manager, requests, events)
        check_refused(case.call(manager), value)
        assert take_snapshot(manager, requests, events) == before, value


@pytest.mark.pure
def test_numpy_integers_are_integers() -> None:
    request = LlmRequest(np.int64(3), np.arange(4), np.int32(5), beam_width=np.int8(1))  # type: ignore[arg-type]
    assert (request.request_id, request.max_new_tokens, request.beam_width) == (3, 5, 1)
    assert {type(value) for value in (request.request_id, request.max_new_tokens, request.beam_width)} == {int}
    manager = manager_with(tokens_per_block=np.int32(4), blocks_per_window={64: (np.int64(8), 0)})
    manager.add_sequence((3, np.int64(4), 1), request)  # type: ignore[arg-type]
    assert manager.get_token_count(3) == 4


DUMMIES: Final = [
    Case(
        "lengths", lambda resources: lambda value: resources.add_dummy_requests([8, 9], token_nums=[2, value]), POSITIVE
    ),
    Case("count", lambda resources: lambda value: resources.add_dummy_requests([8, 9], token_nums=[2] * value), (1, 3)),
    Case(
        "drafts",
        lambda resources: lambda value: resources.add_dummy_requests([8], max_num_draft_tokens=value),
        NOT_NEGATIVE,
    ),
    Case(
        "beams", lambda resources: lambda value: resources.add_dummy_requests([8], max_beam_width=value), (*POSITIVE, 5)
    ),
    Case("ids", lambda resources: lambda value: resources.add_dummy_requests([8, value]), (8, 1, "x", None, 1.5)),
    Case("page table(id)", lambda resources: lambda value: resources.get_batch_cache_indices([value]), UNKNOWN),
    Case(
        "page table(window)",
        lambda resources: lambda value: resources.get_batch_cache_indices([1], window_size=value),
        (99, -1, "x", 1.5),
    ),
    Case(
        "page table(layer)",
        lambda resources: lambda value: resources.get_batch_cache_indices([1], value),
        (1, -1, "x", 1.5),
    ),
    Case(
        "page table(beams)",
        lambda resources: lambda value: resources.get_batch_cache_indices([1], beam_width=value),
        (0, 2, -1),
    ),
    Case(
        "page table(lengths)",
        lambda resources: lambda value: resources.get_batch_cache_indices([1], num_blocks_per_seq=[value]),
        NOT_NEGATIVE,
    ),
    Case(
        "page table(rows)",
        lambda resources: lambda value: resources.get_batch_cache_indices([1], num_blocks_per_seq=[1] * value),
        (0, 2),
    ),
    Case("blocks", lambda resources: resources.get_num_kv_blocks, NOT_NEGATIVE),
    Case("available tokens", lambda resources: resources.get_num_available_tokens, (*NO_INTEGERS, None)),
    Case(
        "rewind", lambda resources: lambda value: resources.rewind_kv_cache(make_request(1), value), (*NOT_NEGATIVE, 99)
    ),
    Case("unpin", lambda resources: lambda value: resources.unpin_blocks_by_id([value]), (99, -1, "x", None)),
    Case("probe", lambda resources: resources.probe_prefix_match_length, ([1.5], ["a"], b"abcd", 5)),
    Case("probe(lora)", lambda resources: lambda value: resources.probe_prefix_match_length([1], value), below(0)),
]


@pytest.mark.parametrize("case", DUMMIES, ids=case_ids(DUMMIES))
def test_resource_manager_refuses_wrong_values_and_stays_as_it_was(case: Case) -> None:
    manager = make_kv_cache_manager()
    resources = KVCacheResourceManager(manager)
    requests = [prefill(manager, make_request(1, 10))]
    for value in refusable(case.wrong):
        before = take_snapshot(manager, requests)
        check_refused(case.call(resources), value)
        assert take_snapshot(manager, requests) == before, value


def test_a_sequence_that_runs_is_not_added_again() -> None:
    scheduler = Scheduler(SchedulerConfig(num_kvcache_blocks=4, kvcache_block_size=4))
    sequence = NanoSequence([1, 2, 3], block_size=4)
    scheduler.add(sequence)
    scheduler.schedule()
    with pytest.raises(InvalidInputError, match=f"sequence {sequence.seq_id} is RUNNING; add each sequence once"):
        scheduler.add(sequence)
    assert (len(scheduler.waiting), len(scheduler.running)) == (0, 1)
