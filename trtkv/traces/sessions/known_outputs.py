"""Outputs of traces that name blocks: told by the names of a completion, or by the prompt of the next turn."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from trtkv.traces.sessions.block_beginnings import Beginning, BlockBeginnings, TokensFrom
from trtkv.traces.trace import HashIdTokens, KnownOutput, TraceRequest


class ToldOutputs(NamedTuple):
    """Requests with the outputs found, and how many tokens came from where."""

    requests: list[TraceRequest]
    tokens_from_names: int
    tokens_from_continuation: int


def tell_outputs(requests: Sequence[TraceRequest], block_size: int) -> ToldOutputs:
    """Give requests whose blocks are named their outputs; those that have one keep it.

    ``predecessors`` are those of the protocol in force; positions are indices.
    """
    successors = _find_successors(requests)
    beginnings = BlockBeginnings(block_size)
    told: dict[int, tuple[HashIdTokens, int]] = {}  # request -> names from which its output is read, and their kind
    by_position = {request.index: request for request in requests}
    from_names = from_continuation = 0
    for request in requests:
        names = _ids(request)
        if names is None or request.output is not None or not request.output_length:
            continue
        followers = [by_position[index] for index in successors.get(request.index, ())]
        if request.completion is not None:
            _note_completion(request, request.completion, names, followers, beginnings)
            told[request.index] = (request.completion, _known_length(request, request.completion))
            from_names += told[request.index][1]
            continue
        follower = next((row for row in followers if _begins_with(row, request, names, beginnings)), None)
        if follower is not None and isinstance(follower.source, HashIdTokens):
            told[request.index] = (follower.source, request.output_length)
            from_continuation += request.output_length
    found = [_with_output(request, told.get(request.index), beginnings) for request in requests]
    return ToldOutputs(found, from_names, from_continuation)


def _with_output(
    request: TraceRequest, told: tuple[HashIdTokens, int] | None, beginnings: BlockBeginnings
) -> TraceRequest:
    source = beginnings.apply(request.source)
    if told is None:
        return request if source is request.source else replace(request, source=source)
    names, length = told
    output = KnownOutput(TokensFrom(beginnings.apply(names), request.input_length), length)
    return replace(request, source=source, output=output if length else None)


def _ids(request: TraceRequest) -> array[int] | None:
    return request.source.ids if isinstance(request.source, HashIdTokens) else None


def _known_length(request: TraceRequest, completion: HashIdTokens) -> int:
    named = len(completion.ids) * completion.block_size - request.input_length
    return max(0, min(named, request.output_length))


def _find_successors(requests: Sequence[TraceRequest]) -> dict[int, list[int]]:
    """For each request, those that go on from it, in replay order."""
    by_index = {request.index: request for request in requests}
    successors: dict[int, list[int]] = {}
    for request in requests:
        earlier = [by_index[index] for index in request.predecessors if index in by_index]
        candidates = [row for row in earlier if goes_on_from(request, row)]
        if candidates:
            best = max(candidates, key=lambda row: (row.input_length, row.index))
            successors.setdefault(best.index, []).append(request.index)
    return successors


def goes_on_from(row: TraceRequest, earlier: TraceRequest) -> bool:
    """Whether a prompt begins with all full blocks of another one and has room for its output."""
    own, names = _ids(row), _ids(earlier)
    if own is None or names is None or row.input_length < earlier.input_length + earlier.output_length:
        return False
    num_full = earlier.input_length // _block_size(earlier)
    return own[:num_full] == names[:num_full]


def _block_size(request: TraceRequest) -> int:
    return request.source.block_size if isinstance(request.source, HashIdTokens) else 1


def _begins_with(row: TraceRequest, request: TraceRequest, names: array[int], beginnings: BlockBeginnings) -> bool:
    """Whether the block of a row in which the prompt of ``request`` ends can begin with that prompt's last block."""
    own = _ids(row)
    place, num_tokens = divmod(request.input_length, _block_size(request))
    if own is None or not num_tokens:
        return own is not None
    return place < len(own) and beginnings.add(own[place], Beginning(names[place], num_tokens))


def _note_completion(
    request: TraceRequest,
    completion: HashIdTokens,
    names: array[int],
    followers: Sequence[TraceRequest],
    beginnings: BlockBeginnings,
) -> None:
    """The prompt's last block begins one of the completion; the completion's last one begins one of the next prompt."""
    size = _block_size(request)
    place, num_tokens = divmod(request.input_length, size)
    if num_tokens and place < len(completion.ids):
        beginnings.add(completion.ids[place], Beginning(names[place], num_tokens))
    end, rest = divmod(request.input_length + request.output_length, size)
    if not rest or end >= len(completion.ids):
        return
    for row in followers:
        own = _ids(row)
        if own is not None and len(own) > end and own[:end] == completion.ids[:end]:
            beginnings.add(own[end], Beginning(completion.ids[end], rest))
            return
