"""nano-vllm's block manager and scheduler: xxhash64 chains over full blocks, a FIFO free queue, chunked prefill."""

from __future__ import annotations

from trtkv.nano.block import NO_HASH, Block
from trtkv.nano.block_manager import BlockManager
from trtkv.nano.config import SamplingParams, SamplingSettings, SchedulerConfig
from trtkv.nano.invariants import check_invariants, find_violations
from trtkv.nano.managed_sequence import ManagedSequence
from trtkv.nano.scheduler import Scheduler
from trtkv.nano.sequence import Sequence, SequenceStatus

__all__ = [
    "NO_HASH",
    "Block",
    "BlockManager",
    "ManagedSequence",
    "SamplingParams",
    "SamplingSettings",
    "Scheduler",
    "SchedulerConfig",
    "Sequence",
    "SequenceStatus",
    "check_invariants",
    "find_violations",
]
