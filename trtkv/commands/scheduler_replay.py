"""``trtkv replay --scheduler``: the part of the command that runs the scheduler loop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import typer

from trtkv.commands.output_files import open_output, write_output

if TYPE_CHECKING:
    from trtkv.replay.closed_loop import Progress
    from trtkv.replay.config import ReplayConfig
    from trtkv.replay.scheduler_loop.loop_config import LoopConfig
    from trtkv.replay.scheduler_loop.loop_result import LoopResult
    from trtkv.scheduler.scheduler_config import ContextChunkingConfig
    from trtkv.traces.trace import RequestTrace


class SchedulerChoice(str, Enum):
    """Values of ``--scheduler``."""

    MAX_UTILIZATION = "max-utilization"
    GUARANTEED_NO_EVICT = "guaranteed-no-evict"
    STATIC_BATCH = "static-batch"


class ArrivalsChoice(str, Enum):
    """Values of ``--arrivals``."""

    ASAP = "asap"
    TRACE = "trace"


class ChunkPolicyChoice(str, Enum):
    """Values of ``--chunk-policy``."""

    EQUAL_PROGRESS = "equal-progress"
    FIRST_COME_FIRST_SERVED = "first-come-first-served"
    FORCE_CHUNK = "force-chunk"


class SchedulerOptions(NamedTuple):
    """Options of the scheduler loop as given; None is not given."""

    scheduler: SchedulerChoice | None
    max_batch_size: int | None
    max_num_tokens: int | None
    arrivals: ArrivalsChoice | None
    step_time: str | None
    chunked_context: bool
    chunk_policy: ChunkPolicyChoice | None
    chunk_unit: int | None
    record: str | None


def refuse_without_scheduler(options: SchedulerOptions) -> None:
    """Options that mean nothing in the closed loop are an error there."""
    from trtkv.errors import InvalidInputError

    given = [f"--{name.replace('_', '-')}" for name, value in options._asdict().items() if value not in (None, False)]
    if given:
        raise InvalidInputError(f"{', '.join(given)}: only with --scheduler; add it or leave them out")


def make_loop_config(options: SchedulerOptions, cache: ReplayConfig) -> LoopConfig:
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


def _make_chunking(options: SchedulerOptions, tokens_per_block: int) -> ContextChunkingConfig | None:
    from trtkv.errors import InvalidInputError
    from trtkv.scheduler.scheduler_config import ChunkingPolicy, ContextChunkingConfig

    if not options.chunked_context:
        if options.chunk_policy is not None or options.chunk_unit is not None:
            raise InvalidInputError("--chunk-policy and --chunk-unit go with --chunked-context; add it")
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
    from trtkv.replay.scheduler_loop.loop_result import replay_with_scheduler

    seconds_per_unit = trace.seconds_per_unit
    with progress_of(len(trace.requests)) as progress:
        if record is None:
            return replay_with_scheduler(trace, config, seconds_per_unit=seconds_per_unit, progress=progress)
        from trtkv.verify.recorded_loop import RecordingBackend

        with open_output(record) as stream:
            backend = RecordingBackend(config, trace.requests, stream)
            return replay_with_scheduler(
                trace, config, seconds_per_unit=seconds_per_unit, backend=backend, progress=progress
            )


def show_loop_result(result: LoopResult, json_file: str | None) -> None:
    """Tables on standard output and JSON to a file; or JSON alone on standard output."""
    from trtkv.replay.report.loop_report import loop_json, loop_notes, print_loop_report

    if json_file == "-":
        sys.stdout.write(loop_json(result))
        for line in loop_notes(result):
            typer.echo(line, err=True)
        return
    if json_file is not None:
        write_output(json_file, loop_json(result))
    print_loop_report(result)


def _underscored(choice: Enum | None) -> str:
    return "" if choice is None else str(choice.value).replace("-", "_")
