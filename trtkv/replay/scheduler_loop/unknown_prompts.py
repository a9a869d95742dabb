"""A trace of lengths only, made fit for the scheduler loop: prompts of zeros in a manager that reuses nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trtkv.replay.scheduler_loop.loop_config import LoopConfig
    from trtkv.traces.trace import RequestTrace


class ZeroTokens:
    """Tokens of a prompt that nothing looks at."""

    __slots__ = ()

    has_consecutive_tokens = False

    def expand(self, num_tokens: int) -> NDArray[np.int32]:
        """Zeros."""
        return np.zeros(num_tokens, dtype=np.int32)


def replace_unknown_prompts(trace: RequestTrace, config: LoopConfig) -> tuple[RequestTrace, LoopConfig]:
    """Trace and settings to run: as they are, unless only lengths are known. Changes neither."""
    if trace.has_tokens:
        return trace, config
    zeros = ZeroTokens()
    requests = [replace(request, source=zeros) for request in trace.requests]
    return replace(trace, requests=requests), replace(config, cache=replace(config.cache, block_reuse=False))
