"""Order of the requests within one step."""

from __future__ import annotations

from trtkv.records.llm_request import LlmRequest


def sort_requests(context_requests: list[LlmRequest], generation_requests: list[LlmRequest], has_chunks: bool) -> None:
    """Sort both lists in place by adapter, requests without one first; equal ones keep their order.

    When contexts were cut into chunks, those that do not end their prompt come first; kernels expect
    the last chunks together. C++: utils::sortRequests.
    """
    if has_chunks:
        context_requests.sort(key=lambda request: (request.is_last_context_chunk, _adapter_key(request)))
    else:
        context_requests.sort(key=_adapter_key)
    generation_requests.sort(key=_adapter_key)


def _adapter_key(request: LlmRequest) -> int:
    return -1 if request.lora_task_id is None else request.lora_task_id
