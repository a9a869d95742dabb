"""CauseObserver: follows what a manager's tree holds, and says of every prompt token why it was found or not.

It is told of each call, before and after, and listens to what is found and to what leaves the tree. It refuses to go on
when the manager finds a block that it has not seen coming.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trtkv.blocks.block_listener import RemovalReason
from trtkv.common import RequestId, WindowSize
from trtkv.errors import LogicError, check
from trtkv.keys.key_builder import build_block_keys
from trtkv.keys.packed_key import PackedKey
from trtkv.replay.causes.cause_counts import CauseCounts
from trtkv.replay.causes.causes import Cause
from trtkv.replay.causes.key_history import UNKNOWN, KeyHistory, TokenLoader
from trtkv.replay.causes.miss_causes import Holders, MissCauses, PromptPath, Segment
from trtkv.replay.causes.token_history import TokenHistory
from trtkv.replay.causes.window_history import Moment, WindowHistory
from trtkv.window_block_manager.storing import usable_tokens

if TYPE_CHECKING:
    from trtkv.blocks.kv_cache_block import KVCacheBlock
    from trtkv.manager.kv_cache_manager import KVCacheManager
    from trtkv.records.llm_request import LlmRequest
    from trtkv.window_block_manager import WindowBlockManager


class _Arrival:
    """A request that is about to be admitted."""

    __slots__ = ("alone", "request", "segments")

    def __init__(self, request: LlmRequest) -> None:
        self.request = request
        self.alone: list[int] = []
        """Tokens that each window has by itself, as far as the windows were asked."""
        self.segments: list[Segment] = []
        """Tokens that some window lacks."""


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
        self._holders = Holders()
        self._tokens = TokenHistory(load_tokens) if has_constraints else None
        self._arrivals: dict[RequestId, _Arrival] = {}
        self._paths: dict[RequestId, list[int]] = {}
        self._waiting_since: dict[RequestId, int] = {}
        self._num_calls = 0
        self._allocating_for: RequestId = UNKNOWN
        self._in_decode = False

    def watch(
        self, manager: KVCacheManager, make_window: Callable[[WindowBlockManager], WindowHistory] = WindowHistory
    ) -> None:
        """Begin with an empty manager that has this as its listener."""
        check(not self.windows, "an observer watches one manager")
        blocks = manager.block_manager
        self._tree = blocks.lookup_tree
        self.windows = [make_window(window) for window in reversed(blocks.window_block_managers.values())]
        self._window_of_size = {window.settings.window_size: window for window in self.windows}
        self._causes = MissCauses(self._tokens_per_block, self._history, self.windows, self._holders)

    # -- what the manager says -------------------------------------------------------------------------

    def on_match(
        self, request_id: RequestId, window_size: WindowSize, blocks: Sequence[KVCacheBlock], num_tokens: int
    ) -> None:
        """A window has so much of a prompt; when all have said so, its other tokens get their causes."""
        arrival = self._arrivals.get(request_id)
        if arrival is None:
            raise LogicError(f"request {request_id} is admitted, but its observer was not told")
        window = self._window_of_size[window_size]
        for block in blocks:
            known = block.is_placeholder or window.get_node(block) is not None
            check(known, f"request {request_id} found block {block.block_id}, which its observer has not seen coming")
        arrival.alone.append(num_tokens)
        if len(arrival.alone) == len(self.windows):
            self._explain(arrival)

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

    def admit(self, requests: Sequence[LlmRequest]) -> None:
        """A batch is about to be admitted."""
        self._num_calls += 1
        self._in_decode = False
        self._arrivals = {request.request_id: _Arrival(request) for request in requests}

    def admitted(self, requests: Sequence[LlmRequest]) -> None:
        """The batch was admitted."""
        self._holders.end_batch([self._paths[request.request_id] for request in requests])
        for request in requests:
            arrival = self._arrivals.pop(request.request_id)
            found = request.prepopulated_prompt_len
            num_cut = min(arrival.alone) - found  # every window has these, but not all at one length
            check(num_cut == 0 or (num_cut > 0 and len(self.windows) > 1), "windows have less than was found")
            segments = [Segment(Cause.OUTSIDE_WINDOW, num_cut), *arrival.segments] if num_cut else arrival.segments
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

    def _explain(self, arrival: _Arrival) -> None:
        """Causes of the tokens that some window lacks; requests of the batch that come next may share its nodes."""
        request = arrival.request
        path = PromptPath(request, self._tokens_per_block, self._tree.key_form, self._history)
        arrival.segments = self._refine(request, path.num_tokens, self._causes.explain(path, arrival.alone))
        self._paths[request.request_id] = self._add_nodes(request, path)
        self._holders.add_batch(self._paths[request.request_id])

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
