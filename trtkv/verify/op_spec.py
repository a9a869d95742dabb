"""OpSpec: how one op of the trace format is checked, run and observed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from trtkv.common import RequestId
from trtkv.verify.json_kinds import Args, JsonValue, Kind
from trtkv.verify.machine_state import MachineState


def names_id(args: Args) -> Iterable[RequestId]:
    """The request in ``id``."""
    return (args["id"],)


def names_ids(args: Args) -> Iterable[RequestId]:
    """The requests in ``ids``."""
    ids: list[RequestId] = args["ids"]
    return ids


def names_batch(args: Args) -> Iterable[RequestId]:
    """The requests of a batch of ``[id, input length, beam width]``."""
    return [entry[0] for entry in args["requests"]]


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One op. ``run`` changes the state, returns the JSON answer and raises the errors of the port."""

    run: Callable[[MachineState, Args], JsonValue]
    required: Mapping[str, Kind] = field(default_factory=dict)
    optional: Mapping[str, Kind] = field(default_factory=dict)
    is_observed: bool = False
    """Whether an observation belongs to it."""
    names: Callable[[Args], Iterable[RequestId]] | None = None
    """Requests that its observation shows."""
    is_observed_on_error: bool = True
    names_on_error: bool = True
    has_short_entries: bool = False
    """Whether the shown requests have the few fields of the schedulers' ops."""
