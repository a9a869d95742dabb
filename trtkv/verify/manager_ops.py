"""Ops that change a manager."""

from __future__ import annotations

from typing import Final

from trtkv.common import KvCacheTransferMode, RequestId
from trtkv.errors import UnknownIdError
from trtkv.records.llm_request import LlmRequest
from trtkv.records.window_size_metadata import PrefixReuseSummary
from trtkv.verify.json_kinds import BOOL, INT, INTS, Args, JsonValue, Kind, list_of, nullable, tuple_of
from trtkv.verify.machine_state import DEFAULT_CLOCK_START_MS, MachineState
from trtkv.verify.manager_config import CONFIG_OPTIONAL, CONFIG_REQUIRED, build_manager, describe_manager
from trtkv.verify.op_spec import OpSpec, names_batch, names_id
from trtkv.verify.trace_values import write_hash
from trtkv.window_block_manager.sequences import write_slot_at


def create(state: MachineState, args: Args) -> JsonValue:
    """Drop everything and build a manager; after a failure there is none."""
    state.clear(args.get("clock_start_ms", DEFAULT_CLOCK_START_MS))
    state.self_manager = build_manager(state, args)
    return describe_manager(state.self_manager)


def add_sequence_batch(state: MachineState, args: Args) -> None:
    """Admit requests together."""
    batch = args["requests"]
    requests = [state.get_request(request_id) for request_id, _, _ in batch]
    state.manager.add_sequence_batch([(entry[0], entry[1], entry[2]) for entry in batch], requests)


def add_token(state: MachineState, args: Args) -> None:
    """One decode step, or ``count`` of them."""
    manager = state.manager
    for _ in range(args.get("count", 1)):
        manager.add_token(args["id"])


def rewind_kv_cache(state: MachineState, args: Args) -> None:
    """Take back the last tokens."""
    state.manager.rewind_kv_cache(args["id"], args["n"])


def remove_sequence(state: MachineState, args: Args) -> None:
    """Release a sequence, storing it for reuse when the request is passed along."""
    request = state.requests.get(args["id"]) if args.get("with_request", True) else None
    state.manager.remove_sequence(args["id"], request, args.get("pin") or False)


def store_context_blocks(state: MachineState, args: Args) -> None:
    """Store full blocks of a prompt; nothing happens for an id without a sequence."""
    request = _get_request_of_sequence(state, args["id"])
    if request is not None:
        state.manager.store_context_blocks(request)


def _get_request_of_sequence(state: MachineState, request_id: RequestId) -> LlmRequest | None:
    """The request, None when the id has no sequence either; a sequence without its request cannot be stored."""
    request = state.requests.get(request_id)
    if request is None and request_id in state.manager.sequences:
        raise UnknownIdError(f"the request of sequence {request_id} was dropped; it is needed to store blocks")
    return request


def store_new_block(state: MachineState, args: Args) -> None:
    """Store the block that a decode step has filled."""
    state.manager.store_new_block(state.get_request(args["id"]))


def store_blocks_for_reuse(state: MachineState, args: Args) -> JsonValue:
    """Store all blocks of a sequence and return the pinned ids."""
    request = state.get_request(args["id"])
    return state.manager.store_blocks_for_reuse(args["id"], request, bool(args.get("pin")))


def pin_blocks(state: MachineState, args: Args) -> None:
    """Pin the blocks of a sequence."""
    state.manager.pin_blocks(args["id"])


def unpin_blocks_by_id(state: MachineState, args: Args) -> None:
    """Unpin blocks."""
    state.manager.unpin_blocks_by_id(args["block_ids"], args.get("window"))


def truncate_blocks(state: MachineState, args: Args) -> None:
    """Drop cached blocks behind a prefix."""
    state.manager.truncate_blocks(args["tokens"], args["num_tokens_to_keep"])


def reset_reuse_state(state: MachineState, args: Args) -> None:
    """Start with an empty tree."""
    state.manager.reset_reuse_state()


def refresh_blocks(state: MachineState, args: Args) -> None:
    """Let expired priorities fall back."""
    state.manager.refresh_blocks()


def sync_transfer_manager(state: MachineState, args: Args) -> None:
    """Wait for transfers."""
    state.manager.sync_transfer_manager_with_buffer_manager()


def flush_iteration_events(state: MachineState, args: Args) -> None:
    """Hand pending events over."""
    state.manager.flush_iteration_events()


def copy_linear_attention_block(state: MachineState, args: Args) -> bool:
    """Copy a recurrent state to the next block."""
    return state.manager.copy_linear_attention_block(state.get_request(args["id"]))


def commit_and_get_block_hashes(state: MachineState, args: Args) -> JsonValue:
    """Hashes of a sequence's full blocks."""
    request = state.get_request(args["id"])
    return [write_hash(h) for h in state.manager.commit_and_get_block_hashes_for_request(request, args["window"])]


def advance_clock_ms(state: MachineState, args: Args) -> None:
    """Move the clock."""
    state.clock.advance_ms(args["ms"])


def start_scheduling(state: MachineState, args: Args) -> None:
    """Begin a scheduling simulation."""
    state.manager.start_scheduling()


def scheduling_remove_sequence(state: MachineState, args: Args) -> JsonValue:
    """Remove a sequence in the simulation and return its free counts."""
    manager = state.manager
    manager.scheduling_remove_sequence(args["id"])
    return {str(window): manager.scheduling_num_free_blocks(window) for window in manager.window_sizes_metadata}


def get_needed_blocks_one_step(state: MachineState, args: Args) -> int:
    """Blocks of the next step."""
    request = state.get_request(args["id"])
    return state.manager.get_needed_blocks_one_step(
        request, args["two_steps_look_ahead"], args["window"], _read_summary(args)
    )


def get_remaining_blocks_to_completion(state: MachineState, args: Args) -> int:
    """Blocks up to the last token."""
    request = state.get_request(args["id"])
    return state.manager.get_remaining_blocks_to_completion(request, args["window"], _read_summary(args))


def _read_summary(args: Args) -> PrefixReuseSummary | None:
    summary = args.get("cached_summary")
    return None if summary is None else PrefixReuseSummary(*summary)


def set_spec_decoding_budget(state: MachineState, args: Args) -> None:
    """Set what a step of speculative decoding may take."""
    state.manager.set_spec_decoding_budget(args["num_extra_kv_tokens"], args["draft_token_reserve"])


def offload_block(state: MachineState, args: Args) -> None:
    """Move any block to the secondary level."""
    window_manager = state.manager.block_manager.get_window_block_manager(args["window"])
    window_manager.claimer.offload_block(window_manager.get_block_by_id(args["block_id"]), KvCacheTransferMode.DRAM, "")


def replace_shared_block(state: MachineState, args: Args) -> None:
    """Give a sequence its own block at a position, and write its offsets."""
    manager = state.manager
    sequence = manager.sequences.get(args["id"])
    if sequence is None:
        raise UnknownIdError(f"there is no sequence {args['id']}")
    window, block_idx = args["window"], args["block_idx"]
    manager.block_manager.get_window_block_manager(window).replacer.replace_shared_block(sequence, block_idx)
    write_slot_at(sequence.get_window(window), sequence.beam_width, block_idx)


_ID: Final[dict[str, Kind]] = {"id": INT}
_ID_AND_WINDOW: Final[dict[str, Kind]] = {"id": INT, "window": INT}
_SUMMARY: Final[dict[str, Kind]] = {"cached_summary": nullable(tuple_of(INT, INT))}

MANAGER_OPS: Final[dict[str, OpSpec]] = {
    "create": OpSpec(create, CONFIG_REQUIRED, CONFIG_OPTIONAL, is_observed=True, is_observed_on_error=False),
    "add_sequence_batch": OpSpec(
        add_sequence_batch, {"requests": list_of(tuple_of(INT, INT, INT))}, is_observed=True, names=names_batch
    ),
    **{
        name: OpSpec(run, required, optional, is_observed=True, names=names_id)
        for name, run, required, optional in (
            ("add_token", add_token, _ID, {"count": INT}),
            ("rewind_kv_cache", rewind_kv_cache, {"id": INT, "n": INT}, {}),
            ("remove_sequence", remove_sequence, _ID, {"with_request": BOOL, "pin": nullable(BOOL)}),
            ("store_context_blocks", store_context_blocks, _ID, {}),
            ("store_new_block", store_new_block, _ID, {}),
            ("store_blocks_for_reuse", store_blocks_for_reuse, _ID, {"pin": nullable(BOOL)}),
            ("pin_blocks", pin_blocks, _ID, {}),
            ("copy_linear_attention_block", copy_linear_attention_block, _ID, {}),
            ("commit_and_get_block_hashes", commit_and_get_block_hashes, _ID_AND_WINDOW, {}),
            (
                "get_needed_blocks_one_step",
                get_needed_blocks_one_step,
                {**_ID_AND_WINDOW, "two_steps_look_ahead": BOOL},
                _SUMMARY,
            ),
            ("get_remaining_blocks_to_completion", get_remaining_blocks_to_completion, _ID_AND_WINDOW, _SUMMARY),
            ("replace_shared_block", replace_shared_block, {**_ID_AND_WINDOW, "block_idx": INT}, {}),
        )
    },
    "unpin_blocks_by_id": OpSpec(unpin_blocks_by_id, {"block_ids": INTS}, {"window": INT}, is_observed=True),
    **{
        name: OpSpec(run, required, is_observed=True)
        for name, run, required in (
            ("truncate_blocks", truncate_blocks, {"tokens": INTS, "num_tokens_to_keep": INT}),
            ("reset_reuse_state", reset_reuse_state, {}),
            ("refresh_blocks", refresh_blocks, {}),
            ("sync_transfer_manager_with_buffer_manager", sync_transfer_manager, {}),
            ("flush_iteration_events", flush_iteration_events, {}),
            ("advance_clock_ms", advance_clock_ms, {"ms": INT}),
            ("start_scheduling", start_scheduling, {}),
            ("scheduling_remove_sequence", scheduling_remove_sequence, _ID),
            (
                "set_spec_decoding_budget",
                set_spec_decoding_budget,
                {"num_extra_kv_tokens": INT, "draft_token_reserve": INT},
            ),
            ("offload_block", offload_block, {"block_id": INT, "window": INT}),
        )
    },
}
