"""RecordedRequest: a request whose changes by its driver are written as ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from trtkv.common import TokenId
from trtkv.errors import InvalidInputError
from trtkv.records.llm_request import LlmRequest, LlmRequestState

if TYPE_CHECKING:
    from trtkv.verify.recording import Recording


class RecordedRequest(LlmRequest):
    """An LlmRequest of a TraceRecorder. Changes made inside a recorded op belong to that op."""

    __slots__ = ("_recorder",)

    def __init__(self, recorder: Recording, *args: Any, **fields: Any) -> None:
        self._recorder = recorder
        super().__init__(*args, **fields)

    def _record(self, op: str, **args: object) -> None:
        self._recorder.execute(op, {"id": self.request_id, **args})

    def add_new_token(self, token: TokenId, beam: int = 0) -> None:
        """Append one token; only a token of the first beam can be recorded alone."""
        if not self._recorder.is_recording(self):
            super().add_new_token(token, beam)
        elif beam == 0:
            self._record("add_new_tokens", tokens=[token])
        else:
            raise InvalidInputError(f"a token of beam {beam} alone cannot be recorded; use add_new_tokens")

    def add_new_tokens(self, beam_tokens: Sequence[Iterable[TokenId]]) -> None:
        """Append tokens to every beam, the same number to each."""
        if not self._recorder.is_recording(self):
            super().add_new_tokens(beam_tokens)
            return
        columns = [list(tokens) for tokens in beam_tokens]
        if len({len(tokens) for tokens in columns}) > 1:
            raise InvalidInputError("beams with different numbers of new tokens cannot be recorded; add them in steps")
        for step in zip(*columns, strict=True):
            self._record("add_new_tokens", tokens=list(step))

    def set_generated_tokens(self, beam_tokens: Sequence[Iterable[TokenId]]) -> None:
        """Replace everything after the prompt."""
        if self._recorder.is_recording(self):
            self._record("set_generated_tokens", tokens=[list(tokens) for tokens in beam_tokens])
        else:
            super().set_generated_tokens(beam_tokens)

    def set_state(self, state: LlmRequestState) -> None:
        """Change the stage."""
        if self._recorder.is_recording(self):
            self._record("set_state", state=state.name.lower())
        else:
            super().set_state(state)

    def set_context_current_position(self, position: int) -> None:
        """Move the context position."""
        if self._recorder.is_recording(self):
            self._record("set_context_current_position", position=position)
        else:
            super().set_context_current_position(position)

    def set_context_chunk_size(self, size: int) -> None:
        """Set the next chunk."""
        if self._recorder.is_recording(self):
            self._record("set_context_chunk_size", size=size)
        else:
            super().set_context_chunk_size(size)

    def move_to_next_context_chunk(self) -> None:
        """Take the current chunk as computed."""
        if self._recorder.is_recording(self):
            self._record("move_to_next_context_chunk")
        else:
            super().move_to_next_context_chunk()

    def set_prepopulated_prompt_len(self, length: int, tokens_per_block: int) -> None:
        """Record a cache match; a replay uses the manager's tokens per block."""
        if self._recorder.is_recording(self):
            self._record("set_prepopulated_prompt_len", length=length)
        else:
            super().set_prepopulated_prompt_len(length, tokens_per_block)

    def set_estimated_reusable_tokens(self, num_tokens: int) -> None:
        """Only budget calls write the estimate in a recorded program."""
        if self._recorder.is_recording(self):
            raise InvalidInputError("the estimate of reusable tokens cannot be recorded; let a budget call set it")
        super().set_estimated_reusable_tokens(num_tokens)

    def set_num_draft_tokens(self, num_draft_tokens: int) -> None:
        """Set the drafts of the next step."""
        if self._recorder.is_recording(self):
            self._record("set_num_draft_tokens", n=num_draft_tokens)
        else:
            super().set_num_draft_tokens(num_draft_tokens)

    def discard_draft_tokens(self, num_tokens_to_discard: int) -> None:
        """Drop drafts from the end."""
        if self._recorder.is_recording(self) and num_tokens_to_discard <= self.num_draft_tokens:
            self._record("set_num_draft_tokens", n=self.num_draft_tokens - num_tokens_to_discard)
        else:
            super().discard_draft_tokens(num_tokens_to_discard)

    def pause(self, max_input_len: int) -> None:
        """Go back to the start of the context stage."""
        if self._recorder.is_recording(self):
            self._record("pause", max_input_len=max_input_len)
        else:
            super().pause(max_input_len)
