"""NanoEngineStats: what an engine has done. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class NanoEngineStats:
    """Totals since construction."""

    num_prefill_steps: int = 0
    num_decode_steps: int = 0
    num_computed_tokens: int = 0
    num_cut_prompts: int = 0
    """Times that a step computed a part of a prompt that was not its last."""
    num_prefix_hits: int = 0
    """Admissions, those after a preemption included, that found blocks in the cache."""
    num_cached_tokens: int = 0
    """Tokens they found."""
    num_preemptions: int = 0
