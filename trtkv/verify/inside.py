"""What managers hold, in a form that says whether they will behave alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from trtkv.verify.debug_state import describe_internals
from trtkv.verify.json_kinds import JsonValue
from trtkv.verify.observation import observe_short

if TYPE_CHECKING:
    from trtkv.manager.kv_cache_manager import KVCacheManager
    from trtkv.verify.machine_state import MachineState

_IN_TREE: Final = 4
_LABELS: Final = (7, 8)
"""Hash and predecessor in the sequence, which only make the labels of events."""
_LEFT_OVER: Final = (3, 5, 6)
"""Full flag, predecessor and number of key tokens, which a block outside of the tree has kept of an earlier use."""


def describe_inside(state: MachineState) -> dict[str, JsonValue]:
    """Queues, blocks, tree and sequences of the managers, and the progress of the requests. Changes nothing.

    What no later call depends on is left out.
    """
    managers = {"self": state.self_manager, "cross": state.cross_manager}
    result: dict[str, JsonValue] = {
        name: _describe(manager) for name, manager in managers.items() if manager is not None
    }
    result["requests"] = {str(request_id): observe_short(state, request_id) for request_id in state.requests}
    return result


def _describe(manager: KVCacheManager) -> dict[str, Any]:
    result: dict[str, Any] = describe_internals(manager)
    windows = manager.window_sizes_metadata
    sequences = {
        str(request_id): [sequence.num_tokens, [sequence.get_cache_block_ids(window) for window in windows]]
        for request_id, sequence in manager.sequences.items()
    }
    result["tree"] = _sort_nodes(result["tree"])
    for window in windows:
        for block in result[str(window)]["blocks"]:
            for field in _LABELS if block[_IN_TREE] else (*_LABELS, *_LEFT_OVER):
                block[field] = None
    return {**result, "sequences": sequences}


def _sort_nodes(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Nodes and all below them by their keys: the order among children matters to equal partial matches only."""
    for node in nodes:
        if "ch" in node:
            node["ch"] = _sort_nodes(node["ch"])
    return sorted(nodes, key=lambda node: json.dumps({name: node[name] for name in node if name not in ("v", "ch")}))
