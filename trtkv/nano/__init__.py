"""nano-vllm's block manager and scheduler: xxhash64 chains over full blocks, a FIFO free queue, chunked prefill."""

from __future__ import annotations

from trtkv.nano.block import NO_HASH, Block
from trtkv.nano.block_manager import BlockManager
from trtkv.nano.config import SamplingParams, SchedulerConfig
from trtkv.nano.invariants import check_invariants, find_violations
from trtkv.nano.scheduler import Scheduler
from trtkv.nano.sequence import Sequence, SequenceStatus

__all__ = [
    "NO_HASH",
    "Block",
    "BlockManager",
    "SamplingParams",
    "Scheduler",
    "SchedulerConfig",
    "Sequence",
    "SequenceStatus",
    "check_invariants",
    "find_violations",
]
