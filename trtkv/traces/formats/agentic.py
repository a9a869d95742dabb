"""Agent sessions (kv-cache-tester): one JSON object a session, with nested requests of sub-agents."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from trtkv.errors import InvalidInputError
from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, Link, numbered
from trtkv.traces.block_names import BlockNames
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.rows import Row, RowFaultError
from trtkv.traces.trace import TraceRequest
from trtkv.traces.trace_format import TraceFormat

SUBAGENT: Final = "subagent"
SCOPES: Final = ("local", "global", "per_context")


class _Call(NamedTuple):
    """One model call of a session."""

    time: float
    """Seconds since the start of the session."""
    agent: _Agent
    input_length: int
    output_length: int
    think_time: float
    hash_ids: list[int | str]


@dataclass(eq=False, slots=True)
class _Agent:
    """The main agent of a session, or a sub-agent."""

    context: int
    """0 for the main agent, then one number for each sub-agent."""
    name: str
    parent: _Agent | None
    time: float
    """When it is started, in seconds since the start of the session; times of its calls count from here."""
    entries: list[_Call | _Agent] = field(default_factory=list)
    """Its calls and the sub-agents that it starts, in the order of the file."""

    def by_time(self) -> list[_Call | _Agent]:
        """Calls and sub-agents by time, equal times in file order."""
        return sorted(self.entries, key=lambda entry: entry.time)

    def calls(self) -> list[_Call]:
        """Its own calls by time."""
        return [entry for entry in self.by_time() if isinstance(entry, _Call)]


def read_agentic(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """Requests session after session, in each by time. Ids name the full blocks of a prompt; its rest has no identity.

    ``hash_id_scope`` says where an id means the same: ``local`` in its session, ``global`` everywhere, ``per_context``
    (or absent) in its agent. Times of a sub-agent count from its start.
    """
    names = BlockNames()
    num_sessions = 0

    def convert(row: Row) -> list[Arrival]:
        nonlocal num_sessions
        block_size = fields.integer(row, "block_size", 1)
        names.check_block_size(block_size)
        if options.block_size not in (None, block_size):
            raise InvalidInputError(f"block_size is {block_size}, but --block-size says {options.block_size}")
        scope = _scope(row)
        agents, calls = _calls(row, block_size, fields.name(row, "id") or f"session {num_sessions + 1}")
        waits = _find_waits(agents)
        num_sessions += 1
        return [
            Arrival(
                call.time,
                call.input_length,
                call.output_length,
                names.tokens(_names(scope, num_sessions, call), call.input_length, block_size),
                link=_link(call, waits, num_sessions),
            )
            for call in sorted(calls, key=lambda call: call.time)
        ]

    return numbered(arrival for session in rows.records(convert) for arrival in session)


def _scope(row: Row) -> str:
    scope = row.get("hash_id_scope", "per_context")
    if scope not in SCOPES:
        raise RowFaultError(f"hash_id_scope is {scope!r:.80}, not one of {', '.join(SCOPES)}")
    return str(scope)


def _names(scope: str, session: int, call: _Call) -> Iterator[Hashable]:
    if scope == "global":
        return iter(call.hash_ids)
    if scope == "local":
        return ((session, block_id) for block_id in call.hash_ids)
    return ((session, call.agent.context, block_id) for block_id in call.hash_ids)


def _calls(session: Row, block_size: int, name: str) -> tuple[list[_Agent], list[_Call]]:
    """All agents and calls of a session, sub-agents at any depth included; each call must be valid."""
    main = _Agent(0, name, None, 0.0)
    agents: list[_Agent] = [main]
    calls: list[_Call] = []
    pending = [(session, main, "")]
    while pending:
        owner, agent, where = pending.pop()
        for position, entry in enumerate(fields.items(owner, "requests", where)):
            path = f"{where}requests[{position}]"
            call = fields.as_mapping(entry, path)
            time = agent.time + fields.number(call, "t", f"{path}.")
            if call.get("type") == SUBAGENT:
                label = fields.name(call, "agent_id", f"{path}.") or str(len(agents))
                sub_agent = _Agent(len(agents), f"{agent.name}/{label}", agent, time)
                agents.append(sub_agent)
                agent.entries.append(sub_agent)
                pending.append((call, sub_agent, f"{path}."))
            else:
                calls.append(_call(call, agent, time, f"{path}.", block_size))
                agent.entries.append(calls[-1])
    if not calls:
        raise RowFaultError("the session has no request")
    return agents, calls


def _call(call: Row, agent: _Agent, time: float, where: str, block_size: int) -> _Call:
    input_length, output_length = fields.integer(call, "in", 1, where), fields.integer(call, "out", 0, where)
    fields.check_total_length(input_length, output_length)
    ids = fields.hash_ids(call, "hash_ids", where)
    if len(ids) != input_length // block_size:
        raise RowFaultError(
            f"{where}hash_ids holds {len(ids)} ids, but {input_length} prompt tokens fill "
            f"{input_length // block_size} blocks of {block_size}"
        )
    think_time = fields.number(call, "think_time", where) if call.get("think_time") is not None else 0.0
    return _Call(time, agent, input_length, output_length, think_time, ids)


def _find_waits(agents: list[_Agent]) -> dict[int, list[_Call]]:
    """For each call, by its id(), the calls that it waits for.

    A call waits for its agent's call before it, and for each sub-agent whose last call is not later than itself; a
    sub-agent that goes on longer runs beside its parent until some later call. The first call of a sub-agent waits for
    the parent's last one before.
    """
    waits: dict[int, list[_Call]] = {}
    for agent in agents:
        before: list[_Call] = []
        running: list[_Call] = []  # last calls of sub-agents that no call waits for so far
        for entry in agent.by_time():
            if isinstance(entry, _Call):
                over = [last for last in running if last.time <= entry.time]
                running = [last for last in running if last.time > entry.time]
                waits.setdefault(id(entry), []).extend((*before, *over))
                before = [entry]
            elif calls := entry.calls():
                waits.setdefault(id(calls[0]), []).extend(before)
                running.append(calls[-1])
    return waits


def _link(call: _Call, waits: dict[int, list[_Call]], session: int) -> Link:
    parent = call.agent.parent
    return Link(
        call.agent.name,
        (session, id(call)),
        tuple((session, id(other)) for other in waits[id(call)]),
        call.think_time,
        None if parent is None else parent.name,
    )


FORMAT = TraceFormat("agentic", "agent sessions (kv-cache-tester)", read_agentic, keys=("block_size", "requests"))
