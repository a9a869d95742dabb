"""A model's cache as a replay sees it: its windows and their blocks, without heads and bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkv.errors import InvalidInputError, LogicError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkv.replay.config import RecurrentStatesConfig, ReplayConfig
    from trtkv.sizing.cache_plan import CachePlan, WindowPlan
    from trtkv.traces.trace import RequestTrace


def apply_cache_plan(config: ReplayConfig, plan: CachePlan) -> ReplayConfig:
    """The replay settings with the windows and blocks of a plan; one layer stands for all layers of a window.

    With recurrent states partial reuse is off, as half a block has no state. Raises ConfigurationError where their
    memory does not hold a single one.
    """
    states = next((window for window in plan.windows if window.keeps_states), None)
    if states is not None:
        config = replace(config, partial_reuse=False)
        config = _with_windows(config, plan, [window for window in plan.windows if window is not states])
        return replace(config, states=_states_config(plan, states))
    if len(plan.windows) == 1:
        (window,) = plan.windows
        return replace(
            config,
            windows=(None if window.is_full else window.window_size,),
            capacity_tokens=window.primary_tokens,
            host_tokens=window.secondary_tokens or 0,
            min_sequence_length=plan.max_sequence_length,
        )
    return _with_windows(config, plan, plan.windows)


def _with_windows(config: ReplayConfig, plan: CachePlan, windows: Sequence[WindowPlan]) -> ReplayConfig:
    return config.with_window_blocks(
        [None if window.is_full else window.window_size for window in windows],
        [(window.primary_blocks, window.secondary_blocks) for window in windows],
        plan.max_sequence_length,
    )


def _states_config(plan: CachePlan, window: WindowPlan) -> RecurrentStatesConfig:
    from trtkv.replay.config import RecurrentStatesConfig

    linear = plan.model_config.linear_attention_metadata
    if linear is None:
        raise LogicError(f"{plan.shape.name} has a window of states and no description of them")
    return RecurrentStatesConfig(window.primary_blocks, window.secondary_blocks, linear.states_snapshot_interval)


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
        f"{_window_name(window)}: {window.primary_blocks:,} blocks of "
        f"{window.bytes_per_block:,} bytes, {window.secondary_blocks:,} on the host"
        for window in plan.windows
    )
    dtype = plan.model_config.dtype.value
    return f"{plan.shape.name}, {plan.bytes_per_token:,} bytes per token in {dtype}; {windows}"


def _window_name(window: WindowPlan) -> str:
    if window.keeps_states:
        return "recurrent states"
    return f"window {'full' if window.is_full else window.window_size}"
