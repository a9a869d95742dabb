"""trtkv.bindings: the very objects come back, errors are those of the bindings, the mode is a switch."""

from __future__ import annotations

import datetime as dt
import gc
import importlib.util
import json
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pools of the bindings are tensors")

from trtkv import bindings
from trtkv.bindings import executor
from trtkv.bindings.internal import algorithms, batch_manager, runtime, testing
from trtkv.errors import InvalidInputError, OutOfBlocksError, UnknownIdError
from trtkv.records.llm_request import LlmRequest as CoreLlmRequest

SHARED = Path(__file__).resolve().parents[3] / "shared"


@pytest.fixture(autouse=True)
def default_mode():
    yield
    bindings.configure(compatibility=True, allocate=True, device="cpu")


def make_manager(blocks: int = 8, **options):
    return batch_manager.KVCacheManager(
        num_kv_heads_per_layer=[2, 2],
        size_per_head=8,
        tokens_per_block=4,
        blocks_per_window={32: (blocks, options.pop("host_blocks", 0))},
        max_num_sequences=4,
        max_beam_width=1,
        max_attention_window_vec=[32],
        dtype=bindings.DataType.HALF,
        sink_token_length=0,
        stream=options.pop("stream", 0),
        max_sequence_length=32,
        chunk_size=32,
        **{"enable_block_reuse": True, **options},
    )


def make_request(request_id: int, tokens=range(9), cls=batch_manager.LlmRequest, **options):
    return cls(request_id, 4, list(tokens), bindings.SamplingConfig(1), False, **options)


def admit(manager, request) -> None:
    manager.add_sequence_batch([(request.request_id, request.prompt_len, 1)], [request])


def test_all_call_sequences_of_the_reference_pass() -> None:
    tool, calls = SHARED / "tools" / "run_binding_calls.py", SHARED / "reference" / "bindings_calls.json"
    if not tool.exists():
        pytest.skip("the reference call sequences are not beside this checkout")
    spec = importlib.util.spec_from_file_location("run_binding_calls", tool)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sequences = json.loads(calls.read_text())["sequences"]
    assert len(sequences) >= 50
    assert {s["id"]: p for s in sequences if (p := module.run("trtkv.bindings", s))} == {}


class Request(batch_manager.LlmRequest):
    """As llm_request.py does it: a subclass with attributes of its own."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.py_note = f"note {self.request_id}"


def test_schedulers_hand_back_the_very_objects() -> None:
    manager = make_manager()
    requests = [make_request(i, [100 * i + t for t in range(9)], Request) for i in range(3)]
    capacity = algorithms.CapacityScheduler(4, executor.CapacitySchedulerPolicy.MAX_UTILIZATION, True)
    fitting, waiting, paused = capacity(requests, manager)
    assert [r is s for r, s in zip(fitting, requests, strict=False)] == [True, True]
    assert (len(fitting), waiting, paused) == (2, [], [])
    contexts, generation = algorithms.MicroBatchScheduler()(fitting, batch_manager.ReqIdsSet(), 8, None)
    assert contexts[0] is requests[0]
    assert (contexts[0].py_note, generation) == ("note 0", [])


def test_a_wrapper_with_impl_is_taken_for_its_manager() -> None:
    class Wrapper:
        impl = make_manager()

    scheduler = algorithms.CapacityScheduler(4, executor.CapacitySchedulerPolicy.GUARANTEED_NO_EVICT, True)
    request = make_request(1)
    assert scheduler([request], Wrapper())[0] == [request]
    with pytest.raises(TypeError, match="expected a KVCacheManager"):
        scheduler([request], object())


def test_without_prefix_awareness_a_same_prefix_does_not_wait() -> None:
    def schedule(**options) -> int:
        scheduler = algorithms.CapacityScheduler(
            4, executor.CapacitySchedulerPolicy.GUARANTEED_NO_EVICT, True, **options
        )
        return len(scheduler([make_request(1), make_request(2)], make_manager(blocks=16))[0])

    assert (schedule(), schedule(enable_prefix_aware_scheduling=False)) == (1, 2)


def test_the_connector_is_asked_with_the_callers_object() -> None:
    class Connector(batch_manager.KvCacheConnectorManager):
        def __init__(self) -> None:
            super().__init__()
            self.asked = []

        def get_num_new_matched_tokens(self, request, num_computed_tokens):
            self.asked.append((request, num_computed_tokens))
            return 0

    connector = Connector()
    request = make_request(1, cls=Request)
    admit(make_manager(kv_connector_manager=connector), request)
    assert connector.asked[0][0] is request


def test_a_request_is_freed_without_the_collector() -> None:
    gc.disable()
    try:
        request = make_request(1)
        admitted = make_manager()
        admit(admitted, request)
        admitted.remove_sequence(1, request, False)
        gone = weakref.ref(request)
        del request
        assert gone() is None
    finally:
        gc.enable()


def test_errors_are_those_of_the_bindings_and_keep_their_cause() -> None:
    manager = make_manager(blocks=1)
    with pytest.raises(RuntimeError) as room:
        admit(manager, make_request(1))
    assert isinstance(room.value.__cause__, OutOfBlocksError)
    with pytest.raises(IndexError) as missing:
        manager.get_token_count(99)
    assert isinstance(missing.value.__cause__, UnknownIdError)
    with pytest.raises(RuntimeError) as wrong:
        make_manager(blocks=0)
    assert isinstance(wrong.value.__cause__, InvalidInputError)
    with pytest.raises(TypeError, match="expected a LlmRequest"):
        manager.store_context_blocks(CoreLlmRequest(1, [1]))
    with pytest.raises(TypeError, match="stream must be the integer"):
        make_manager(stream=None)
    with pytest.raises(TypeError, match="unknown arguments compatibility"):
        make_manager(compatibility=False)
    with pytest.raises(ValueError, match="overlaps"):
        executor.KvCacheRetentionConfig(
            [executor.TokenRangeRetentionConfig(0, 8, 50), executor.TokenRangeRetentionConfig(4, None, 50)]
        )


def test_plain_mode_stores_nothing_that_was_not_computed() -> None:
    found = []
    for compatibility in (True, False):
        bindings.configure(compatibility=compatibility)
        manager = make_manager()
        assert manager.core.compatibility is compatibility
        first = make_request(1)
        admit(manager, first)
        manager.remove_sequence(1, first, False)
        second = make_request(2)
        admit(manager, second)
        found.append(second.prepopulated_prompt_len)
    assert found == [8, 0]


def test_switches_are_checked() -> None:
    with pytest.raises(InvalidInputError, match="compatibility is 'yes'"):
        bindings.configure(compatibility="yes")
    assert bindings.configure().allocate is True


def test_a_copy_is_a_request_of_its_own() -> None:
    request = make_request(1, draft_tokens=[7, 8], end_id=2)
    request.py_mine = 1
    copied = batch_manager.LlmRequest(request)
    copied.add_new_token(5, 0)
    copied.discard_draft_tokens(1)
    assert (copied.get_num_tokens(0), request.get_num_tokens(0)) == (10, 9)
    assert (copied.draft_tokens, request.draft_tokens) == ([7], [7, 8])
    assert copied.end_id == 2
    assert not hasattr(copied, "py_mine")
    child = request.create_child_request(11)
    assert (child.request_id, child.parent_request_id, child.is_child) == (11, 1, True)
    assert child.sampling_config.random_seed != request.sampling_config.random_seed


def test_drafts_dropped_by_a_scheduler_are_dropped_outside() -> None:
    request = make_request(1, draft_tokens=[7, 8, 9])
    request.core.discard_draft_tokens(2)
    assert request.draft_tokens == [7]
    request.core.discard_draft_tokens(1)
    assert request.draft_tokens is None
    with pytest.raises(RuntimeError):
        request.discard_draft_tokens(1)


def test_a_manager_without_memory_keeps_shapes() -> None:
    shapes = []
    for allocate in (True, False):
        bindings.configure(allocate=allocate)
        manager = make_manager(host_blocks=2)
        manager.allocate_pools(False)
        data = manager.get_primary_pool_data(1)
        shapes.append((tuple(data.shape), data.dtype, tuple(manager.get_block_pool_pointers().shape)))
        assert (data.device.type == "meta") is not allocate
        assert manager.get_block_scale_pool_pointers().numel() == 0
        manager.release_pools()
        manager.release_pools()
    assert shapes[0] == shapes[1]


def test_only_layers_of_the_mask_keep_index_keys() -> None:
    manager = make_manager(
        enable_indexer_k_cache=True, indexer_k_cache_index_head_dim=128, indexer_k_cache_layer_mask=[True, False]
    )
    manager.allocate_pools(False)
    assert manager.get_indexer_k_cache_pool_data(0) is not None
    assert manager.get_indexer_k_cache_pool_data(1) is None
    assert manager.get_indexer_k_cache_pool().shape[:2] == (8, 1)
    with pytest.raises(RuntimeError, match="layer mask of index keys has 1 entries for 2 layers"):
        make_manager(enable_indexer_k_cache=True, indexer_k_cache_layer_mask=[True])


def test_slots_are_told_for_device_blocks_only() -> None:
    manager = make_manager(blocks=3, host_blocks=4)
    for request_id in range(3):
        request = make_request(request_id, [100 * request_id + t for t in range(9)])
        admit(manager, request)
        manager.remove_sequence(request_id, request, False)
    on_device, on_host = [], []
    for block in manager.core.block_manager.window_block_managers[32].block_objects():
        (on_device if block.is_primary else on_host).append(block.block_id)
    assert sorted(manager.get_memory_pool_block_indices(on_device, 32)) == [0, 1, 2]
    with pytest.raises(RuntimeError, match="not in device memory"):
        manager.get_memory_pool_block_indices(on_host, 32)


def test_durations_are_timedeltas_or_seconds() -> None:
    entry = executor.TokenRangeRetentionConfig(0, None, 50, 1.5)
    assert entry.duration_ms == dt.timedelta(milliseconds=1500)
    with pytest.raises(TypeError, match="timedelta or a float of seconds"):
        executor.TokenRangeRetentionConfig(0, None, 50, 1500)


def test_allocate_kv_cache_gives_a_step_its_blocks() -> None:
    manager, request = make_manager(), make_request(1, draft_tokens=[5])
    allocate = algorithms.AllocateKvCache()
    allocate(manager, [request], [], None)
    assert manager.get_token_count(1) == 10
    testing.simulate_prefill_completion_only_use_for_testing(request)
    assert request.context_remaining_length == 0
    allocate(manager, [], [request], None)
    assert (manager.get_token_count(1), allocate.name()) == (12, "AllocateKvCache")


def test_slots_of_sequences_are_given_lowest_first() -> None:
    slots = batch_manager.SequenceSlotManager(2, 0)
    assert [slots.get_sequence_slot(True, i) for i in (7, 8, 9)] == [0, 1, None]
    slots.free_sequence_slot(7)
    assert (slots.get_sequence_slot(True, 9), slots.get_sequence_slot(False, 7)) == (0, None)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(AttributeError, match=r"tensorrt_llm\.bindings\.GptSession is not part of the KV cache"):
        _ = bindings.GptSession
    with pytest.raises(NotImplementedError, match="NoOpPeftCacheManager"):
        batch_manager.PeftCacheManager(None)
    with pytest.raises(NotImplementedError, match="create_response"):
        make_request(1).create_response()
    with pytest.raises(NotImplementedError, match="LogitsPostProcessor"):
        _ = algorithms.LogitsPostProcessor
    assert runtime.BufferManager(17, True).stream == 17


INSTALL = """
import sys, types
if {loaded}:
    sys.modules["tensorrt_llm.bindings"] = types.ModuleType("tensorrt_llm.bindings")
else:
    sys.modules["tensorrt_llm"] = types.ModuleType("tensorrt_llm")
import trtkv.bindings
trtkv.bindings.install()
trtkv.bindings.install()
import tensorrt_llm.bindings as b
from tensorrt_llm.bindings.internal.batch_manager import KVCacheManager
from tensorrt_llm.bindings.executor.kv_cache import KVCacheEvent
assert b is trtkv.bindings and KVCacheManager is b.internal.batch_manager.KVCacheManager
assert sys.modules["tensorrt_llm"].bindings is b
print("installed")
"""


@pytest.mark.parametrize("loaded", [False, True])
def test_install_puts_the_tree_under_the_import_names_unless_another_one_is_loaded(loaded: bool) -> None:
    program = INSTALL.format(loaded=loaded)
    root = Path(__file__).resolve().parents[2]
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=root)
    if loaded:
        assert "tensorrt_llm.bindings is loaded already" in result.stderr
    else:
        assert (result.stdout, result.stderr) == ("installed\n", "")
