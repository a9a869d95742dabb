"""``trtkv replay --scheduler``: the part of the command that runs the scheduler loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from typing import TYPE_CHECKING

from trtkv.commands.output_files import open_output
from trtkv.commands.replay_options import SCHEDULER_ONLY, ArrivalsChoice, ChunkPolicyChoice

if TYPE_CHECKING:
    from trtkv.commands.replay_options import ReplayOptions
    from trtkv.replay.closed_loop.closed_loop import Progress
    from trtkv.replay.config import ReplayConfig
    from trtkv.replay.scheduler_loop.loop_config import LoopConfig
    from trtkv.replay.scheduler_loop.loop_result import LoopResult
    from trtkv.scheduler.scheduler_config import ContextChunkingConfig
    from trtkv.traces.trace import RequestTrace


def refuse_without_scheduler(options: ReplayOptions) -> None:
    """Options that mean nothing in the closed loop are an error there."""
    from trtkv.errors import InvalidInputError

    given = [f"--{name.replace('_', '-')}" for name in SCHEDULER_ONLY if getattr(options, name) not in (None, False)]
    if given:
        raise InvalidInputError(f"{', '.join(given)}: only with --scheduler; add it or leave them out")


def make_loop_config(options: ReplayOptions, cache: ReplayConfig) -> LoopConfig:
    """Settings of the loop; ``--scheduler`` must be given. Raises ConfigurationError and InvalidInputError."""
    from trtkv.errors import check
    from trtkv.replay.scheduler_loop.arrival_queue import ArrivalMode
    from trtkv.replay.scheduler_loop.loop_config import LoopConfig
    from trtkv.replay.scheduler_loop.step_time import MODEL_NAME, parse_step_time
    from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy

    check(options.scheduler is not None, "settings of the scheduler loop without --scheduler")
    limits = {"max_batch_size": options.max_batch_size, "max_num_tokens": options.max_num_tokens}
    return LoopConfig(
        cache,
        CapacitySchedulerPolicy(_underscored(options.scheduler)),
        chunking=_make_chunking(options, cache.tokens_per_block),
        arrivals=ArrivalMode((options.arrivals or ArrivalsChoice.ASAP).value),
        step_time=parse_step_time(MODEL_NAME if options.step_time is None else options.step_time),
        **{name: value for name, value in limits.items() if value is not None},
    )


def _make_chunking(options: ReplayOptions, tokens_per_block: int) -> ContextChunkingConfig | None:
    from trtkv.errors import InvalidInputError
    from trtkv.scheduler.scheduler_config import ChunkingPolicy, ContextChunkingConfig

    if not options.chunked_context:
        if options.chunk_policy is not None or options.chunk_unit is not None:
            raise InvalidInputError("--chunk-policy and --chunk-unit need --chunked-context; add it")
        return None
    policy = options.chunk_policy or ChunkPolicyChoice.FIRST_COME_FIRST_SERVED
    unit = tokens_per_block if options.chunk_unit is None else options.chunk_unit
    return ContextChunkingConfig(ChunkingPolicy(_underscored(policy)), unit)


def run_scheduler_loop(
    trace: RequestTrace,
    config: LoopConfig,
    record: str | None,
    progress_of: Callable[[int], AbstractContextManager[Progress | None]],
) -> LoopResult:
    """Run the loop; with ``record`` every change of it is written to that file while it happens."""
    from trtkv.replay.scheduler_loop.run import replay_with_scheduler
    from trtkv.replay.scheduler_loop.unknown_prompts import replace_unknown_prompts

    seconds_per_unit = trace.seconds_per_unit
    trace, config = replace_unknown_prompts(trace, config)
    with progress_of(len(trace.requests)) as progress:
        if record is None:
            return replay_with_scheduler(trace, config, seconds_per_unit=seconds_per_unit, progress=progress)
        from trtkv.verify.recorded_loop import RecordingBackend

        with open_output(record) as stream:
            backend = RecordingBackend(config, trace.requests, stream)
            return replay_with_scheduler(
                trace, config, seconds_per_unit=seconds_per_unit, backend=backend, progress=progress
            )


def _underscored(choice: Enum | None) -> str:
    return "" if choice is None else str(choice.value).replace("-", "_")
