"""RecordedClaimPlanner: encoder tokens keyed like those of a prompt, states taken as they are found."""

from __future__ import annotations

from array import array

from trtkv.keys.key_builder import build_block_keys_of
from trtkv.keys.packed_key import PackedKey
from trtkv.keys.recorded_keys import to_recorded_keys
from trtkv.records.llm_request import LlmRequest
from trtkv.window_block_manager.planning import ClaimPlanner


class RecordedClaimPlanner(ClaimPlanner):
    """Plans admission as recorded."""

    ends_at_last_state = False

    def _check_partial(self) -> None:
        """Whoever claims the blocks finds out."""

    def _context_keys(self, request: LlmRequest, input_length: int) -> list[PackedKey]:
        """Keys do not say where in a block an image begins."""
        keys = super()._context_keys(request, input_length)
        return keys if request.multimodal_input is None else to_recorded_keys(keys)

    def _encoder_keys(self, request: LlmRequest, tokens: array[int], num_tokens: int) -> list[PackedKey]:
        """Encoder tokens are keyed like those of a prompt."""
        return build_block_keys_of(request, tokens, self._settings.tokens_per_block, num_tokens, True)
