"""Assigns the tokens of one prompt to causes, from the history of keys and of each window."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trtkv.common import KeyForm, ceil_div
from trtkv.errors import check
from trtkv.keys.key_builder import build_block_keys
from trtkv.keys.packed_key import PackedKey
from trtkv.records.llm_request import LlmRequest
from trtkv.replay.causes.causes import Cause
from trtkv.replay.causes.key_history import UNKNOWN, KeyHistory
from trtkv.replay.causes.window_history import Removal, WindowHistory


class PromptPath:
    """A prompt as keys and nodes: whole blocks, and the started last one."""

    __slots__ = ("keys", "nodes", "num_tokens")

    def __init__(self, request: LlmRequest, tokens_per_block: int, key_form: KeyForm, history: KeyHistory) -> None:
        self.num_tokens = request.prompt_len
        self.keys = build_block_keys(request, tokens_per_block, self.num_tokens, True, key_form)
        self.nodes = find_nodes(history, self.keys)


def find_nodes(history: KeyHistory, keys: Sequence[PackedKey]) -> list[int]:
    """The node of each key; UNKNOWN from the first one on that the history does not have."""
    nodes = []
    node = 0
    for key in keys:
        node = history.find(node, key)
        nodes.append(node)
    return nodes


class Segment(NamedTuple):
    """So many tokens of one cause."""

    cause: Cause
    num_tokens: int
    removal: Removal | None = None
    """For evicted ones."""
    same_batch: bool = False
    """For those not stored yet: only requests of the same batch have computed them."""


class _Verdict(NamedTuple):
    rank: int
    """The highest of several blocks that begin alike decides."""
    cause: Cause
    removal: Removal | None = None
    same_batch: bool = False

    def segment(self, num_tokens: int) -> Segment:
        return Segment(self.cause, num_tokens, self.removal, self.same_batch)


_COLD = _Verdict(0, Cause.COLD)
_OUTSIDE = _Verdict(1, Cause.OUTSIDE_WINDOW)


class Holders:
    """Which nodes live requests have computed, those of the batch being admitted apart, and which are history."""

    def __init__(self) -> None:
        self._counts = array("i")
        self._batch: set[int] = set()
        self._left = bytearray()

    def add_batch(self, nodes: Sequence[int]) -> None:
        """A request of the batch has these; they count as earlier ones after ``end_batch``."""
        self._batch.update(nodes)

    def end_batch(self, paths: Sequence[Sequence[int]]) -> None:
        """The requests of the batch are live now."""
        self._batch.clear()
        for path in paths:
            missing = max(path, default=0) + 1 - len(self._counts)
            if missing > 0:
                self._counts.frombytes(bytes(4 * max(missing, len(self._counts) // 8)))
            for node in path:
                self._counts[node] += 1

    def remove(self, nodes: Sequence[int], left: Sequence[int]) -> None:
        """A live request is done; ``left`` are the nodes of everything that it has computed."""
        for node in nodes:
            self._counts[node] -= 1
        missing = max(left, default=0) + 1 - len(self._left)
        if missing > 0:
            self._left += bytes(max(missing, len(self._left) // 8))
        for node in left:
            self._left[node] = 1

    def was_left(self, node: int) -> bool:
        """Whether a request that is done had computed exactly this."""
        return 0 <= node < len(self._left) and self._left[node] > 0

    def find(self, node: int) -> _Verdict | None:
        """The verdict if a request holds the node."""
        if 0 <= node < len(self._counts) and self._counts[node]:
            return _HELD
        return _IN_BATCH if node in self._batch else None


_HELD = _Verdict(3, Cause.NOT_STORED)
_IN_BATCH = _Verdict(3, Cause.NOT_STORED, same_batch=True)


class MissCauses:
    """Reads histories, changes nothing. ``windows``: the widest first."""

    def __init__(
        self, tokens_per_block: int, history: KeyHistory, windows: Sequence[WindowHistory], held: Holders
    ) -> None:
        self._tokens_per_block = tokens_per_block
        self._history = history
        self._windows = windows
        self._held = held

    def explain(self, path: PromptPath, alone: Sequence[int]) -> list[Segment]:
        """Segments that cover all prompt tokens that some window lacks; cold ones come last.

        ``alone``: the tokens that each window has by itself. A token belongs to the widest window that lacks it.
        """
        end = path.num_tokens
        segments: list[Segment] = []
        for window, start in zip(self._windows, alone, strict=True):
            if start < end:
                segments = [*self._explain_in(window, path, start, end), *segments]
                end = start
        return segments

    def _explain_in(self, window: WindowHistory, path: PromptPath, start: int, end: int) -> Iterator[Segment]:
        size = self._tokens_per_block
        first = start // size
        broken = self._find_break(window, path.nodes[:first]) if window.settings.is_swa else None
        for index in range(first, ceil_div(end, size)):
            low, high = max(start, index * size), min(end, (index + 1) * size)
            node = path.nodes[index]
            verdict = self._judge(window, node)
            if verdict is None:
                parent = path.nodes[index - 1] if index else 0
                yield from self._explain_part(window, path, parent, index, low, high, start, broken)
                if high < end:
                    yield _COLD.segment(end - high)
                return
            if verdict is not _PRESENT:
                broken = verdict
                yield verdict.segment(high - low)
            elif broken is not None:
                yield broken.segment(high - low)
            else:
                check(index == len(path.nodes) - 1, "a cached block that can be reached was not found")
                yield Segment(Cause.LAST_TOKEN, high - low)

    def _find_break(self, window: WindowHistory, nodes: Sequence[int]) -> _Verdict | None:
        """The last hole of a sliding window before some block."""
        for node in reversed(nodes):
            verdict = self._judge(window, node)
            if verdict is not _PRESENT:
                return verdict
        return None

    def _judge(self, window: WindowHistory, node: int) -> _Verdict | None:
        """What has become of a node in a window; None for those that are not held and were left as they are."""
        if node == UNKNOWN:
            return None
        if window.is_present(node):
            return _PRESENT
        held = self._held.find(node)
        if held is not None:
            return held
        removal = window.find_removal(node)
        if removal is not None:
            return _Verdict(2, Cause.EVICTED, removal)
        return _OUTSIDE if self._held.was_left(node) else None

    def _explain_part(
        self,
        window: WindowHistory,
        path: PromptPath,
        parent: int,
        index: int,
        low: int,
        high: int,
        found: int,
        broken: _Verdict | None,
    ) -> Iterator[Segment]:
        """Tokens low..high of a block that was never seen as a whole: blocks that begin alike decide."""
        start = index * self._tokens_per_block
        judged = [
            (min(start + sibling.num_tokens, high), verdict)
            for sibling in self._history.find_siblings(parent, path.keys[index], low - start)
            if (verdict := self._judge(window, sibling.node)) is not None
        ]
        segments = [_COLD.segment(high - (judged[0][0] if judged else low))]
        best: _Verdict | None = None
        for position, (upper, verdict) in enumerate(judged):
            best = _better(best, verdict)
            lower = judged[position + 1][0] if position + 1 < len(judged) else low
            if lower < upper:
                segments.append(self._part(best, upper - lower, upper, path, found, broken))
        yield from (segment for segment in reversed(segments) if segment.num_tokens)

    @staticmethod
    def _part(
        verdict: _Verdict, num_tokens: int, end: int, path: PromptPath, found: int, broken: _Verdict | None
    ) -> Segment:
        if verdict is not _PRESENT:
            return verdict.segment(num_tokens)
        if broken is not None:
            return broken.segment(num_tokens)
        is_last = end == path.num_tokens and num_tokens == 1 and found == end - 1
        return Segment(Cause.LAST_TOKEN if is_last else Cause.PARTIAL_BLOCK, num_tokens)


_PRESENT = _Verdict(4, Cause.HIT)


def _better(left: _Verdict | None, right: _Verdict) -> _Verdict:
    """The higher rank; of two removals the later one."""
    if left is None or right.rank > left.rank:
        return right
    if left.rank == right.rank and left.removal is not None and right.removal is not None:
        return left if left.removal.at >= right.removal.at else right
    return left
