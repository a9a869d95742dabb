"""OracleObserver: works out from its own history what each window has of a prompt, beside what it is told."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from trtkv.blocks.block_listener import RemovalReason
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import MAX_INT32
from trtkv.keys.key_builder import build_block_keys
from trtkv.keys.packed_key import PackedKey, num_key_tokens, supports_partial_matching
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest
from trtkv.replay.causes.cause_observer import CauseObserver
from trtkv.replay.causes.key_history import KeyHistory
from trtkv.replay.causes.miss_causes import find_nodes
from trtkv.replay.causes.window_history import Moment, WindowHistory
from trtkv.window_block_manager import WindowBlockManager


class Match(NamedTuple):
    """What a window alone has of a prompt."""

    num_tokens: int
    depends_on_length: bool
    """Whether it is of use at this length only, since blocks before it are missing."""


class NodeLinks:
    """Counts, for each node, its blocks over all windows and its children that stand in the tree.

    A node of the tree lives as long as it has one of these, so a count above 0 means that it is there.
    """

    def __init__(self, history: KeyHistory) -> None:
        self._parents = history.parents
        self._counts = array("i", [1])  # the root is always there

    def exists(self, node: int) -> bool:
        return 0 <= node < len(self._counts) and self._counts[node] > 0

    def add(self, node: int) -> None:
        """A block has come to a node; nodes above it come into being with it."""
        missing = node + 1 - len(self._counts)
        if missing > 0:
            self._counts.frombytes(bytes(4 * missing))
        while node >= 0:
            self._counts[node] += 1
            if self._counts[node] > 1:
                return
            node = self._parents[node]

    def remove(self, node: int) -> None:
        """A block has left a node; nodes left empty go."""
        while node >= 0:
            assert self._counts[node] > 0
            self._counts[node] -= 1
            if self._counts[node]:
                return
            node = self._parents[node]


class OracleWindow(WindowHistory):
    """A history that can be asked what admission will find."""

    def __init__(self, manager: WindowBlockManager, history: KeyHistory, links: NodeLinks) -> None:
        super().__init__(manager)
        self._history = history
        self._links = links
        self._block_of_node: dict[int, KVCacheBlock] = {}

    def store(self, node: int, block: KVCacheBlock, now: Moment) -> None:
        super().store(node, block, now)
        self._block_of_node[node] = block
        self._links.add(node)

    def remove(self, block: KVCacheBlock, reason: RemovalReason, request_id: int, in_decode: bool, now: Moment) -> None:
        node = self.get_node(block)
        super().remove(block, reason, request_id, in_decode, now)
        assert node is not None
        del self._block_of_node[node]
        self._links.remove(node)

    def match(self, look_ups: Sequence[tuple[int, PackedKey]], most_tokens: int = MAX_INT32) -> Match:
        is_swa, window_size = self.settings.is_swa, self.settings.window_size
        tokens = safe = end_of_last_hole = 0
        has_hole = False
        parent = 0
        for node, key in look_ups:
            num_tokens = num_key_tokens(key)
            is_hole = not self.is_present(node)
            if is_hole and not self._links.exists(node):
                matched = self._match_part(parent, key)
                end = tokens + matched
                if matched and end <= most_tokens and (not end_of_last_hole or end >= end_of_last_hole + window_size):
                    safe, has_hole = end, end_of_last_hole > 0
                break
            if tokens + num_tokens > most_tokens or (is_hole and not is_swa):
                break
            if not is_hole and num_tokens < self.settings.tokens_per_block and not self._may_use_part(node):
                break
            tokens += num_tokens
            if is_hole:
                end_of_last_hole = tokens
            if not end_of_last_hole or tokens >= end_of_last_hole + window_size:
                safe, has_hole = tokens, end_of_last_hole > 0
            parent = node
        return Match(safe, has_hole)

    def _may_use_part(self, node: int) -> bool:
        """Whether a part-filled block that is found exactly may be used."""
        settings = self.settings
        if settings.compatibility:
            return True
        return settings.enable_partial_reuse and (settings.copy_on_partial_reuse or self._is_idle_leaf(node))

    def _match_part(self, parent: int, key: PackedKey) -> int:
        """Tokens that the best usable child shares with a key that has no node of its own."""
        settings = self.settings
        if not settings.enable_partial_reuse or not supports_partial_matching(key) or not self._links.exists(parent):
            return 0
        for num_tokens, node in self._history.find_siblings(parent, key):
            if self.is_present(node) and (settings.copy_on_partial_reuse or self._is_idle_leaf(node)):
                return num_tokens
        return 0

    def _is_idle_leaf(self, node: int) -> bool:
        block = self._block_of_node[node]
        return not block.has_refs and block.is_leaf


class OracleObserver(CauseObserver):
    """Checks each admission against its own history: every window alone, and all together."""

    num_checked = 0
    """Requests, over all observers."""

    def watch(self, manager: KVCacheManager) -> None:
        links = NodeLinks(self._history)
        super().watch(manager, lambda window: OracleWindow(window, self._history, links))
        self._manager = manager

    def admit(self, requests: Sequence[LlmRequest]) -> None:
        super().admit(requests)
        self._expected = [self._match(self._look_ups(request)) for request in requests]

    def admitted(self, requests: Sequence[LlmRequest]) -> None:
        told = [(request.prepopulated_prompt_len, self._arrivals[request.request_id].alone) for request in requests]
        assert len(told) == len(self._expected)
        for found, expected in zip(told, self._expected, strict=True):
            if found != expected:  # a partial match of a batch, which another request takes over
                assert len(requests) > 1
                assert not self._manager.block_manager.settings.reuse.copy_on_partial_reuse
                assert found[0] == expected[0] // self._tokens_per_block * self._tokens_per_block
        OracleObserver.num_checked += len(told)
        super().admitted(requests)

    def _look_ups(self, request: LlmRequest) -> list[tuple[int, PackedKey]]:
        """What admission looks up: all tokens but the last, each key with its node."""
        size, form = self._tokens_per_block, self._tree.key_form
        keys = build_block_keys(request, size, request.prompt_len - 1, True, form)
        return list(zip(find_nodes(self._history, keys), keys, strict=True))

    def _match(self, look_ups: Sequence[tuple[int, PackedKey]]) -> tuple[int, list[int]]:
        """Tokens that all windows give together, and those that each would give alone; the widest first."""
        windows: list[OracleWindow] = self.windows
        alone = [window.match(look_ups).num_tokens for window in windows]
        limit = MAX_INT32
        matches: list[Match] = []
        for window in windows:
            matches.append(window.match(look_ups, limit))
            limit = matches[-1].num_tokens
        settled = self._manager.compatibility
        while not settled:
            settled = True
            for index, window in enumerate(windows):
                if matches[index].depends_on_length and matches[index].num_tokens > limit:
                    settled = False
                    matches[index] = window.match(look_ups, limit)
                    limit = min(limit, matches[index].num_tokens)
        return limit, alone
