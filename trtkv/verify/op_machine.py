"""OpMachine: runs ops of the trace format on the port. The runner compares its outcomes, the recorder writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trtkv.common import WindowSize
from trtkv.errors import TrtkvError
from trtkv.records.llm_request import LlmRequest
from trtkv.verify.debug_state import describe_queues
from trtkv.verify.json_kinds import Args, JsonValue
from trtkv.verify.machine_state import MachineState
from trtkv.verify.observation import observe
from trtkv.verify.op_spec import OpSpec
from trtkv.verify.op_table import OPS


class UnsupportedOpError(Exception):
    """The module behind an op cannot be imported here."""


class OpOutcome(NamedTuple):
    """What an op gave: an answer or an error, and the observation that belongs to it."""

    ret: JsonValue
    error: TrtkvError | None
    obs: dict[str, JsonValue] | None


class OpMachine:
    """Executes ops by name, one after the other, on a manager with a virtual clock.

    Manager and schedulers are in compatibility mode, or in the default one without ``compatibility``, unless their
    settings have a field of that name, which only programs recorded with this port have.
    ``make_request`` takes the arguments of LlmRequest and builds the requests of ``new_request``.
    """

    __slots__ = ("_state",)

    def __init__(self, make_request: Callable[..., LlmRequest] = LlmRequest, compatibility: bool = True) -> None:
        self._state = MachineState(make_request, compatibility)

    @property
    def state(self) -> MachineState:
        """Managers, requests and clock."""
        return self._state

    def execute(self, op: str, args: Args) -> OpOutcome:
        """Run one op whose args have been checked.

        An error that the port raises on purpose becomes part of the outcome; UnsupportedOpError says that a
        module is missing. Any other exception is a bug of the port and passes through.
        """
        spec = OPS[op]
        state = self._state
        ret: JsonValue = None
        error: TrtkvError | None = None
        try:
            ret = spec.run(state, args)
        except ImportError as missing:
            raise UnsupportedOpError(f"{op}: {missing}") from missing
        except TrtkvError as failure:
            error = failure
        state.collect_ties()
        return OpOutcome(ret, error, self._observe(spec, args, error is not None))

    def _observe(self, spec: OpSpec, args: Args, has_failed: bool) -> dict[str, JsonValue] | None:
        if not spec.is_observed or (has_failed and not spec.is_observed_on_error):
            return None
        if spec.names is None or (has_failed and not spec.names_on_error):
            return observe(self._state)
        return observe(self._state, spec.names(args), spec.has_short_entries)

    def describe_free_queues(self) -> dict[WindowSize, list[JsonValue]]:
        """The selected manager's free queues per window; empty without a manager."""
        manager = self._state.selected_manager
        if manager is None:
            return {}
        windows = manager.block_manager.window_block_managers
        return {window: describe_queues(window_manager) for window, window_manager in windows.items()}
