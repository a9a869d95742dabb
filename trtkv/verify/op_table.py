"""Every op of the trace format by name."""

from __future__ import annotations

from typing import Final

from trtkv.verify.json_kinds import Args, JsonValue, KindError, record
from trtkv.verify.manager_ops import MANAGER_OPS
from trtkv.verify.op_spec import OpSpec
from trtkv.verify.pure_ops import PURE_OPS
from trtkv.verify.query_ops import QUERY_OPS
from trtkv.verify.request_ops import REQUEST_OPS
from trtkv.verify.scheduler_ops import SCHEDULER_OPS

OPS: Final[dict[str, OpSpec]] = {**REQUEST_OPS, **MANAGER_OPS, **QUERY_OPS, **PURE_OPS, **SCHEDULER_OPS}

_ARGS_KINDS: Final = {name: record(spec.required, spec.optional) for name, spec in OPS.items()}


def check_args(op: str, args: JsonValue) -> Args:
    """The args, if they are those of the op; raises KindError otherwise, also for an unknown op."""
    kind = _ARGS_KINDS.get(op)
    if kind is None:
        raise KindError("", f"{op!r} is not an operation of the trace format")
    kind(args)
    checked: Args = args
    return checked
