"""Dummy requests for warm-up and padding."""

from __future__ import annotations

from trtkv.checks import check_count
from trtkv.common import RequestId
from trtkv.records.llm_request import LlmRequest, LlmRequestState


def make_dummy_request(
    request_id: RequestId, num_tokens: int, is_gen: bool, beam_width: int, encoder_output_len: int
) -> LlmRequest:
    """Dummy of that many tokens; with ``is_gen`` the last one counts as generated and is still to be added."""
    check_count(f"number of tokens of dummy request {request_id}", num_tokens, 1)
    check_count(f"encoder_output_len of dummy request {request_id}", encoder_output_len)
    # Token 1, because an all-zero input makes some models compute NaN.
    return LlmRequest(
        request_id,
        [1] * (num_tokens - int(is_gen)),
        1,
        beam_width=beam_width,
        encoder_tokens=[1] * encoder_output_len if encoder_output_len else None,
        is_dummy_request=True,
    )


def start_generation(request: LlmRequest) -> None:
    """Move a dummy behind its prompt and give it its first generated token."""
    request.set_context_current_position(request.prompt_len)
    request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
    request.add_new_tokens([[1]] * request.beam_width)
