"""PlanReport: a cache plan, and what was asked about it, as a result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkv.common import RECURRENT_STATES, CacheType, WindowSize
from trtkv.sizing.cache_spec import SPEC_KEY, cache_spec_json
from trtkv.tables.result import Result
from trtkv.tables.table import Cell, Table, fact_table, list_table
from trtkv.tables.wording import count, memory_size, window

if TYPE_CHECKING:
    from trtkv.sizing.cache_plan import CachePlan, WindowPlan
    from trtkv.sizing.plan_check import PlanCheck
    from trtkv.sizing.request_room import NeededMemory, RequestRoom


@dataclass(frozen=True, slots=True, repr=False)
class PlanReport(Result):
    """A plan, what fits into it, and what a check of it found; None is what was not asked for."""

    plan: CachePlan
    check: PlanCheck | None = None
    room: RequestRoom | None = None
    """What fits of requests of one length."""
    needed: NeededMemory | None = None
    """Memory for a number of such requests; the plan is of that memory."""

    def to_json(self) -> dict[str, object]:
        """Everything, in a fixed order."""
        plan, shape = self.plan, self.plan.shape
        options, model = plan.options, plan.model_config
        linear = model.linear_attention_metadata
        return {
            "model": shape.name,
            "model_source": shape.source,
            "model_type": shape.model_type,
            "model_layers": shape.num_layers,
            "cached_layers": len(shape.layers),
            "model_dtype": shape.dtype.value,
            "kv_dtype": model.dtype.value,
            "cache_type": model.cache_type.value,
            "tp_size": options.tp_size,
            "pp_size": options.pp_size,
            "tokens_per_block": options.tokens_per_block,
            "max_sequence_length": plan.max_sequence_length,
            "block_reuse": options.block_reuse,
            "snapshot_interval": None if linear is None else linear.states_snapshot_interval,
            "index_head_dim": shape.index_head_dim,
            "index_bytes_per_token": sum(row.index_bytes_per_token for row in plan.windows),
            "memory_bytes": options.memory_bytes,
            "reserved_bytes": options.reserved_bytes,
            "host_memory_bytes": options.host_memory_bytes,
            "bytes_per_token": plan.bytes_per_token,
            "num_sequences": plan.num_sequences,
            "longest_prompt": plan.longest_prompt,
            "primary_bytes": plan.primary_bytes,
            "secondary_bytes": plan.secondary_bytes,
            "windows": [_window_json(window) for window in plan.windows],
            "notes": list(shape.notes),
            "facts": {key: {"value": value, "from": name or "default"} for key, (value, name) in shape.facts.items()},
            SPEC_KEY: cache_spec_json(shape),
            "requests": None if self.room is None else _room_json(self.room),
            "needed": None if self.needed is None else _needed_json(self.needed),
            "check": None if self.check is None else _check_json(self.check),
        }

    def facts(self) -> dict[str, Cell]:
        """Figures of the plan as a whole by name."""
        plan, shape = self.plan, self.plan.shape
        options, model = plan.options, plan.model_config
        held = "keys only" if model.cache_type is CacheType.SELFKONLY else "keys and values"
        facts: dict[str, Cell] = {
            "model type": shape.model_type or None,
            "layers with a cache": f"{len(shape.layers)} of {shape.num_layers}",
            "held for a token": held,
            "element type": model.dtype.value,
            "bytes per token": plan.bytes_per_token,
            "tensor parallel ranks": options.tp_size,
            "tokens per block": options.tokens_per_block,
            "longest sequence, tokens": plan.max_sequence_length,
            "longest sequences at a time": plan.num_sequences,
            "device memory": memory_size(options.memory_bytes),
            "host memory": memory_size(options.host_memory_bytes),
        }
        if options.pp_size > 1:
            facts["pipeline stages"] = options.pp_size
        if options.reserved_bytes:
            facts["reserved beside it"] = memory_size(options.reserved_bytes)
        return facts

    def room_facts(self) -> dict[str, Cell]:
        """Figures about requests of one length; empty if they were not asked for."""
        facts: dict[str, Cell] = {}
        if self.needed is not None:
            facts[f"bytes for {count(self.needed.num_requests)} requests"] = self.needed.memory_bytes
            if len(self.plan.windows) > 1:
                facts["bytes with shares that suit them"] = self.needed.shared_bytes
        if self.room is not None:
            facts["input + output tokens"] = (
                f"{count(self.room.length.input_length)} + {count(self.room.length.output_length)}"
            )
            facts["requests at a time"] = self.room.num_requests
            facts["tokens of these requests"] = self.room.num_tokens
            tightest = self.room.tightest_window
            facts["limited by window"] = next(
                window_name(window) for window in self.plan.windows if window.window_size == tightest
            )
            if self.plan.options.host_memory_bytes:
                facts["requests kept on the host"] = self.room.host_requests
        return facts

    def tables(self) -> list[Table]:
        """Settings, requests if they were asked for, windows, and blocks of each tier."""
        settings = fact_table(f"Cache of {self.plan.shape.name}", self.facts())
        room = [] if self.room is None else [fact_table("Requests", self.room_facts())]
        return [settings, *room, _windows_table(self.plan), _tiers_table(self.plan)]

    def notes(self) -> list[str]:
        """Notes on the model, what the windows share, what a check found."""
        plan, check = self.plan, self.check
        lines = [f"note: {note}" for note in plan.shape.notes]
        if len(plan.windows) > 1:
            lines.append("Each window has a share of the memory of its own: --window-shares sets them.")
        if self.needed is not None and len(self.needed.shares) > 1:
            shares = ",".join(f"{share:.4f}" for share in self.needed.shares)
            lines.append(f"Shares that suit these requests: --window-shares {shares}")
        if plan.longest_prompt < plan.max_sequence_length:
            lines.append(
                "A prompt is whole in every window until its first token: prompts longer than "
                f"{count(plan.longest_prompt)} tokens cannot be admitted."
            )
        if check is not None:
            pools = sum(window.num_pools for window in check.windows)
            allocated, full, given = map(
                memory_size, (check.allocated_bytes, check.full_primary_bytes, plan.options.memory_bytes)
            )
            lines.append(
                f"check: {pools} pools allocated on the CPU, {allocated}; "
                f"all planned blocks would take {full} of {given}"
            )
            lines += [f"check: {fault}" for fault in check.faults] or ["check: plan and tensors agree"]
        return lines


def _room_json(room: RequestRoom) -> dict[str, object]:
    return {
        "input_length": room.length.input_length,
        "output_length": room.length.output_length,
        "requests": room.num_requests,
        "tokens": room.num_tokens,
        "limited_by": _window_size_or_none(room.tightest_window),
        "host_requests": room.host_requests,
        "blocks_per_request": [
            {"window_size": _window_size_or_none(size), "generating": need.generating, "admitted": need.admitted}
            for size, need in room.needs.items()
        ],
    }


def _needed_json(needed: NeededMemory) -> dict[str, object]:
    return {
        "requests": needed.num_requests,
        "memory_bytes": needed.memory_bytes,
        "memory_bytes_with_shares": needed.shared_bytes,
        "window_shares": list(needed.shares),
    }


def _window_size_or_none(size: WindowSize) -> int | None:
    """None for recurrent states."""
    return None if size == RECURRENT_STATES else size


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


def _windows_table(plan: CachePlan) -> Table:
    return list_table(
        "Windows",
        {
            "window": window_name,
            "layers": lambda row: row.num_layers,
            "KV heads": lambda row: None if row.keeps_states else ", ".join(map(str, row.kv_heads)),
            "head size": lambda row: None if row.keeps_states else row.size_per_head,
            "bytes per token": lambda row: row.bytes_per_token,
            "bytes per block": lambda row: row.bytes_per_block,
            "blocks per sequence": lambda row: row.blocks_per_sequence,
        },
        plan.windows,
    )


def _tiers_table(plan: CachePlan) -> Table:
    return list_table(
        "Blocks",
        {
            "window": lambda row: window_name(row[0]),
            "tier": lambda row: "host" if row[1] else "device",
            "blocks": lambda row: row[0].secondary_blocks if row[1] else row[0].primary_blocks,
            "tokens that fit": lambda row: row[0].secondary_tokens if row[1] else row[0].primary_tokens,
            "longest sequences": lambda row: None if row[1] else row[0].num_sequences,
            "memory": lambda row: memory_size(row[0].secondary_bytes if row[1] else row[0].primary_bytes),
        },
        _tiers(plan),
        texts=2,
    )


def _tiers(plan: CachePlan) -> Iterator[tuple[WindowPlan, int]]:
    """Each window with its tiers, the device first."""
    for row in plan.windows:
        yield row, 0
        if plan.options.host_memory_bytes:
            yield row, 1


def window_name(row: WindowPlan) -> str:
    """What a window is called."""
    return "states" if row.keeps_states else window(row.window_size, is_full=row.is_full)
