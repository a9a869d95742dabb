"""CauseObserver: follows what a manager's tree holds, and says of every prompt token why it was found or not.

It is told of each call, before and after, and listens to what leaves the tree. Before each admission it works out from
its own history what will be found, and refuses to go on when the manager finds something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from trtkv.blocks.block_listener import RemovalReason
from trtkv.common import MAX_INT32, RequestId, WindowSize
from trtkv.errors import LogicError, check
from trtkv.keys.block_key import PackedKey, build_block_keys
from trtkv.replay.causes.cause_counts import CauseCounts
from trtkv.replay.causes.causes import Cause
from trtkv.replay.causes.key_history import UNKNOWN, KeyHistory, TokenLoader
from trtkv.replay.causes.miss_causes import Holders, MissCauses, PromptPath, Segment
from trtkv.replay.causes.node_links import NodeLinks
from trtkv.replay.causes.token_history import TokenHistory
from trtkv.replay.causes.window_history import Match, Moment, WindowHistory
from trtkv.window_block_manager.storing import usable_tokens

if TYPE_CHECKING:
    from trtkv.blocks.kv_cache_block import KVCacheBlock
    from trtkv.manager.kv_cache_manager import KVCacheManager
    from trtkv.records.llm_request import LlmRequest


class _Expected(NamedTuple):
    """What the history says about a request that is about to be admitted."""

    found: int
    segments: list[Segment]


class CauseObserver:
    """A BlockListener that is also told of calls. ``load_tokens``: see KeyHistory.

    Give it to the manager as ``block_listener``, then call ``watch``. It follows managers with one beam, without
    connector and recurrent states, with reuse on. ``has_constraints``: whether requests may have salts, LoRA ids, extra
    ids or multimodal content.
    """

    def __init__(self, tokens_per_block: int, load_tokens: TokenLoader, *, has_constraints: bool = False) -> None:
        self.counts = CauseCounts()
        self.windows: list[WindowHistory] = []
        """The widest first."""
        self._tokens_per_block = tokens_per_block
        self._history = KeyHistory(tokens_per_block, load_tokens)
        self._links = NodeLinks(self._history)
        self._holders = Holders()
        self._tokens = TokenHistory(load_tokens) if has_constraints else None
        self._paths: dict[RequestId, list[int]] = {}
        self._waiting_since: dict[RequestId, int] = {}
        self._num_calls = 0
        self._allocating_for: RequestId = UNKNOWN
        self._in_decode = False

    def watch(self, manager: KVCacheManager) -> None:
        """Begin with an empty manager that has this as its listener."""
        check(not self.windows, "an observer watches one manager")
        blocks = manager.block_manager
        self._manager = manager
        self._tree = blocks.lookup_tree
        self.windows = [
            WindowHistory(window, self._history, self._links)
            for window in reversed(blocks.window_block_managers.values())
        ]
        self._window_of_size = {window.settings.window_size: window for window in self.windows}
        self._causes = MissCauses(self._tokens_per_block, self._history, self.windows, self._holders)

    # -- what the manager says -------------------------------------------------------------------------

    def on_allocation(self, request_id: RequestId, window_size: WindowSize) -> None:
        """Blocks taken from now on are for this request."""
        self._allocating_for = request_id

    def on_removed(self, block: KVCacheBlock, window_size: WindowSize, reason: RemovalReason) -> None:
        """A block leaves the tree."""
        window = self._window_of_size[window_size]
        window.remove(block, reason, self._allocating_for, self._in_decode, self._now(window))

    def on_moved(self, block: KVCacheBlock, window_size: WindowSize, level: int) -> None:
        """A block lies on another tier now."""
        self._window_of_size[window_size].move(block, level)

    def _now(self, window: WindowHistory) -> Moment:
        return Moment(self._num_calls, self.counts.num_requests, window.num_allocated_tokens)

    # -- what the caller of the manager says -------------------------------------------------------------

    def wait(self, request_id: RequestId) -> None:
        """A request whose turn it is finds no room; the first time counts."""
        self._waiting_since.setdefault(request_id, self._num_calls + 1)

    def admit(self, requests: Sequence[LlmRequest]) -> list[_Expected]:
        """A batch is about to be admitted; the result is for ``admitted``."""
        self._num_calls += 1
        self._in_decode = False
        expected = []
        for request in requests:
            path = PromptPath(request, self._tokens_per_block, self._tree.key_form, self._history)
            found, alone = self._match(path)
            segments = list(self._causes.explain(path, found, alone))
            expected.append(_Expected(found, self._refine(request, path.num_tokens, segments)))
            self._paths[request.request_id] = self._add_nodes(request, path)
            self._holders.add_batch(self._paths[request.request_id])
        return expected

    def admitted(self, requests: Sequence[LlmRequest], expected: Sequence[_Expected]) -> None:
        """The batch was admitted. Raises LogicError if anything else was found than expected."""
        self._holders.end_batch([self._paths[request.request_id] for request in requests])
        for request, (found, segments) in zip(requests, expected, strict=True):
            if request.prepopulated_prompt_len != found:
                raise LogicError(
                    f"request {request.request_id} found {request.prepopulated_prompt_len} tokens, its history says "
                    f"{found}"
                )
            self.counts.add(request.request_id, request.prompt_len, found, segments)
        self.counts.sample(self.windows)

    def stored(self, request: LlmRequest) -> None:
        """The full blocks of a prompt were stored."""
        self._num_calls += 1
        keys = build_block_keys(request, self._tokens_per_block, usable_tokens(request), False, self._tree.key_form)
        path = self._paths[request.request_id][: len(keys)]
        self._see_stored(path, keys)

    def decode(self) -> None:
        """Tokens are about to be added."""
        self._num_calls += 1
        self._in_decode = True

    def removed(self, request: LlmRequest) -> None:
        """A sequence was removed, and everything that it has computed was stored."""
        self._num_calls += 1
        keys = build_block_keys(request, self._tokens_per_block, usable_tokens(request), True, self._tree.key_form)
        prompt_path = self._paths.pop(request.request_id)
        path = prompt_path[: min(request.prompt_len // self._tokens_per_block, len(keys))]
        for key in keys[len(path) :]:
            path.append(self._history.add(path[-1] if path else 0, key, request.request_id))
        self._see_stored(path, keys)
        self._holders.remove(prompt_path, path)
        for window in self.windows:
            now = self._now(window)
            for node in path:
                window.use(node, now)
        if self._tokens is not None:
            self._tokens.add(request.request_id, request.get_num_tokens() - 1)

    # -- inside -----------------------------------------------------------------------------------------

    def _match(self, path: PromptPath) -> tuple[int, list[int]]:
        """Tokens that all windows give together, and those that each would give alone; the widest first."""
        alone = [window.match(path.look_ups) for window in self.windows]
        if len(self.windows) == 1:
            return alone[0].num_tokens, [alone[0].num_tokens]
        limit = MAX_INT32
        matches: list[Match] = []
        for window in self.windows:
            matches.append(window.match(path.look_ups, limit))
            limit = matches[-1].num_tokens
        settled = self._manager.compatibility or not any(window.settings.is_swa for window in self.windows)
        while not settled:
            settled = True
            for index, window in enumerate(self.windows):
                if matches[index].depends_on_length and matches[index].num_tokens > limit:
                    settled = False
                    matches[index] = window.match(path.look_ups, limit)
                    limit = min(limit, matches[index].num_tokens)
        return limit, [match.num_tokens for match in alone]

    def _add_nodes(self, request: LlmRequest, path: PromptPath) -> list[int]:
        nodes: list[int] = []
        for node, key in zip(path.nodes, path.keys, strict=True):
            if node == UNKNOWN:
                node = self._history.add(nodes[-1] if nodes else 0, key, request.request_id)
            nodes.append(node)
        return nodes

    def _see_stored(self, path: Sequence[int], keys: Sequence[PackedKey]) -> None:
        """Look at the tree for blocks that have come in along a path."""
        if all(window.is_present(node) for window in self.windows for node in path):
            return
        tree_nodes = self._tree.lookup_nodes(keys)
        for window in self.windows:
            now = self._now(window)
            channel = window.settings.channel
            for node, tree_node in zip(path, tree_nodes, strict=False):
                if not window.is_present(node):
                    block = tree_node.get_value(channel)
                    if block is not None:
                        window.store(node, block, now)

    def _refine(self, request: LlmRequest, num_tokens: int, segments: list[Segment]) -> list[Segment]:
        """Tell losses during a wait from earlier ones, and cold tokens from those seen under another key."""
        since = self._waiting_since.pop(request.request_id, None)
        if since is not None:
            segments = [
                segment._replace(cause=Cause.DEFERRED)
                if segment.removal is not None and segment.removal.at.call >= since
                else segment
                for segment in segments
            ]
        if self._tokens is None:
            return segments
        num_seen = self._tokens.add(request.request_id, num_tokens)
        num_cold = sum(segment.num_tokens for segment in segments if segment.cause is Cause.COLD)
        num_other = max(0, num_seen - (num_tokens - num_cold))
        parts = [Segment(Cause.OTHER_KEY, num_other), Segment(Cause.COLD, num_cold - num_other)]
        others = [segment for segment in segments if segment.cause is not Cause.COLD]
        return others + [part for part in parts if part.num_tokens]
