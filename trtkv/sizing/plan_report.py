"""Shows a CachePlan: a table for people, JSON for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trtkv.common import CacheType
from trtkv.sizing.memory_size import format_memory_size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from trtkv.sizing.cache_plan import CachePlan, WindowPlan
    from trtkv.sizing.plan_check import PlanCheck


def plan_json(plan: CachePlan, check: PlanCheck | None = None) -> dict[str, object]:
    """Everything, in a fixed order; ``check`` is None when none was made."""
    shape, options, model = plan.shape, plan.options, plan.model_config
    linear = model.linear_attention_metadata
    return {
        "model": shape.name,
        "model_type": shape.model_type,
        "model_layers": shape.num_layers,
        "cached_layers": len(shape.layers),
        "model_dtype": shape.dtype.value,
        "kv_dtype": model.dtype.value,
        "cache_type": model.cache_type.value,
        "tp_size": options.tp_size,
        "tokens_per_block": options.tokens_per_block,
        "max_sequence_length": plan.max_sequence_length,
        "block_reuse": options.block_reuse,
        "snapshot_interval": None if linear is None else linear.states_snapshot_interval,
        "index_head_dim": shape.index_head_dim,
        "memory_bytes": options.memory_bytes,
        "host_memory_bytes": options.host_memory_bytes,
        "bytes_per_token": plan.bytes_per_token,
        "num_sequences": plan.num_sequences,
        "longest_prompt": plan.longest_prompt,
        "primary_bytes": plan.primary_bytes,
        "secondary_bytes": plan.secondary_bytes,
        "windows": [_window_json(window) for window in plan.windows],
        "notes": list(shape.notes),
        "check": None if check is None else _check_json(check),
    }


def plan_json_text(plan: CachePlan, check: PlanCheck | None = None) -> str:
    """The plan as JSON text."""
    return json.dumps(plan_json(plan, check), indent=2) + "\n"


def _window_json(window: WindowPlan) -> dict[str, object]:
    return {
        "window_size": None if window.keeps_states else window.window_size,
        "kind": _kind(window),
        "layers": window.num_layers,
        "kv_heads": list(window.kv_heads),
        "size_per_head": window.size_per_head,
        "bytes_per_token": window.bytes_per_token,
        "bytes_per_block": window.bytes_per_block,
        "primary_blocks": window.primary_blocks,
        "secondary_blocks": window.secondary_blocks,
        "primary_tokens": window.primary_tokens,
        "secondary_tokens": window.secondary_tokens,
        "primary_bytes": window.primary_bytes,
        "secondary_bytes": window.secondary_bytes,
        "blocks_per_sequence": window.blocks_per_sequence,
        "num_sequences": window.num_sequences,
    }


def _check_json(check: PlanCheck) -> dict[str, object]:
    return {
        "good": check.is_good,
        "allocated_bytes": check.allocated_bytes,
        "full_primary_bytes": check.full_primary_bytes,
        "windows": [
            {
                "primary_blocks": window.primary_blocks,
                "secondary_blocks": window.secondary_blocks,
                "pools": window.num_pools,
                "planned_block_bytes": window.planned_block_bytes,
                "allocated_block_bytes": window.allocated_block_bytes,
            }
            for window in check.windows
        ],
        "faults": list(check.faults),
    }


def _kind(window: WindowPlan) -> str:
    return "states" if window.keeps_states else "full" if window.is_full else "sliding"


def print_plan(plan: CachePlan, check: PlanCheck | None = None, console: Console | None = None) -> None:
    """Print tables of settings and windows to the console (default: standard output)."""
    from rich.console import Console

    console = console or Console()
    console.print(_settings_table(plan))
    console.print(_windows_table(plan))
    console.print(_tiers_table(plan))
    for line in plan_lines(plan, check):
        console.print(line, markup=False, highlight=False)


def plan_lines(plan: CachePlan, check: PlanCheck | None = None) -> list[str]:
    """Sentences below the tables: notes on the model, what the windows share, what a check found."""
    lines = [f"note: {note}" for note in plan.shape.notes]
    if len(plan.windows) > 1:
        lines.append("Each window has a share of the memory of its own: --window-shares sets them.")
    if plan.longest_prompt < plan.max_sequence_length:
        lines.append(
            f"A prompt is whole in every window until its first token: longer ones than {plan.longest_prompt:,} tokens "
            "cannot be admitted."
        )
    if check is not None:
        pools = sum(window.num_pools for window in check.windows)
        allocated, full, given = map(
            format_memory_size, (check.allocated_bytes, check.full_primary_bytes, plan.options.memory_bytes)
        )
        lines.append(
            f"check: {pools} pools allocated on the CPU, {allocated}; all planned blocks would take {full} of {given}"
        )
        lines += [f"check: {fault}" for fault in check.faults] or ["check: plan and tensors agree"]
    return lines


def _settings_table(plan: CachePlan) -> Table:
    from rich.table import Table
    from rich.text import Text

    shape, options, model = plan.shape, plan.options, plan.model_config
    table = Table(title=Text(f"Cache of {shape.name}"), title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    held = "keys only" if model.cache_type is CacheType.SELFKONLY else "keys and values"
    rows = [
        ("model type", shape.model_type or "-"),
        ("layers with a cache", f"{len(shape.layers)} of {shape.num_layers}"),
        ("held for a token", f"{held} in {model.dtype.value}"),
        ("bytes of a token", f"{plan.bytes_per_token:,}"),
        ("tensor parallel ranks", f"{options.tp_size}"),
        ("tokens per block", f"{options.tokens_per_block:,}"),
        ("longest sequence, tokens", f"{plan.max_sequence_length:,}"),
        ("longest sequences at a time", f"{plan.num_sequences:,}"),
        ("device memory", format_memory_size(options.memory_bytes)),
        ("host memory", format_memory_size(options.host_memory_bytes)),
    ]
    for row in rows:
        table.add_row(row[0], Text(row[1]))
    return table


def _windows_table(plan: CachePlan) -> Table:
    from rich.table import Table

    table = Table(title="Windows", title_justify="left")
    table.add_column("window", no_wrap=True)
    for name in ("layers", "KV\nheads", "head\nsize", "bytes a\ntoken", "bytes a\nblock", "blocks a\nsequence"):
        table.add_column(name, justify="right", no_wrap=True)
    for window in plan.windows:
        heads = "-" if window.keeps_states else ", ".join(map(str, window.kv_heads))
        table.add_row(
            _window_name(window),
            _count(window.num_layers),
            heads,
            "-" if window.keeps_states else _count(window.size_per_head),
            _count(window.bytes_per_token),
            _count(window.bytes_per_block),
            _count(window.blocks_per_sequence),
        )
    return table


def _tiers_table(plan: CachePlan) -> Table:
    from rich.table import Table

    table = Table(title="Blocks", title_justify="left")
    for name in ("window", "tier"):
        table.add_column(name, no_wrap=True)
    for name in ("blocks", "tokens\nthat fit", "longest\nsequences", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for window in plan.windows:
        name = _window_name(window)
        counts = (window.primary_blocks, window.primary_tokens, window.num_sequences)
        table.add_row(name, "device", *map(_count, counts), format_memory_size(window.primary_bytes))
        if plan.options.host_memory_bytes:
            host = (window.secondary_blocks, window.secondary_tokens)
            table.add_row(name, "host", *map(_count, host), "-", format_memory_size(window.secondary_bytes))
    return table


def _window_name(window: WindowPlan) -> str:
    return "states" if window.keeps_states else f"{window.window_size:,}{' (full)' if window.is_full else ''}"


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
