"""Ops of the two schedulers and of the cross manager."""

from __future__ import annotations

from typing import Final

from trtkv.errors import InvalidInputError
from trtkv.records.llm_request import LlmRequest
from trtkv.verify.json_kinds import BOOL, INT, INTS, Args, JsonValue, by_number, choice, nullable, record
from trtkv.verify.machine_state import MachineState
from trtkv.verify.manager_config import CONFIG_OPTIONAL, CONFIG_REQUIRED, build_manager, describe_manager
from trtkv.verify.op_spec import OpSpec, names_ids
from trtkv.verify.page_table import PageTable
from trtkv.verify.trace_values import STATE_KIND, read_state


def create_capacity_scheduler(state: MachineState, args: Args) -> None:
    """Build the capacity scheduler; it replaces the one before."""
    from trtkv.scheduler.capacity_scheduler import CapacityScheduler
    from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy

    peft = args.get("peft")
    state.capacity_scheduler = CapacityScheduler(
        args["max_num_requests"],
        CapacitySchedulerPolicy(args["policy"]),
        has_kv_cache_manager=args["has_kv_cache_manager"],
        two_steps_look_ahead=args["two_steps_look_ahead"],
        no_schedule_until_state=read_state(args["no_schedule_until_state"]),
        no_schedule_after_state=read_state(args["no_schedule_after_state"]),
        compatibility=args.get("compatibility", state.compatibility),
    )
    state.peft_cache = None if peft is None else _read_page_table(peft)


def _read_page_table(peft: Args) -> PageTable:
    pages = {int(task_id): count for task_id, count in peft.get("pages", {}).items()}
    return PageTable(peft["max_device_pages"], peft.get("default_pages", 0), pages)


def capacity_schedule(state: MachineState, args: Args) -> JsonValue:
    """Decide which requests may run."""
    scheduler = state.capacity_scheduler
    if scheduler is None:
        raise InvalidInputError("there is no capacity scheduler; the program must create one first")
    result = scheduler.schedule(_get_requests(state, args), state.self_manager, state.peft_cache, state.cross_manager)
    return {
        "scheduled": _get_ids(result.fitting_requests),
        "disagg_init": _get_ids(result.fitting_disagg_gen_init_requests),
        "paused": _get_ids(result.paused_requests),
    }


def create_micro_batch_scheduler(state: MachineState, args: Args) -> None:
    """Build the micro batch scheduler; it replaces the one before."""
    from trtkv.scheduler.micro_batch_scheduler import MicroBatchScheduler
    from trtkv.scheduler.scheduler_config import ChunkingPolicy, ContextChunkingConfig

    chunking = args["ctx_chunk_config"]
    config = None
    if chunking is not None:
        config = ContextChunkingConfig(ChunkingPolicy(chunking["policy"]), chunking["unit_size"])
    state.micro_batch_scheduler = MicroBatchScheduler(
        config,
        args["max_context_length"],
        no_schedule_until_state=read_state(args["no_schedule_until_state"]),
        no_schedule_after_state=read_state(args["no_schedule_after_state"]),
        compatibility=args.get("compatibility", state.compatibility),
    )


def micro_batch_schedule(state: MachineState, args: Args) -> JsonValue:
    """Decide what the next step computes."""
    scheduler = state.micro_batch_scheduler
    if scheduler is None:
        raise InvalidInputError("there is no micro batch scheduler; the program must create one first")
    context, generation = scheduler.schedule(
        _get_requests(state, args), set(args["inflight"]), args["max_batch_size"], args["max_num_tokens"]
    )
    return {"context": _get_ids(context), "generation": _get_ids(generation)}


def _get_requests(state: MachineState, args: Args) -> list[LlmRequest]:
    return [state.get_request(request_id) for request_id in args["ids"]]


def _get_ids(requests: list[LlmRequest]) -> list[int]:
    return [request.request_id for request in requests]


def create_cross_manager(state: MachineState, args: Args) -> JsonValue:
    """Build the cross manager beside the self manager; requests and clock stay."""
    state.cross_manager = None
    state.cross_manager = build_manager(state, args)
    return describe_manager(state.cross_manager)


def select_manager(state: MachineState, args: Args) -> None:
    """Choose the manager of the ops that follow."""
    if args["cross"] and state.cross_manager is None:
        raise InvalidInputError("there is no cross manager to select; the program must create one first")
    state.is_cross_selected = args["cross"]


_STATE_LIMITS: Final = {"no_schedule_until_state": STATE_KIND, "no_schedule_after_state": STATE_KIND}

SCHEDULER_OPS: Final[dict[str, OpSpec]] = {
    "create_capacity_scheduler": OpSpec(
        create_capacity_scheduler,
        {
            "max_num_requests": INT,
            "policy": choice(["max_utilization", "guaranteed_no_evict", "static_batch"]),
            "has_kv_cache_manager": BOOL,
            "two_steps_look_ahead": BOOL,
            **_STATE_LIMITS,
        },
        {
            "peft": nullable(record({"max_device_pages": INT}, {"default_pages": INT, "pages": by_number(INT)})),
            "compatibility": BOOL,
        },
        is_observed=True,
    ),
    "capacity_schedule": OpSpec(
        capacity_schedule, {"ids": INTS}, is_observed=True, names=names_ids, has_short_entries=True
    ),
    "create_micro_batch_scheduler": OpSpec(
        create_micro_batch_scheduler,
        {
            "ctx_chunk_config": nullable(
                record(
                    {
                        "policy": choice(["equal_progress", "first_come_first_served", "force_chunk"]),
                        "unit_size": INT,
                    }
                )
            ),
            "max_context_length": nullable(INT),
            **_STATE_LIMITS,
        },
        {"compatibility": BOOL},
        is_observed=True,
    ),
    "micro_batch_schedule": OpSpec(
        micro_batch_schedule,
        {"ids": INTS, "inflight": INTS, "max_batch_size": INT, "max_num_tokens": nullable(INT)},
        is_observed=True,
        names=names_ids,
        has_short_entries=True,
    ),
    "create_cross_manager": OpSpec(create_cross_manager, CONFIG_REQUIRED, CONFIG_OPTIONAL, is_observed=True),
    "select_manager": OpSpec(select_manager, {"cross": BOOL}, is_observed=True),
}
