"""The closed loop over a model with recurrent states: room for them is reserved too, and steps end at snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from xxhash import xxh3_128_digest

from trtkv.common import RequestId
from trtkv.replay.closed_loop.closed_loop import ClosedLoop, LiveRequest, Progress, ReplayManager, Timer
from trtkv.traces.outputs import output_tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trtkv.records.llm_request import LlmRequest
    from trtkv.replay.config import RecurrentStatesConfig
    from trtkv.traces.trace import TraceRequest


class HybridManager(ReplayManager, Protocol):
    """What the loop asks of a manager with recurrent states."""

    def copy_linear_attention_block(self, request: LlmRequest, /) -> bool:
        """Carry the state over a block boundary, before each step."""


class HybridLoop(ClosedLoop):
    """A run over a manager with recurrent states.

    A prompt is stored when its first token is generated, as engines do, so that one which ends a block leaves its
    state. Such states lie beside those at the interval. A request that finds them holds them too, so the loop remembers
    where they are, and reserves room for those on the way of a prompt. Generation leaves no states.
    """

    def __init__(
        self,
        manager: HybridManager,
        states: RecurrentStatesConfig,
        *,
        tokens_per_block: int,
        num_primary_blocks: int,
        live: int,
        num_needed_blocks: Callable[[TraceRequest], int],
        timer: Timer | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(
            manager,
            tokens_per_block=tokens_per_block,
            num_primary_blocks=num_primary_blocks,
            live=live,
            num_needed_blocks=num_needed_blocks,
            timer=timer,
            progress=progress,
        )
        self._hybrid_manager = manager
        self._states = states
        self._num_free_states = states.primary_blocks
        self._reserved_states: dict[RequestId, int] = {}
        # Digests of prompts that left a state at their end, by length.
        self._ends: dict[int, set[bytes]] = {}

    def _reserve(self, trace_request: TraceRequest) -> LiveRequest | None:
        num_states = self._states.num_needed(trace_request.input_length, self._tokens_per_block)
        if self._ends:
            num_states += self._count_ends(trace_request.tokens())
        if num_states > self._num_free_states:
            return None
        live_request = super()._reserve(trace_request)
        if live_request is not None:
            self._num_free_states -= num_states
            self._reserved_states[trace_request.index] = num_states
        return live_request

    def _count_ends(self, tokens: NDArray[np.int32]) -> int:
        """Earlier prompts with which this one begins and that left a state where the interval has none."""
        return sum(
            length < len(tokens) and _digest(tokens[:length]) in digests for length, digests in self._ends.items()
        )

    def _remember_end(self, tokens: NDArray[np.int32]) -> None:
        interval = self._states.snapshot_interval
        length = len(tokens)
        if length % self._tokens_per_block == 0 and (not interval or length % interval):
            self._ends.setdefault(length, set()).add(_digest(tokens))

    def _release(self, live_request: LiveRequest) -> None:
        super()._release(live_request)
        self._num_free_states += self._reserved_states.pop(live_request.request.request_id)

    def _compute_prompt(self, request: LlmRequest) -> None:
        """Steps that end at the snapshot interval, as only the end of a step leaves a state."""
        interval = self._states.snapshot_interval
        position = request.context_current_position
        while position < request.prompt_len:
            request.set_context_current_position(position)
            self._hybrid_manager.copy_linear_attention_block(request)
            next_snapshot = (position // interval + 1) * interval if interval else request.prompt_len
            position = min(next_snapshot, request.prompt_len)
        request.set_context_current_position(request.prompt_len)

    def _store(self, admitted: list[LiveRequest]) -> None:
        for live_request in admitted:
            self._remember_end(live_request.trace_request.tokens())
            live_request.request.add_new_tokens([output_tokens(live_request.trace_request)[:1]])
        super()._store(admitted)

    def _append_output(self, live_request: LiveRequest) -> None:
        live_request.request.add_new_tokens([output_tokens(live_request.trace_request)[1:]])


def _digest(tokens: NDArray[np.int32]) -> bytes:
    return xxh3_128_digest(tokens.astype("<i4", copy=False).tobytes())
