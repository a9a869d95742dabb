"""UtilisationSamples: an even selection of steps, however long a run becomes."""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_SAMPLES: Final = 512


class UtilisationSample(NamedTuple):
    """One step."""

    step: int
    start_ns: int
    used_blocks: int
    """Primary blocks held by requests, summed over windows."""
    context_requests: int
    generation_requests: int
    tokens: int
    """Tokens computed."""
    active_requests: int
    """Requests that the schedulers looked at, scheduled or not."""
    waiting_requests: int
    """Requests that have arrived and are not active yet."""


class UtilisationSamples:
    """Keeps every n-th step; n doubles whenever more than ``most`` would be kept."""

    def __init__(self, most: int = MAX_SAMPLES) -> None:
        self.samples: list[UtilisationSample] = []
        self.interval = 1
        """Steps from one sample to the next."""
        self._most = most

    def wants(self, step: int) -> bool:
        """Whether this step, counted from 0, is one to keep."""
        return step % self.interval == 0

    def add(self, sample: UtilisationSample) -> None:
        """Keep a step that is wanted."""
        self.samples.append(sample)
        if len(self.samples) > self._most:
            self.interval *= 2
            self.samples = [kept for kept in self.samples if self.wants(kept.step)]
