"""apply_protocol: a trace as a protocol has it run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trtkv.traces.sessions.inference import infer_predecessors
from trtkv.traces.sessions.known_outputs import ToldOutputs, tell_outputs
from trtkv.traces.sessions.protocol import Outputs, SessionFacts, SessionProtocol, Sessions
from trtkv.traces.trace import TraceRequest

if TYPE_CHECKING:
    from trtkv.traces.trace import RequestTrace


def apply_protocol(trace: RequestTrace, protocol: SessionProtocol) -> RequestTrace:
    """The trace with the predecessors and outputs that the protocol gives it; prompts of delta rows stay.

    Does not change ``trace``. To be called once for a trace as it was read.
    """
    requests: Sequence[TraceRequest] = trace.requests
    inferred: dict[int, int] = {}
    if protocol.sessions is Sessions.IGNORE:
        requests = [replace(row, predecessors=()) if row.predecessors else row for row in requests]
    elif protocol.sessions is Sessions.INFER:
        inferred = infer_predecessors(requests)
        requests = _joined(requests, inferred)
    told = ToldOutputs(list(requests), 0, 0)
    if protocol.outputs is Outputs.SYNTHETIC:
        requests = [row if row.output is None else replace(row, output=None) for row in requests]
    else:
        if trace.block_size is not None:
            told = tell_outputs(requests, trace.block_size)
        requests = told.requests
    known = [row.output.length for row in requests if row.output is not None]
    facts = SessionFacts(
        protocol,
        session_count=len({row.session for row in requests if row.session is not None}),
        requests_with_predecessor=sum(bool(row.predecessors) for row in requests),
        missing_predecessors=0 if protocol.sessions is Sessions.IGNORE else sum(row.num_missing for row in requests),
        inferred_predecessors=len(inferred),
        outputs_known=len(known),
        output_tokens_known=sum(known),
        from_ids=sum(known) - told.tokens_from_continuation,
        from_continuation=told.tokens_from_continuation,
    )
    return replace(trace, requests=requests, sessions=facts)


def _joined(requests: Sequence[TraceRequest], inferred: dict[int, int]) -> list[TraceRequest]:
    """Requests with inferred predecessors, in the session of the first row of their chain."""
    starts = set(inferred.values()) - inferred.keys()
    names: dict[int, str] = {index: f"inferred {index}" for index in starts}
    joined = []
    for row in requests:
        earlier = inferred.get(row.index)
        if earlier is not None:
            names[row.index] = names[earlier]
            row = replace(row, predecessors=(earlier,))
        joined.append(replace(row, session=names[row.index]) if row.index in names else row)
    return joined
