"""A model's cache as a replay sees it: its windows and their blocks, without heads and bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkv.errors import ConfigurationError, InvalidInputError

if TYPE_CHECKING:
    from trtkv.replay.config import ReplayConfig
    from trtkv.sizing.cache_plan import CachePlan
    from trtkv.traces.trace import RequestTrace


def apply_cache_plan(config: ReplayConfig, plan: CachePlan) -> ReplayConfig:
    """The replay settings with the windows and blocks of a plan; one layer stands for all layers of a window.

    Refuses models with recurrent states (ConfigurationError), which the closed loop does not run.
    """
    if plan.shape.states is not None:
        raise ConfigurationError(
            f"{plan.shape.name} keeps recurrent states, which a replay does not model; trtkv size shows what fits"
        )
    if len(plan.windows) == 1:
        (window,) = plan.windows
        return replace(
            config,
            windows=(None if window.is_full else window.window_size,),
            capacity_tokens=window.primary_tokens,
            host_tokens=window.secondary_tokens or 0,
            min_sequence_length=plan.max_sequence_length,
        )
    return config.with_window_blocks(
        [None if window.is_full else window.window_size for window in plan.windows],
        [(window.primary_blocks, window.secondary_blocks) for window in plan.windows],
        plan.max_sequence_length,
    )


def check_lengths(config: ReplayConfig, trace: RequestTrace) -> None:
    """Refuse a trace with longer requests than the server of ``apply_cache_plan`` takes."""
    longest = trace.max_total_length
    if 0 < config.min_sequence_length < longest:
        raise InvalidInputError(
            f"{trace.name} has a request of {longest} tokens, but the longest sequence of the model is "
            f"{config.min_sequence_length}; choose a longer one with --max-seq-len"
        )


def describe_cache_plan(plan: CachePlan) -> str:
    """One line: what the memory became."""
    windows = ", ".join(
        f"window {'full' if window.is_full else window.window_size}: {window.primary_blocks:,} blocks of "
        f"{window.bytes_per_block:,} bytes, {window.secondary_blocks:,} on the host"
        for window in plan.windows
    )
    return f"{plan.shape.name}, {plan.bytes_per_token:,} bytes a token in {plan.model_config.dtype.value}; {windows}"
