"""Sessions that prompts suggest: which row goes on from which, where the trace says nothing."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_128

from trtkv.traces.trace import HashIdTokens, TraceRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_Group = dict[int, dict[bytes, list[TraceRequest]]]
"""Rows by the length and the digest of what they leave."""

_HEAD_TOKENS: Final = 16
"""Tokens by which rows are grouped before they are compared."""

_NO_HEAD: Final = b""
"""Group of the rows that leave fewer tokens."""


def infer_predecessors(requests: Sequence[TraceRequest]) -> dict[int, int]:
    """Request -> the one it goes on from, by index, for the requests of which the trace says nothing."""
    silent = [row for row in requests if row.session is None and not row.predecessors and not row.num_missing]
    named = [row for row in silent if isinstance(row.source, HashIdTokens)]
    listed = [row for row in silent if not isinstance(row.source, HashIdTokens)]
    return {**_infer_by_names(named), **_infer_by_tokens(listed)}


def _infer_by_names(requests: Sequence[TraceRequest]) -> dict[int, int]:
    """By the names of full blocks: room for the answer, and a last block that is not shared with other sessions."""
    nodes: dict[tuple[int, int], int] = {}
    first_session: list[int] = [-1]  # by node: the session in which it was first seen; node 0 is the root
    open_ends: dict[int, list[TraceRequest]] = {}  # by node of the last full block; no later row goes on from them
    session_of: dict[int, int] = {}
    found: dict[int, int] = {}
    for row in requests:
        names = _names(row)
        path = _walk(nodes, names)
        earlier = _find_by_names(row, path, open_ends)
        session = row.index if earlier is None else session_of[earlier.index]
        session_of[row.index] = session
        if earlier is not None:
            found[row.index] = earlier.index
        path = _extend(nodes, path, names, first_session, session)
        num_full = min(row.input_length // _block_size(row), len(path) - 1)
        if num_full and first_session[path[num_full]] == session:
            open_ends.setdefault(path[num_full], []).append(row)
    return found


def _names(row: TraceRequest) -> array[int]:
    return row.source.ids if isinstance(row.source, HashIdTokens) else array("q")


def _block_size(row: TraceRequest) -> int:
    return row.source.block_size if isinstance(row.source, HashIdTokens) else 1


def _walk(nodes: Mapping[tuple[int, int], int], names: Sequence[int]) -> list[int]:
    """Nodes of the names that were seen before, after the root."""
    path = [0]
    for name in names:
        node = nodes.get((path[-1], name))
        if node is None:
            break
        path.append(node)
    return path


def _extend(
    nodes: dict[tuple[int, int], int], path: list[int], names: Sequence[int], first_session: list[int], session: int
) -> list[int]:
    """The path with new nodes for the rest of the names."""
    for name in names[len(path) - 1 :]:
        nodes[path[-1], name] = len(first_session)
        path.append(len(first_session))
        first_session.append(session)
    return path


def _find_by_names(
    row: TraceRequest, path: Sequence[int], open_ends: Mapping[int, list[TraceRequest]]
) -> TraceRequest | None:
    """The row with most full blocks that this one goes on from, the last of several; it is taken out."""
    for node in reversed(path[1:]):
        rows = open_ends.get(node, [])
        for place in reversed(range(len(rows))):
            earlier = rows[place]
            is_later = not (row.is_timed and earlier.is_timed) or earlier.timestamp < row.timestamp
            if is_later and row.input_length >= earlier.input_length + earlier.output_length:
                return rows.pop(place)
    return None


def _infer_by_tokens(requests: Sequence[TraceRequest]) -> dict[int, int]:
    """By tokens: a prompt that begins with the whole prompt and known output of an earlier row."""
    groups: dict[bytes, _Group] = {}
    found: dict[int, int] = {}
    for row in requests:
        tokens = row.tokens()
        near = (groups.get(head) for head in (_head(tokens), _NO_HEAD))
        earlier = next((match for group in near if (match := _find_by_tokens(row, tokens, group)) is not None), None)
        if earlier is not None:
            found[row.index] = earlier.index
        left = _left_tokens(row, tokens)
        if left is not None:
            head = _head(left) if len(left) >= _HEAD_TOKENS else _NO_HEAD
            rows = groups.setdefault(head, {}).setdefault(len(left), {})
            rows.setdefault(xxh3_128(left.tobytes()).digest(), []).append(row)
    return found


def _head(tokens: NDArray[np.int32]) -> bytes:
    return tokens[:_HEAD_TOKENS].tobytes()


def _left_tokens(row: TraceRequest, tokens: NDArray[np.int32]) -> NDArray[np.int32] | None:
    """Prompt and output but the last token, if all of that is known."""
    import numpy as np

    needed = max(row.output_length, 1) - 1
    if not needed:
        return tokens
    known = row.output
    if known is None or known.start or known.length < needed:
        return None
    return np.concatenate((tokens, known.tokens()[:needed]))


def _find_by_tokens(row: TraceRequest, tokens: NDArray[np.int32], group: _Group | None) -> TraceRequest | None:
    """The row with the longest prompt and output that this prompt begins with, the last of several."""
    best: TraceRequest | None = None
    digest, start = xxh3_128(), 0
    for length in sorted(group or ()):
        if length > len(tokens) or group is None:
            break
        digest.update(tokens[start:length].tobytes())
        start = length
        for earlier in group[length].get(digest.digest(), ()):
            has_room = row.input_length >= earlier.input_length + earlier.output_length
            if has_room and earlier.timestamp <= row.timestamp:
                best = earlier
    return best
