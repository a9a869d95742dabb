"""Recorded programs on the default behaviour: where they depart from what was recorded, and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtkv.verify.compare import Difference, find_difference
from trtkv.verify.departure_rules import TOTALS_DECISION, SequenceFacts, Step, count_primary_only, find_decision
from trtkv.verify.inside import describe_inside
from trtkv.verify.op_machine import OpMachine
from trtkv.verify.op_table import OPS
from trtkv.verify.program import Program, RecordedOp, read_program
from trtkv.verify.program_result import Mismatch
from trtkv.verify.runner import compare_outcome, make_mismatch, replay_op, run_op


@dataclass(frozen=True, slots=True)
class Departure:
    """An op that gave something else than recorded, and the number of the page in docs/decisions that explains it."""

    mismatch: Mismatch
    decision: str | None


@dataclass(frozen=True, slots=True)
class DefaultResult:
    """A program on the default behaviour: the first departure of each decision, in the order of the ops."""

    path: Path
    group: str
    seed: int
    num_ops: int
    num_compared: int
    """Ops up to the one after which the managers of the two behaviours are different inside."""
    departures: tuple[Departure, ...]

    @property
    def is_explained(self) -> bool:
        """Whether each departure has its decision."""
        return all(departure.decision is not None for departure in self.departures)


def verify_default(path: Path | str) -> DefaultResult:
    """Replay one file on the default behaviour. Raises TraceFormatError for a file that is not a program."""
    return run_default(read_program(Path(path)))


def run_default(program: Program) -> DefaultResult:
    """Replay a program on both behaviours, up to the op after which their managers are different inside.

    The look inside finds the op where they part; answers may show it many ops later.
    """
    run = _DefaultRun()
    num_compared = 0
    for recorded in program.ops:
        num_compared += 1
        if not run.step(recorded):
            break
    departures = tuple(run.departures.values())
    return DefaultResult(program.path, program.group, program.seed, len(program.ops), num_compared, departures)


class _DefaultRun:
    """Two machines in lock step."""

    def __init__(self) -> None:
        self.departures: dict[str | None, Departure] = {}
        self._recorded = OpMachine()
        self._default = OpMachine(compatibility=False)

    def step(self, recorded: RecordedOp) -> bool:
        """Run an op on both; whether the next one can be compared."""
        sequence = self._describe_sequence(recorded)
        difference = replay_op(self._recorded, recorded)
        if difference is not None:  # the recorded behaviour is not reproduced, which no decision explains
            self._note(recorded, difference, None)
            return False
        outcome = run_op(self._default, recorded)
        expected = count_primary_only(recorded, self._recorded.state)
        restated = find_difference([recorded.ret, recorded.obs], [expected.ret, expected.obs])
        if restated is not None:
            self._note(recorded, restated._replace(path=_name_part(restated.path)), TOTALS_DECISION)
        difference = compare_outcome(expected, outcome)
        inside = None
        if OPS[recorded.op].is_observed:
            inside = find_difference(describe_inside(self._recorded.state), describe_inside(self._default.state))
        if difference is None and inside is not None:
            difference = inside._replace(path=f"inside{inside.path}")
        if difference is not None:
            decision = None
            if not isinstance(outcome, Exception):
                decision = find_decision(Step(expected, difference, self._recorded.state, outcome, sequence))
            self._note(recorded, difference, decision)
        return inside is None and None not in self.departures

    def _describe_sequence(self, recorded: RecordedOp) -> SequenceFacts | None:
        manager = self._recorded.state.selected_manager
        sequence = None if manager is None else manager.sequences.get(recorded.args.get("id", -1))
        if manager is None or sequence is None:
            return None
        removed = {window: sequence.get_num_front_blocks_removed(window) for window in manager.window_sizes_metadata}
        return SequenceFacts(sequence.num_tokens, sequence.beam_width, removed)

    def _note(self, recorded: RecordedOp, difference: Difference, decision: str | None) -> None:
        self.departures.setdefault(decision, Departure(make_mismatch(self._default, recorded, difference), decision))


def _name_part(path: str) -> str:
    """``[0]`` and ``[1]`` at the front of a path as ``ret`` and ``obs``."""
    return ("ret" if path.startswith("[0]") else "obs") + path[3:]
