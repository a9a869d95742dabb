"""A manager as text: who holds which blocks, what is cached, what goes next. For people, at small scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trtkv.blocks.generation_request import SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock, LookupNodePtr
from trtkv.common import (
    PLACEHOLDER_LEVEL,
    PRIMARY_LEVEL,
    RECURRENT_STATES,
    SECONDARY_LEVEL,
    BlockId,
    WindowSize,
)
from trtkv.keys.packed_key import describe_key
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.window_block_manager import WindowBlockManager

_LEVEL_NAMES = {PRIMARY_LEVEL: "free", SECONDARY_LEVEL: "free, host", PLACEHOLDER_LEVEL: "free placeholders"}


def draw(manager: KVCacheManager) -> str:
    """Requests, the tree of cached blocks and the free blocks of every window. Changes nothing.

    Requests: block ids by position, beams separated by ``|``; ``(3)`` has left a sliding window, ``.`` has no memory.
    Tree: the tokens of a node, deeper ones indented, and its block in each window; ``*`` marks blocks that somebody
    holds, ``h`` those in host memory, ``.`` placeholders, ``-`` no block. Free blocks stand in the order in which they
    are taken.
    """
    windows = manager.block_manager.window_block_managers
    lines = _draw_requests(manager)
    lines += _draw_tree(manager.block_manager.lookup_tree.root, windows.values())
    for window_size, blocks in windows.items():
        lines += _draw_free(blocks, name_window(window_size) if len(windows) > 1 else "")
    return "\n".join(lines)


def name_window(window_size: WindowSize) -> str:
    """A window in words."""
    return "states" if window_size == RECURRENT_STATES else f"window {window_size}"


def _draw_requests(manager: KVCacheManager) -> list[str]:
    windows = list(manager.block_manager.window_block_managers)
    lines = []
    for request_id, sequence in manager.sequences.items():
        for window_size in windows:
            title = f"request {request_id}" + (f", {name_window(window_size)}" if len(windows) > 1 else "")
            lines.append(f"{title}: {_draw_row(sequence.get_window(window_size), sequence.beam_width)}")
    return lines


def _draw_row(window: SequenceWindow, beam_width: int) -> str:
    rows = []
    for beam_idx, ids in enumerate(window.block_ids):
        held = window.held[beam_idx::beam_width]
        rows.append(
            " ".join(
                f"({block_id})"
                if position < window.num_front_blocks_removed
                else ("." if block.is_placeholder else str(block_id))
                for position, (block_id, block) in enumerate(zip(ids, held, strict=True))
            )
        )
    return " | ".join(rows)


def _draw_tree(root: LookupNodePtr, windows: Iterable[WindowBlockManager]) -> list[str]:
    entries = _list_nodes(root, 0)
    managers = list(windows)
    if not entries:
        return ["cached: nothing"]
    width = max(len(text) for text, _ in entries)
    lines = ["cached:"]
    for text, node in entries:
        marks = (_draw_block(node.get_value(manager.settings.channel)) for manager in managers)
        if len(managers) > 1:
            marks = (
                f"{name_window(m.settings.window_size)}: {mark:4}" for m, mark in zip(managers, marks, strict=True)
            )
        lines.append(f"  {text:{width}}  {' '.join(marks)}".rstrip())
    return lines


def _list_nodes(node: LookupNodePtr, depth: int) -> list[tuple[str, LookupNodePtr]]:
    result = []
    for child in reversed(list(node.ordered_children())):
        result.append(("  " * depth + describe_key(child.key), child))
        result += _list_nodes(child, depth + 1)
    return result


def _draw_block(block: KVCacheBlock | None) -> str:
    if block is None:
        return "-"
    if block.is_placeholder:
        return "."
    return f"{block.block_id}{'' if block.is_primary else 'h'}{'*' if block.has_refs else ''}"


def _draw_free(blocks: WindowBlockManager, title: str) -> list[str]:
    by_level: dict[int, list[BlockId]] = {PRIMARY_LEVEL: []}
    for level, _, ids in blocks.eviction_policy.free_queues():
        by_level.setdefault(level, []).extend(ids)
    return [f"{_name_level(level)}{', ' if title else ''}{title}: {_draw_ids(ids)}" for level, ids in by_level.items()]


def _name_level(level: int) -> str:
    return _LEVEL_NAMES.get(level, f"free, tier {level}")


def _draw_ids(ids: Sequence[BlockId]) -> str:
    """Ids in order; three and more in a row as a range."""
    parts: list[str] = []
    start = 0
    while start < len(ids):
        end = start + 1
        step = ids[end] - ids[start] if end < len(ids) else 0
        while step in (1, -1) and end < len(ids) and ids[end] - ids[end - 1] == step:
            end += 1
        if end - start < 3:
            end = start + 1
        parts.append(str(ids[start]) if end == start + 1 else f"{ids[start]}..{ids[end - 1]}")
        start = end
    return " ".join(parts) or "none"
