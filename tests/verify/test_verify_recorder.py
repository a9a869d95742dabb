"""The recorder: what it writes is a program that verifies."""

from __future__ import annotations

import inspect
import io
import json
from pathlib import Path
from typing import Any

import pytest

from trtkv.errors import InvalidInputError, UnknownIdError
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.scheduler.capacity_scheduler import CapacityScheduler
from trtkv.scheduler.micro_batch_scheduler import MicroBatchScheduler
from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy, ChunkingPolicy, ContextChunkingConfig
from trtkv.verify.recorded_manager import RecordedManager
from trtkv.verify.recorded_request import RecordedRequest
from trtkv.verify.recorder import TraceRecorder
from trtkv.verify.report import VerificationReport
from trtkv.verify.runner import verify_program

CONFIG: dict[str, Any] = {
    "tokens_per_block": 4,
    "num_kv_heads_per_layer": [1],
    "blocks_per_window": [[32, 6, 2]],
    "max_attention_window_vec": [32],
    "max_sequence_length": 32,
    "event_buffer_max_size": 64,
}

# Methods that change neither blocks nor queues nor requests. A method named get_... is taken for one of them.
NOT_RECORDED_OF_MANAGERS = """
analyze_prefix_reuse probe_prefix_match_length scheduling_has_free_blocks scheduling_num_free_blocks
find_blocks_in_reuse_tree_by_block_key find_blocks_in_reuse_tree_by_block_keys copy_block_offsets verify_queue_integrity
allocate_pools
"""
# Reading methods, and the counters that only the manager calls.
NOT_RECORDED_OF_REQUESTS = """
get_tokens get_num_tokens has_reached_state check_prepopulated_prompt_len update_block_counters
"""


def methods_of(owner: type) -> dict[str, list[str]]:
    """Public methods that a class defines itself, with the names of their parameters."""
    functions = {name: value for name, value in vars(owner).items() if inspect.isfunction(value)}
    return {name: list(inspect.signature(f).parameters) for name, f in functions.items() if not name.startswith("_")}


def drive(recorder: TraceRecorder) -> None:
    """Serve some requests with shared prefixes until blocks are offloaded and found again."""
    manager = recorder.manager
    for request_id in range(6):
        tokens = [7, 7, 7, 7, request_id % 2, 8, 8, 8, request_id]
        request = recorder.new_request(request_id, tokens, 3, retention={"ranges": [[0, None, 40, 5]]})
        manager.get_remaining_blocks_to_completion(request, 32)
        manager.add_sequence_batch([(request_id, len(tokens), 1)], [request])
        request.set_context_current_position(len(tokens))
        request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
        manager.store_context_blocks(request)
        for token in range(3):
            manager.add_token(request_id)
            request.add_new_token(token)
        manager.rewind_kv_cache(request_id, 1)
        recorder.advance_clock_ms(3)
        manager.refresh_blocks()
        manager.remove_sequence(request_id, request)
        recorder.drop_request(request_id)


def drive_with_schedulers(recorder: TraceRecorder, policy: CapacitySchedulerPolicy) -> int:
    """An executor loop with arrivals, chunked prefill and pauses; returns the number of finished requests."""
    manager: Any = recorder.manager
    capacity_scheduler = CapacityScheduler(4, policy)
    micro_batch_scheduler = MicroBatchScheduler(ContextChunkingConfig(ChunkingPolicy.FIRST_COME_FIRST_SERVED, 4))
    active: list[LlmRequest] = []
    num_finished = 0
    for iteration in range(120):
        if iteration < 12:
            tokens = [7] * 4 + [iteration % 3] * (1 + iteration % 5)
            active.append(recorder.new_request(iteration, tokens, 6))
        fitting, _, paused = capacity_scheduler.schedule(active, manager)
        for request in paused:
            manager.remove_sequence(request.request_id, request)
            request.pause(32)
        contexts, generating = micro_batch_scheduler.schedule(fitting, set(), 4, 12)
        for request in generating:
            manager.add_token(request.request_id)
        for request in contexts:
            if request.request_id not in manager.sequences:
                manager.add_sequence((request.request_id, request.prompt_len, 1), request)
            request.move_to_next_context_chunk()
            manager.store_context_blocks(request)
            if request.context_remaining_length == 0:
                request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
        for request in [request for request in active if request.is_generation_in_progress_state]:
            request.add_new_token(iteration)
            if request.get_num_tokens() - request.prompt_len >= request.max_new_tokens:
                manager.remove_sequence(request.request_id, request)
                recorder.drop_request(request.request_id)
                active.remove(request)
                num_finished += 1
    return num_finished


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
def test_program_recorded_under_the_schedulers_verifies(tmp_path: Path, policy: CapacitySchedulerPolicy) -> None:
    path = tmp_path / "recorded.jsonl"
    with path.open("w") as stream:
        num_finished = drive_with_schedulers(TraceRecorder(stream, "recorded", CONFIG), policy)
    assert num_finished == 12
    result = verify_program(path)
    assert result.is_equal, VerificationReport([result]).notes()


def rows_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.pure
def test_every_method_that_changes_a_manager_is_recorded() -> None:
    recorded = methods_of(RecordedManager)
    methods = methods_of(KVCacheManager)
    readers = {name for name in methods if name.startswith("get_")}.union(NOT_RECORDED_OF_MANAGERS.split())
    assert recorded == {name: args for name, args in methods.items() if name in recorded or name not in readers}


def test_every_method_that_changes_a_request_is_recorded() -> None:
    unrecorded = NOT_RECORDED_OF_REQUESTS.split()
    changing = {name: args for name, args in methods_of(LlmRequest).items() if name not in unrecorded}
    assert methods_of(RecordedRequest) == changing


def test_recorded_program_verifies(tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    with path.open("w") as stream:
        recorder = TraceRecorder(stream, "recorded", CONFIG)
        drive(recorder)
        stats = recorder.manager.get_kv_cache_stats()
    assert stats.reused_blocks > 0
    result = verify_program(path)
    assert result.is_equal, VerificationReport([result]).notes()
    assert result.num_ops > 60


def test_changes_of_a_request_by_its_driver_are_written_once() -> None:
    stream = io.StringIO()
    recorder = TraceRecorder(stream, "recorded", CONFIG)
    request = recorder.new_request(1, [1, 2, 3])
    request.set_context_chunk_size(2)
    request.move_to_next_context_chunk()
    request.set_num_draft_tokens(5)
    request.discard_draft_tokens(2)
    request.add_new_tokens([[4, 5]])
    request.pause(10)
    rows = rows_of(stream)
    assert [(row["op"], row["args"]) for row in rows[3:]] == [
        ("set_context_chunk_size", {"id": 1, "size": 2}),
        ("move_to_next_context_chunk", {"id": 1}),
        ("set_num_draft_tokens", {"id": 1, "n": 5}),
        ("set_num_draft_tokens", {"id": 1, "n": 3}),
        ("add_new_tokens", {"id": 1, "tokens": [4]}),
        ("add_new_tokens", {"id": 1, "tokens": [5]}),
        ("pause", {"id": 1, "max_input_len": 10}),
    ]
    assert list(request.get_tokens()) == [1, 2, 3, 4, 5]
    assert request.prompt_len == 5


def test_changes_made_by_the_manager_belong_to_its_op() -> None:
    stream = io.StringIO()
    recorder = TraceRecorder(stream, "recorded", CONFIG)
    for request_id in range(2):
        request = recorder.new_request(request_id, [1, 2, 3, 4, 5])
        recorder.manager.add_sequence_batch([(request_id, 5, 1)], [request])
        recorder.manager.store_context_blocks(request)
    ops = [row["op"] for row in rows_of(stream)[1:]]
    assert ops == ["create"] + ["new_request", "add_sequence_batch", "store_context_blocks"] * 2


@pytest.mark.parametrize("stores", [True, False])
def test_pins_of_two_windows_are_recorded_with_their_windows(stores: bool, tmp_path: Path) -> None:
    stream = io.StringIO()
    windows = {"blocks_per_window": [[8, 9, 0], [32, 9, 0]], "max_attention_window_vec": [32, 8]}
    config = {**CONFIG, **windows, "num_kv_heads_per_layer": [1, 1]}
    recorder = TraceRecorder(stream, "recorded", config)
    manager = recorder.manager
    request = recorder.new_request(1, range(9), 3)
    manager.add_sequence_batch([(1, 9, 1)], [request])
    request.set_context_current_position(9)
    pinned = manager.store_blocks_for_reuse(1, request, True) if stores else manager.pin_blocks(1)
    manager.remove_sequence(1)
    num_pinned = 2 if stores else 3  # the last token is not computed
    assert manager.num_free_blocks_per_window_size == {8: 9 - num_pinned, 32: 9 - num_pinned}
    manager.unpin_blocks_by_id(pinned.of_other_windows[8][:1], 8)
    pinned.of_other_windows[8].pop(0)
    manager.unpin_blocks_by_id(pinned)
    assert manager.num_free_blocks_per_window_size == {8: 9, 32: 9}
    path = tmp_path / "pins.jsonl"
    path.write_text(stream.getvalue())
    assert verify_program(path).is_equal


def test_errors_are_written_and_raised() -> None:
    stream = io.StringIO()
    recorder = TraceRecorder(stream, "recorded", CONFIG)
    with pytest.raises(UnknownIdError):
        recorder.manager.pin_blocks(9)
    row = rows_of(stream)[-1]
    assert (row["op"], row["error_type"], "ret" in row) == ("pin_blocks", "out_of_range", False)
    assert row["obs"]["req"] == [{"id": 9}]


def test_what_a_replay_could_not_know_is_refused_and_not_written() -> None:
    stream = io.StringIO()
    recorder = TraceRecorder(stream, "recorded", CONFIG)
    dropped = recorder.new_request(1, [1, 2])
    recorder.drop_request(1)
    num_rows = len(rows_of(stream))
    for request in (dropped, LlmRequest(2, [1, 2])):
        with pytest.raises(InvalidInputError, match="was not made by this recorder"):
            recorder.manager.add_sequence_batch([(request.request_id, 2, 1)], [request])
    with pytest.raises(InvalidInputError, match="tokens is missing"):
        recorder.execute("truncate_blocks", {"num_tokens_to_keep": 1})
    dropped.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
    assert dropped.state is LlmRequestState.GENERATION_IN_PROGRESS
    assert len(rows_of(stream)) == num_rows
