"""Ops on requests and pure functions, and the small parts that recorded managers are built with."""

from __future__ import annotations

import pytest

from trtkv.errors import InvalidInputError, RetentionRangeError, UnknownIdError
from trtkv.records.kv_cache_index import NULL_INDEX, make_index
from trtkv.records.llm_request import LlmRequest
from trtkv.verify.clock import VirtualClock
from trtkv.verify.connector import FixedMatchConnector
from trtkv.verify.op_machine import OpMachine, UnsupportedOpError
from trtkv.verify.op_table import OPS
from trtkv.verify.page_table import PageTable
from trtkv.verify.trace_values import write_slot

# Every op of the format, by its three parts: requests, manager, scheduler.
OP_NAMES = """
new_request drop_request add_new_tokens set_generated_tokens set_context_current_position set_context_chunk_size
move_to_next_context_chunk set_prepopulated_prompt_len set_state set_num_draft_tokens pause

create add_sequence_batch add_token rewind_kv_cache remove_sequence store_context_blocks store_new_block
store_blocks_for_reuse pin_blocks unpin_blocks_by_id truncate_blocks reset_reuse_state refresh_blocks
sync_transfer_manager_with_buffer_manager flush_iteration_events copy_linear_attention_block
commit_and_get_block_hashes advance_clock_ms start_scheduling scheduling_remove_sequence get_needed_blocks_one_step
get_remaining_blocks_to_completion set_spec_decoding_budget offload_block replace_shared_block

scheduling_has_free_blocks analyze_prefix_reuse get_max_capacity_batch_size get_token_count get_cache_block_ids
get_batch_cache_block_ids get_last_block_id get_priority_by_block_id verify_queue_integrity
find_blocks_in_reuse_tree_by_block_key find_blocks_in_reuse_tree_by_block_keys copy_block_offsets
get_block_offsets_of_batch get_latest_events get_kv_cache_stats get_iteration_stats observe debug_state

get_sink_bubble_length group_layers_by_window_size calculate_window_size_to_share
calculate_cache_size_per_token_for_single_window_size calculate_max_num_blocks calculate_max_attention_window
calculate_max_block_requirements calculate_max_block_requirements_per_beam block_key_hash
block_key_num_matching_tokens block_key_equal retention_per_block chop_vector_into_blocks linear_should_allocate
linear_blocks_needed linear_additional_blocks_needed build_block_keys

create_capacity_scheduler capacity_schedule create_micro_batch_scheduler micro_batch_schedule create_cross_manager
select_manager
"""


def test_every_op_of_the_format_is_dispatched() -> None:
    assert sorted(OPS) == sorted(OP_NAMES.split())


def run_ops(*ops: tuple[str, dict[str, object]]) -> OpMachine:
    machine = OpMachine()
    for op, args in ops:
        outcome = machine.execute(op, args)
        assert outcome.error is None, (op, outcome.error)
    return machine


NEW_REQUEST = ("new_request", {"id": 3, "tokens": [5, 6, 7, 8], "max_new_tokens": 4})


def test_new_request_shows_its_entry() -> None:
    outcome = OpMachine().execute(*NEW_REQUEST)
    entry = {"id": 3, "n": 4, "prepop": 0, "est": 0, "pos": 0, "chunk": 4, "stats": [0, 0, 0, 0]}
    assert outcome.obs == {"req": [entry]}


def test_chunk_is_shown_only_in_stages_where_it_may_be_read() -> None:
    machine = run_ops(NEW_REQUEST)
    shown = {}
    for state in ("context_init", "generation_in_progress", "disagg_generation_trans_complete", "encoder_init"):
        outcome = machine.execute("set_state", {"id": 3, "state": state})
        assert outcome.obs is not None
        shown[state] = "chunk" in outcome.obs["req"][0]
    assert shown == {
        "context_init": True,
        "generation_in_progress": False,
        "disagg_generation_trans_complete": True,
        "encoder_init": False,
    }


def test_request_ops_change_the_request() -> None:
    machine = run_ops(
        NEW_REQUEST,
        ("set_context_chunk_size", {"id": 3, "size": 3}),
        ("move_to_next_context_chunk", {"id": 3}),
        ("set_num_draft_tokens", {"id": 3, "n": 2}),
    )
    request = machine.state.requests[3]
    assert (request.context_current_position, request.context_chunk_size, request.num_draft_tokens) == (3, 0, 2)
    assert machine.execute("add_new_tokens", {"id": 3, "tokens": [9]}).ret == 5
    assert machine.execute("set_generated_tokens", {"id": 3, "tokens": [[1, 2, 3]]}).ret == 7
    assert list(request.get_tokens()) == [5, 6, 7, 8, 1, 2, 3]
    run = machine.execute("pause", {"id": 3, "max_input_len": 6})
    assert run.obs is not None
    assert run.obs["req"][0]["n"] == 6
    assert (request.prompt_len, request.max_new_tokens) == (6, 2)
    machine.execute("drop_request", {"id": 3})
    assert machine.state.requests == {}


def test_one_token_is_added_to_each_beam() -> None:
    machine = run_ops(("new_request", {"id": 1, "tokens": [1], "beam_width": 2}))
    assert machine.execute("add_new_tokens", {"id": 1, "tokens": [4, 5]}).ret == 2
    assert [list(machine.state.requests[1].get_tokens(beam)) for beam in range(2)] == [[1, 4], [1, 5]]


def test_new_request_takes_over_every_field() -> None:
    words = [[1, 2, 3, 4, 5, 6, 7, 8]]
    machine = run_ops(
        (
            "new_request",
            {
                "id": 1,
                "tokens": [1, 2],
                "extra_ids": [0, 2**63],
                "lora_task_id": 2**64 - 1,
                "cache_salt": "s",
                "encoder_tokens": [7, 8, 9],
                "is_dummy": True,
                "num_draft_tokens": 3,
                "disagg_generation_init": True,
                "retention": {"ranges": [[0, None, 80, 5]], "decode_priority": 20, "transfer_mode": "GDS"},
                "multimodal_hashes": words,
                "multimodal_positions": [0],
                "multimodal_lengths": [2],
                "multimodal_uuids": [None],
            },
        )
    )
    request = machine.state.requests[1]
    assert list(request.input_token_extra_ids or ()) == [0, 2**63]
    assert (request.lora_task_id, request.cache_salt, request.encoder_output_len) == (2**64 - 1, "s", 3)
    assert request.is_dummy_request
    assert request.num_draft_tokens == 3
    assert request.is_disagg_generation_init_state
    retention = request.kv_cache_retention_config
    assert retention is not None
    assert (retention.decode_retention_priority, retention.transfer_mode.value) == (20, "GDS")
    assert retention.get_per_block_retention_priority_duration(2, 2) == [(80, 5)]
    multimodal = request.multimodal_input
    assert multimodal is not None
    assert (multimodal.hashes, multimodal.uuids, multimodal.run_positions) == (words, [None], None)


def test_failed_request_op_is_an_outcome_and_changes_nothing() -> None:
    machine = run_ops(NEW_REQUEST)
    outcome = machine.execute("set_context_chunk_size", {"id": 3, "size": -1})
    assert isinstance(outcome.error, InvalidInputError)
    assert outcome.obs is not None
    assert outcome.obs["req"][0]["chunk"] == 4


def test_failed_new_request_names_no_request_and_keeps_the_old_one() -> None:
    machine = run_ops(NEW_REQUEST)
    old = machine.state.requests[3]
    outcome = machine.execute("new_request", {"id": 3, "tokens": [1], "retention": {"ranges": [[2, 2, 50, None]]}})
    assert isinstance(outcome.error, RetentionRangeError)
    assert outcome.obs == {}
    assert machine.state.requests[3] is old


def test_unknown_request_gives_an_entry_of_its_id_alone() -> None:
    outcome = OpMachine().execute("set_context_current_position", {"id": 9, "position": 0})
    assert isinstance(outcome.error, UnknownIdError)
    assert outcome.obs == {"req": [{"id": 9}]}


def test_manager_op_without_manager_fails() -> None:
    outcome = OpMachine().execute("get_token_count", {"id": 1})
    assert isinstance(outcome.error, InvalidInputError)
    assert "create" in str(outcome.error)


def test_missing_module_makes_an_op_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "trtkv.pools.capacity_estimation", None)
    with pytest.raises(UnsupportedOpError, match="get_sink_bubble_length"):
        OpMachine().execute("get_sink_bubble_length", {"sink_token_length": 1, "tokens_per_block": 4})


def test_requests_are_made_by_the_given_class() -> None:
    class OwnRequest(LlmRequest):
        __slots__ = ()

    machine = OpMachine(OwnRequest)
    machine.execute(*NEW_REQUEST)
    assert type(machine.state.requests[3]) is OwnRequest


def test_virtual_clock_moves_by_command_and_by_reading() -> None:
    clock = VirtualClock(1000)
    first = clock()
    assert clock() == first + 1
    clock.advance_ms(5)
    assert clock() == first + 5_000_000 + 2


def test_slots_tell_levels_apart() -> None:
    assert write_slot(make_index(3)) == 3
    assert write_slot(make_index(0, level=1)) == -1
    assert write_slot(make_index(3, level=1)) == -4
    assert write_slot(NULL_INDEX) is None


def test_connector_and_page_table_answer_as_configured() -> None:
    request = LlmRequest(1, [1, 2], lora_task_id=7)
    assert FixedMatchConnector(5).get_num_new_matched_tokens(request, 1) == 5
    table = PageTable(9, 2, {7: 4})
    assert table.max_device_pages == 9
    assert table.determine_num_pages(request) == 4
    assert table.determine_num_pages(LlmRequest(2, [1], lora_task_id=8)) == 2
