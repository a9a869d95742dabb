"""``tensorrt_llm.bindings.internal.algorithms``: schedulers, pausing and allocating."""

from __future__ import annotations

from trtkv.bindings._schedulers import AllocateKvCache, CapacityScheduler, MicroBatchScheduler, PauseRequests

__all__ = [
    "AllocateKvCache",
    "CapacityScheduler",
    "MicroBatchScheduler",
    "PauseRequests",
]


def __getattr__(name: str) -> object:
    if name in ("AssignReqSeqSlots", "CreateNewDecoderRequests", "LogitsPostProcessor"):
        raise NotImplementedError(f"algorithms.{name} belongs to TensorRT-LLM's decoder; trtkv has the cache only")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
