"""What the scheduler loop counts: per request, per kind of admission, and in all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from trtkv.common import RequestId


@dataclass(slots=True)
class RequestRecord:
    """The life of one request; times in nanoseconds of the virtual clock."""

    request_id: RequestId
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    """Tokens to generate."""
    admitted_ns: int | None = None
    """Start of the step that gave it its first blocks."""
    first_token_ns: int | None = None
    """End of the step that generated its first token."""
    finished_ns: int | None = None
    found_tokens: int = 0
    """Prompt tokens found in the cache at its first admission."""
    generated_tokens: int = 0
    prefill_steps: int = 0
    """Steps that computed a chunk of its prompt, those after a pause included."""
    computed_tokens: int = 0
    """Prompt tokens computed, those after a pause included."""
    pauses: int = 0
    recompute_prompt_tokens: int = 0
    """Prompt tokens of its admissions after a pause, generated ones among them."""
    recompute_found_tokens: int = 0
    """Of these, tokens found in the cache."""
    recomputed_tokens: int = 0
    """Of its computed tokens, those that had been computed before."""
    reach: int = 0
    """Tokens from the front that have been computed at some time."""

    @property
    def queueing_ns(self) -> int | None:
        """From arrival to the first blocks."""
        return self.since_arrival(self.admitted_ns)

    def since_arrival(self, time_ns: int | None) -> int | None:
        """From arrival to a time; None if that has not come."""
        return None if time_ns is None else time_ns - self.arrival_ns


class Refusal(NamedTuple):
    """A request that could never run, and why."""

    request_id: RequestId
    prompt_tokens: int
    output_tokens: int
    reason: str


@dataclass(slots=True)
class AdmissionCounts:
    """What admissions of one kind found in the cache."""

    admissions: int = 0
    prompt_tokens: int = 0
    found_tokens: int = 0
    reused_blocks: int = 0
    """Summed over windows; a block found in part counts."""
    missed_blocks: int = 0
    shared_tokens: int = 0
    """Of the found tokens, those in whole blocks that another live request held as well."""
    zero_hits: int = 0
    """Admissions that found nothing."""
    hit_rates: list[float] = field(default_factory=list)
    """Found share of each prompt."""

    def add(self, prompt_tokens: int, found_tokens: int, reused: int, missed: int, shared_tokens: int) -> None:
        """Count one admission."""
        self.admissions += 1
        self.prompt_tokens += prompt_tokens
        self.found_tokens += found_tokens
        self.reused_blocks += reused
        self.missed_blocks += missed
        self.shared_tokens += shared_tokens
        self.zero_hits += found_tokens == 0
        self.hit_rates.append(found_tokens / prompt_tokens)


@dataclass(slots=True)
class LoopCounts:
    """Totals of a run."""

    first: AdmissionCounts = field(default_factory=AdmissionCounts)
    """First admissions of each request."""
    recompute: AdmissionCounts = field(default_factory=AdmissionCounts)
    """Admissions after a pause."""
    refusals: list[Refusal] = field(default_factory=list)
    finished_requests: int = 0
    steps: int = 0
    """Steps that computed something."""
    idle_steps: int = 0
    """Steps that only paused requests; they take no time."""
    context_steps: int = 0
    """Steps that computed prompt tokens."""
    generation_steps: int = 0
    """Steps that generated for a request behind its prompt."""
    context_tokens: int = 0
    """Prompt tokens computed."""
    recomputed_tokens: int = 0
    """Of these, tokens that had been computed before a pause."""
    generated_tokens: int = 0
    scheduled_requests: int = 0
    """Requests of all steps, each step counted."""
    step_tokens: int = 0
    """Tokens of all forward passes."""
    cached_tokens: int = 0
    """Tokens whose keys and values the steps read."""
    pauses: int = 0
    deferrals: int = 0
    """Times a request was held back for a step because another one was computing its next block."""
    withdrawals: int = 0
    """Times a scheduled request found no block after all and waited."""
    busy_ns: int = 0
    """Virtual time of all steps."""
    end_ns: int = 0
    """Virtual time at the end."""
    used_block_ns: int = 0
    """Primary blocks in use during a step times its duration, summed."""
    most_used_blocks: int = 0
