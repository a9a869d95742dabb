"""The classes that make up a manager: the ordinary ones, or those that repeat recorded behaviour."""

from __future__ import annotations

from typing import NamedTuple

from trtkv.manager.block_budget import BlockBudget
from trtkv.manager.call_rules import CallRules
from trtkv.manager.recorded.block_budget import RecordedBlockBudget
from trtkv.manager.recorded.call_rules import RecordedCallRules
from trtkv.manager.recorded.sequence_admission import RecordedSequenceAdmission
from trtkv.manager.recorded.sequence_growth import RecordedSequenceGrowth
from trtkv.manager.sequence_admission import SequenceAdmission
from trtkv.manager.sequence_growth import SequenceGrowth


class ManagerClasses(NamedTuple):
    """What budgets, admits and grows sequences, and the rules of the other calls."""

    budget: type[BlockBudget] = BlockBudget
    admission: type[SequenceAdmission] = SequenceAdmission
    growth: type[SequenceGrowth] = SequenceGrowth
    rules: type[CallRules] = CallRules


def choose_classes(compatibility: bool) -> ManagerClasses:
    """The ordinary classes, or the recorded ones."""
    if not compatibility:
        return ManagerClasses()
    return ManagerClasses(RecordedBlockBudget, RecordedSequenceAdmission, RecordedSequenceGrowth, RecordedCallRules)
