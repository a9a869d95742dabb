"""The classes that make up a scheduler: the ordinary ones, or those that repeat recorded decisions."""

from __future__ import annotations

from dataclasses import dataclass

from trtkv.scheduler.guaranteed_no_evict_scheduler import GuaranteedNoEvictScheduler, StaticBatchScheduler
from trtkv.scheduler.max_utilization_scheduler import MaxUtilizationScheduler
from trtkv.scheduler.recorded.max_utilization import RecordedMaxUtilizationScheduler
from trtkv.scheduler.recorded.no_evict import RecordedGuaranteedNoEvictScheduler, RecordedStaticBatchScheduler
from trtkv.scheduler.recorded.step_rules import RecordedStepRules
from trtkv.scheduler.step_rules import StepRules


@dataclass(frozen=True)
class SchedulerClasses:
    """A class for each capacity policy that looks at a cache, and the rules of a step."""

    guaranteed_no_evict: type[GuaranteedNoEvictScheduler] = GuaranteedNoEvictScheduler
    static_batch: type[StaticBatchScheduler] = StaticBatchScheduler
    max_utilization: type[MaxUtilizationScheduler] = MaxUtilizationScheduler
    step_rules: type[StepRules] = StepRules


def choose_classes(compatibility: bool) -> SchedulerClasses:
    """The ordinary classes, or the recorded ones (docs/decisions/0201 to 0204)."""
    if not compatibility:
        return SchedulerClasses()
    return SchedulerClasses(
        RecordedGuaranteedNoEvictScheduler,
        RecordedStaticBatchScheduler,
        RecordedMaxUtilizationScheduler,
        RecordedStepRules,
    )
