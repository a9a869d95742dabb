"""Ops that touch only a request."""

from __future__ import annotations

from typing import Final

from trtkv.manager.recorded.sequence_admission import write_prepopulated_as_recorded
from trtkv.records.llm_request import LlmRequestState, MultimodalInput
from trtkv.verify.json_kinds import BOOL, INT, INTS, STR, Args, Kind, list_of, nullable, uint64
from trtkv.verify.machine_state import MachineState
from trtkv.verify.op_spec import OpSpec, names_id
from trtkv.verify.trace_values import RETENTION_KIND, STATE_KIND, read_retention, read_state


def new_request(state: MachineState, args: Args) -> None:
    """Make a request; one of the same id is replaced."""
    retention = args.get("retention")
    is_disagg = args.get("disagg_generation_init", False)
    request = state.make_request(
        args["id"],
        args["tokens"],
        args.get("max_new_tokens", 0),
        beam_width=args.get("beam_width", 1),
        input_token_extra_ids=args.get("extra_ids"),
        lora_task_id=args.get("lora_task_id"),
        cache_salt=args.get("cache_salt"),
        encoder_tokens=args.get("encoder_tokens"),
        encoder_output_len=args.get("encoder_output_len"),
        num_draft_tokens=args.get("num_draft_tokens", 0),
        is_dummy_request=args.get("is_dummy", False),
        kv_cache_retention_config=None if retention is None else read_retention(retention),
        multimodal_input=_read_multimodal_input(args),
        state=LlmRequestState.DISAGG_GENERATION_INIT if is_disagg else LlmRequestState.CONTEXT_INIT,
    )
    state.requests[request.request_id] = request


def _read_multimodal_input(args: Args) -> MultimodalInput | None:
    hashes = args.get("multimodal_hashes")
    if hashes is None:
        return None
    return MultimodalInput(
        hashes,
        positions=args.get("multimodal_positions"),
        lengths=args.get("multimodal_lengths"),
        uuids=args.get("multimodal_uuids"),
        item_run_cu_offsets=args.get("multimodal_item_run_cu_offsets"),
        run_positions=args.get("multimodal_run_positions"),
        run_lengths=args.get("multimodal_run_lengths"),
    )


def drop_request(state: MachineState, args: Args) -> None:
    """Forget a request; an unknown one is left alone."""
    state.requests.pop(args["id"], None)


def add_new_tokens(state: MachineState, args: Args) -> int:
    """Append one token to each beam."""
    request = state.get_request(args["id"])
    request.add_new_tokens([[token] for token in args["tokens"]])
    return request.get_num_tokens()


def set_generated_tokens(state: MachineState, args: Args) -> int:
    """Replace everything after the prompt."""
    request = state.get_request(args["id"])
    request.set_generated_tokens(args["tokens"])
    return request.get_num_tokens()


def set_context_current_position(state: MachineState, args: Args) -> None:
    """Move the context position."""
    state.get_request(args["id"]).set_context_current_position(args["position"])


def set_context_chunk_size(state: MachineState, args: Args) -> None:
    """Set the next chunk."""
    state.get_request(args["id"]).set_context_chunk_size(args["size"])


def move_to_next_context_chunk(state: MachineState, args: Args) -> None:
    """Take the current chunk as computed."""
    state.get_request(args["id"]).move_to_next_context_chunk()


def set_prepopulated_prompt_len(state: MachineState, args: Args) -> None:
    """Record a cache match by hand."""
    manager, request = state.manager, state.get_request(args["id"])
    if manager.compatibility:
        write_prepopulated_as_recorded(request, args["length"], manager.tokens_per_block)
    else:
        request.set_prepopulated_prompt_len(args["length"], manager.tokens_per_block)


def set_state(state: MachineState, args: Args) -> None:
    """Change the stage."""
    state.get_request(args["id"]).set_state(read_state(args["state"]))


def set_num_draft_tokens(state: MachineState, args: Args) -> None:
    """Set the drafts of the next step."""
    state.get_request(args["id"]).set_num_draft_tokens(args["n"])


def pause(state: MachineState, args: Args) -> None:
    """Send a request back to the start of its context stage."""
    state.get_request(args["id"]).pause(args["max_input_len"])


_NEW_REQUEST_OPTIONAL: Final[dict[str, Kind]] = {
    "max_new_tokens": INT,
    "beam_width": INT,
    "extra_ids": nullable(list_of(uint64)),
    "lora_task_id": nullable(uint64),
    "cache_salt": nullable(STR),
    "encoder_tokens": nullable(INTS),
    "encoder_output_len": nullable(INT),
    "num_draft_tokens": INT,
    "is_dummy": BOOL,
    "retention": nullable(RETENTION_KIND),
    "multimodal_hashes": nullable(list_of(INTS)),
    "multimodal_positions": nullable(INTS),
    "multimodal_lengths": nullable(INTS),
    "multimodal_uuids": nullable(list_of(nullable(STR))),
    "multimodal_item_run_cu_offsets": nullable(INTS),
    "multimodal_run_positions": nullable(INTS),
    "multimodal_run_lengths": nullable(INTS),
    "disagg_generation_init": BOOL,
}

REQUEST_OPS: Final[dict[str, OpSpec]] = {
    "new_request": OpSpec(
        new_request,
        {"id": INT, "tokens": INTS},
        _NEW_REQUEST_OPTIONAL,
        is_observed=True,
        names=names_id,
        names_on_error=False,
    ),
    "drop_request": OpSpec(drop_request, {"id": INT}, is_observed=True),
    **{
        name: OpSpec(run, {"id": INT, **required}, is_observed=True, names=names_id)
        for name, run, required in (
            ("add_new_tokens", add_new_tokens, {"tokens": INTS}),
            ("set_generated_tokens", set_generated_tokens, {"tokens": list_of(INTS)}),
            ("set_context_current_position", set_context_current_position, {"position": INT}),
            ("set_context_chunk_size", set_context_chunk_size, {"size": INT}),
            ("move_to_next_context_chunk", move_to_next_context_chunk, {}),
            ("set_prepopulated_prompt_len", set_prepopulated_prompt_len, {"length": INT}),
            ("set_state", set_state, {"state": STATE_KIND}),
            ("set_num_draft_tokens", set_num_draft_tokens, {"n": INT}),
            ("pause", pause, {"max_input_len": INT}),
        )
    },
}
