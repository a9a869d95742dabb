"""``tensorrt_llm.bindings.internal.testing``."""

from __future__ import annotations

from trtkv.bindings._request import LlmRequest


def simulate_prefill_completion_only_use_for_testing(request: LlmRequest) -> None:
    """Take the prompt as computed."""
    request.context_current_position = request.prompt_len
