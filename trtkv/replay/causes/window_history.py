"""WindowHistory: what one attention window holds at each node of a KeyHistory, and how blocks left it."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from trtkv.blocks.block_listener import RemovalReason
from trtkv.common import RequestId
from trtkv.errors import check
from trtkv.records.kv_cache_index import get_level

if TYPE_CHECKING:
    from trtkv.blocks.kv_cache_block import KVCacheBlock
    from trtkv.window_block_manager import WindowBlockManager

_REASONS: Final = tuple(RemovalReason)


class Moment(NamedTuple):
    """A point of a run."""

    call: int
    """Calls of the manager so far."""
    num_admitted: int
    """Requests admitted so far."""
    num_tokens: int
    """Tokens for which blocks of the window were allocated so far."""


class Removal(NamedTuple):
    """How a block left the window's part of the tree for the last time."""

    reason: RemovalReason
    level: int
    """Tier it lay on."""
    request_id: RequestId
    """Whose allocation, or take-over, it was."""
    in_decode: bool
    """Whether that request was generating."""
    at: Moment
    idle_requests: int
    """Requests admitted since a request that had it was last done."""
    idle_tokens: int
    """Tokens allocated since then."""
    late_tokens: int
    """Tokens allocated between the removal and the question about it."""


class RemovalKind(NamedTuple):
    """What removals are counted by."""

    reason: RemovalReason
    level: int
    priority: int


class WindowHistory:
    """Present blocks, and the last removal, by node. Changed by ``store``, ``remove``, ``move`` and ``use`` only."""

    def __init__(self, manager: WindowBlockManager) -> None:
        self.manager = manager
        self.settings = manager.settings
        self.removals: Counter[RemovalKind] = Counter()
        self.num_stored = 0
        self.num_moved = [0] * len(self.settings.blocks_per_tier)
        """Blocks moved to each level."""
        self.num_present = [0] * len(self.settings.blocks_per_tier)
        """Blocks in the tree by level."""
        self._levels = array("b")  # 0: absent, else level + 1
        self._used_admitted = array("i")
        self._used_tokens = array("q")
        self._removed_reason = array("b")  # 0: never, else index + 1
        self._removed_level = array("b")
        self._removed_by = array("q")
        self._removed_in_decode = array("b")
        self._removed_call = array("q")
        self._removed_admitted = array("i")
        self._removed_tokens = array("q")
        self._idle_requests = array("i")
        self._idle_tokens = array("q")
        self._columns = [value for value in vars(self).values() if isinstance(value, array)]
        self._node_of_block: dict[KVCacheBlock, int] = {}

    @property
    def num_allocated_tokens(self) -> int:
        """Tokens for which blocks were allocated so far."""
        return self.manager.counters.alloc_total * self.settings.tokens_per_block

    # -- asking -------------------------------------------------------------------------------------

    def is_present(self, node: int) -> bool:
        """Whether the window has a block in the tree at a node."""
        return 0 <= node < len(self._levels) and self._levels[node] > 0

    def get_node(self, block: KVCacheBlock) -> int | None:
        """Where a block stands in the tree; None if nothing is known of it."""
        return self._node_of_block.get(block)

    def find_removal(self, node: int) -> Removal | None:
        """The last removal at a node, as of now; None if there was none."""
        if not 0 <= node < len(self._levels) or not self._removed_reason[node]:
            return None
        return Removal(
            _REASONS[self._removed_reason[node] - 1],
            self._removed_level[node],
            self._removed_by[node],
            bool(self._removed_in_decode[node]),
            Moment(self._removed_call[node], self._removed_admitted[node], self._removed_tokens[node]),
            self._idle_requests[node],
            self._idle_tokens[node],
            self.num_allocated_tokens - self._removed_tokens[node],
        )

    # -- changing -----------------------------------------------------------------------------------

    def store(self, node: int, block: KVCacheBlock, now: Moment) -> None:
        """A block has come into the tree."""
        self._grow(node)
        level = get_level(block.memory_pool_block_index)
        self._levels[node] = level + 1
        self.num_present[level] += 1
        self.num_stored += 1
        self._node_of_block[block] = node
        self.use(node, now)

    def use(self, node: int, now: Moment) -> None:
        """A request that has the block is done with it."""
        if node < len(self._levels):
            self._used_admitted[node] = now.num_admitted
            self._used_tokens[node] = now.num_tokens

    def remove(
        self, block: KVCacheBlock, reason: RemovalReason, request_id: RequestId, in_decode: bool, now: Moment
    ) -> None:
        """A block leaves the tree."""
        node = self._node_of_block.pop(block, None)
        if node is None:
            check(False, f"block {block.block_id} leaves the tree, but its arrival was not seen")
            return
        level = self._levels[node] - 1
        self._levels[node] = 0
        self.num_present[level] -= 1
        self.removals[RemovalKind(reason, level, block.priority)] += 1
        self._removed_reason[node] = _REASONS.index(reason) + 1
        self._removed_level[node] = level
        self._removed_by[node] = request_id
        self._removed_in_decode[node] = in_decode
        self._removed_call[node], self._removed_admitted[node], self._removed_tokens[node] = now
        self._idle_requests[node] = now.num_admitted - self._used_admitted[node]
        self._idle_tokens[node] = now.num_tokens - self._used_tokens[node]

    def move(self, block: KVCacheBlock, level: int) -> None:
        """The content of a block has gone to another tier; blocks outside the tree do not matter."""
        node = self._node_of_block.get(block)
        if node is not None:
            self.num_moved[level] += 1
            self.num_present[self._levels[node] - 1] -= 1
            self.num_present[level] += 1
            self._levels[node] = level + 1

    def _grow(self, node: int) -> None:
        """Room for a node, with zeros; at least an eighth more than before."""
        have = len(self._levels)
        if node >= have:
            more = max(node + 1 - have, have // 8, 1024)
            for column in self._columns:
                column.frombytes(bytes(column.itemsize * more))
