"""A replay as its options describe it: what is read and what is run. ``trtkv replay`` shows one, a sweep runs many."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trtkv.commands.model_options import make_options, make_plan
from trtkv.commands.replay_extras import ExtraOptions, add_extras, check_bounds, check_extras
from trtkv.commands.replay_options import ReplayOptions, SystemChoice
from trtkv.commands.scheduler_replay import make_loop_config, refuse_without_scheduler, run_scheduler_loop
from trtkv.traces.sessions.protocol import Outputs, Sessions

if TYPE_CHECKING:
    from trtkv.replay.closed_loop.closed_loop import Progress
    from trtkv.replay.closed_loop.outcome import Outcome
    from trtkv.replay.config import ReplayConfig
    from trtkv.replay.nano.nano_result import NanoResult
    from trtkv.replay.scheduler_loop.loop_config import LoopConfig
    from trtkv.traces.trace import RequestTrace

ProgressBar = Callable[[int], "AbstractContextManager[Progress | None]"]

LONG_LISTS: Final = ("per_request", "utilisation", "refused_requests")
"""Parts of a report with an entry for each request or many steps."""


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """How a trace is read."""

    path: str
    format_name: str | None
    """None: told by the first row."""
    block_size: int | None
    tokenizer: Path | None
    chat_template: str | None
    lenient: bool
    limit: int | None
    output_length: int | None
    """Of rows that do not say how much is generated."""
    max_line_bytes: int | None
    sessions: Sessions
    outputs: Outputs
    allow_lengths_only: bool
    """Whether a trace without tokens will do."""

    def read(self) -> RequestTrace:
        """The trace."""
        from trtkv.traces.trace_reader import read_trace

        return read_trace(
            self.path,
            format_name=self.format_name,
            block_size=self.block_size,
            tokenizer=self.tokenizer,
            chat_template=self.chat_template,
            lenient=self.lenient,
            limit=self.limit,
            output_length=self.output_length,
            max_line_bytes=self.max_line_bytes,
            sessions=self.sessions,
            outputs=self.outputs,
            allow_lengths_only=self.allow_lengths_only,
        )


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """What is run over the trace."""

    system: SystemChoice
    config: ReplayConfig
    loop: LoopConfig | None
    """Settings of the scheduler loop; None: the closed loop."""
    record: str | None
    """Where the scheduler loop writes its program."""
    extras: ExtraOptions

    @property
    def is_plain(self) -> bool:
        """Whether it is TensorRT-LLM's manager in the closed loop."""
        return self.loop is None and self.system is SystemChoice.TENSORRT_LLM


def make_trace_settings(options: ReplayOptions) -> TraceSettings:
    """How the options say to read the trace."""
    return TraceSettings(
        path=options.trace,
        format_name=options.trace_format,
        block_size=options.block_size,
        tokenizer=options.tokenizer,
        chat_template=options.chat_template,
        lenient=options.lenient,
        limit=options.limit,
        output_length=options.output_length,
        max_line_bytes=options.max_line_bytes,
        sessions=options.sessions,
        outputs=options.outputs,
        allow_lengths_only=options.scheduler is not None,
    )


def make_job(options: ReplayOptions, tell: Callable[[str], None] | None = None) -> ReplayJob:
    """What the options say to run. Raises InvalidInputError for invalid or incompatible options.

    ``tell`` is called with what a model's memory became, in a line.
    """
    from trtkv.errors import ConfigurationError

    system = options.system
    config = _make_config(options, tell)
    _check_system(system, config)
    loop = _make_loop(options, config)
    extras = ExtraOptions(
        options.explain,
        options.explain_file,
        options.bounds,
        options.curve,
        options.html_file,
        options.requests_file,
    )
    if options.record is not None and not config.eviction.is_default:
        raise ConfigurationError(
            f"--record writes what TensorRT-LLM can repeat, and it has no eviction policy {config.eviction.name!r}; "
            "leave one of them out"
        )
    job = ReplayJob(system, config, loop, options.record, extras)
    check_extras(extras, is_plain_replay=job.is_plain)
    _check_bounds(job)
    return job


def run_job(job: ReplayJob, trace: RequestTrace, progress_bar: ProgressBar) -> Outcome:
    """Run it, and what was asked for beside it; the loop's program is written if that was asked for, nothing else."""
    from trtkv.replay.closed_loop.run import replay_trace
    from trtkv.replay.model_capacity import check_lengths

    check_lengths(job.config, trace)
    if job.loop is not None:
        with _without_cycle_collector():
            return run_scheduler_loop(trace, job.loop, job.record, progress_bar)
    if not job.is_plain:
        return _run_nano(job, trace, progress_bar)
    check_bounds(job.extras, trace, job.config)
    wants_causes = job.extras.wants_causes and job.config.states is None
    with progress_bar(len(trace.requests)) as progress, _without_cycle_collector():
        result, _ = replay_trace(trace, job.config, progress=progress, explain=wants_causes)
    return add_extras(result, job.extras, progress_bar)


def short_report(outcome: Outcome) -> dict[str, object]:
    """The JSON report of a run without its LONG_LISTS."""
    return {name: part for name, part in outcome.to_json().items() if name not in LONG_LISTS}


def _make_config(options: ReplayOptions, tell: Callable[[str], None] | None) -> ReplayConfig:
    """The manager; a model and its memory stand in place of capacities and windows."""
    from trtkv.errors import InvalidInputError
    from trtkv.eviction.eviction_choice import EvictionChoice, parse_eviction_options
    from trtkv.replay.config import ReplayConfig
    from trtkv.replay.model_capacity import apply_cache_plan, describe_cache_plan
    from trtkv.replay.retention_rules import read_retention_rules

    config = ReplayConfig(
        tokens_per_block=options.tokens_per_block,
        capacity_tokens=_parse_capacity(options.capacity_tokens or "inf"),
        host_tokens=_parse_tokens("--host-tokens", options.host_tokens or "0"),
        live=options.live,
        partial_reuse=not options.no_partial_reuse,
        copy_on_partial_reuse=not options.no_copy_on_partial_reuse,
        windows=tuple(map(_parse_window, options.window or ["full"])),
        compatibility=options.compatibility,
        retention=None if options.retention is None else read_retention_rules(options.retention),
        eviction=EvictionChoice(
            options.eviction,
            parse_eviction_options(options.eviction_option or ()),
            leaves_only=not options.any_block,
            seed=options.seed,
        ),
    )
    if (options.model is None and options.cache_spec is None) or options.memory is None:
        about_a_model = (
            "model",
            "cache_spec",
            "memory",
            "host_memory",
            "max_seq_len",
            "window_shares",
            "snapshot_interval",
        )
        if any(getattr(options, name) is not None for name in about_a_model) or options.tp != 1:
            raise InvalidInputError("a cache is sized from --model and --memory together; give both")
        return config
    if options.capacity_tokens or options.host_tokens or options.window:
        raise InvalidInputError(
            "--model and --memory decide what fits; leave --capacity-tokens, --host-tokens and --window out"
        )
    sizing = make_options(
        options.memory,
        options.host_memory,
        options.kv_dtype,
        options.tp,
        options.tokens_per_block,
        options.max_seq_len,
        options.window_shares,
    )
    sizing = replace(sizing, snapshot_interval=options.snapshot_interval)
    plan = make_plan(options.model, options.cache_spec, sizing)
    if tell is not None:
        tell(f"size: {describe_cache_plan(plan)}")
        for note in plan.shape.notes:
            tell(f"size: {note}")
    return apply_cache_plan(config, plan)


def _check_system(system: SystemChoice, config: ReplayConfig) -> None:
    """nano-vllm has one tier, full attention and whole blocks; options about anything else are refused."""
    from trtkv.errors import ConfigurationError

    if system is SystemChoice.TENSORRT_LLM:
        return
    if config.states is not None:
        raise ConfigurationError(f"--system {system.value} has no recurrent states; choose a model without them")
    has_others = config.compatibility or config.retention is not None or not config.eviction.is_default
    if config.host_tokens or config.windows != (None,) or has_others:
        raise ConfigurationError(
            f"--system {system.value} knows none of --host-tokens, --window, --compatibility, --eviction and "
            "--retention; leave them out"
        )


def _make_loop(options: ReplayOptions, config: ReplayConfig) -> LoopConfig | None:
    """Settings of the scheduler loop, or None for the closed loop; refuses options of the other one."""
    from trtkv.errors import InvalidInputError

    if options.scheduler is None:
        refuse_without_scheduler(options)
        return None
    if config.live != 1 or options.bounds or options.system is not SystemChoice.TENSORRT_LLM:
        raise InvalidInputError("--live, --bounds and --system do not go with --scheduler; leave them out")
    if config.states is not None:
        raise InvalidInputError(
            "--scheduler does not end its steps at snapshots, which recurrent states need; leave it out"
        )
    return make_loop_config(options, config)


def _check_bounds(job: ReplayJob) -> None:
    from trtkv.errors import InvalidInputError

    if job.extras.bounds and job.system is SystemChoice.NANO_SCHEDULER:
        raise InvalidInputError("--bounds is about the closed loop; use --system nano")


def _run_nano(job: ReplayJob, trace: RequestTrace, progress_bar: ProgressBar) -> NanoResult:
    from trtkv.replay.bounds.bounds import compute_bounds
    from trtkv.replay.nano.nano_driver import run_nano, run_nano_scheduler

    config = job.config
    settings: dict[str, Any] = {
        "tokens_per_block": config.tokens_per_block,
        "capacity_tokens": config.capacity_tokens,
        "live": config.live,
    }
    run = run_nano if job.system is SystemChoice.NANO else run_nano_scheduler
    with progress_bar(len(trace.requests)) as progress, _without_cycle_collector():
        result = run(trace, **settings, progress=progress)
    if not job.extras.bounds:
        return result
    return replace(result, bounds=compute_bounds(trace.requests, **settings, partial_reuse=False))


@contextmanager
def _without_cycle_collector() -> Iterator[None]:
    """A replay makes no cyclic garbage, but the collector would walk all cached blocks again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_FACTORS = {"k": 10**3, "m": 10**6, "g": 10**9}


def _parse_tokens(option: str, text: str) -> int:
    from trtkv.errors import InvalidInputError

    digits, factor = text.strip(), 1
    if digits and digits[-1].lower() in _FACTORS:
        digits, factor = digits[:-1], _FACTORS[digits[-1].lower()]
    try:
        return int(digits) * factor
    except ValueError:
        raise InvalidInputError(f"{option} is {text!r}; give a number of tokens such as 30000000 or 30M") from None


def _parse_capacity(text: str) -> int | None:
    return None if text.strip().lower() == "inf" else _parse_tokens("--capacity-tokens", text)


def _parse_window(text: str) -> int | None:
    return None if text.strip().lower() == "full" else _parse_tokens("--window", text)
