"""RefusalCheck: tells at its arrival that a request could never run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkv.errors import CapacityError
from trtkv.records.llm_request import LlmRequest
from trtkv.scheduler.capacity_scheduler import CapacityScheduler
from trtkv.scheduler.micro_batch_scheduler import MicroBatchScheduler
from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy

if TYPE_CHECKING:
    from trtkv.manager.kv_cache_manager import KVCacheManager
    from trtkv.replay.scheduler_loop.loop_config import LoopConfig


class RefusalCheck:
    """Compares what a request needs at its largest with empty pools and an empty step."""

    def __init__(self, config: LoopConfig, manager: KVCacheManager) -> None:
        self._config = config
        self._manager = manager
        self._capacity_scheduler = CapacityScheduler(config.max_batch_size, config.policy)
        self._micro_batch_scheduler = MicroBatchScheduler(config.chunking)

    def find_reason(self, request_id: int, prompt_tokens: int, num_new_tokens: int) -> str | None:
        """Why a request of these lengths can never run, with the numbers; None if it can. Changes nothing."""
        probe = LlmRequest(request_id, np.zeros(prompt_tokens, dtype=np.int32), num_new_tokens)
        try:
            self._capacity_scheduler.check_can_ever_fit(probe, self._manager)
            self._micro_batch_scheduler.check_can_ever_fit(probe, self._config.max_num_tokens)
        except CapacityError as error:
            return str(error)
        return self._find_restart_reason(probe)

    def _find_restart_reason(self, request: LlmRequest) -> str | None:
        """A paused request starts again with what it has generated as part of its prompt, in one step if uncut."""
        config = self._config
        if config.policy is not CapacitySchedulerPolicy.MAX_UTILIZATION or config.chunking is not None:
            return None
        longest = request.prompt_len + request.max_new_tokens - 1
        if longest <= config.max_num_tokens:
            return None
        return (
            f"request {request.request_id} may have to start again with a prompt of {longest} tokens after a pause, "
            f"max_num_tokens is {config.max_num_tokens}; shorten it, raise the limit or cut prompts into chunks"
        )
