"""Order of the requests within one step."""

from __future__ import annotations

from trtkv.records.llm_request import LlmRequest


def sort_requests(
    context_requests: list[LlmRequest],
    generation_requests: list[LlmRequest],
    has_chunks: bool,
    *,
    compatibility: bool = False,
) -> None:
    """Sort both lists in place by adapter, requests without one first; equal ones keep their order.

    When contexts were cut into chunks, those that do not end their prompt come first; kernels expect
    the last chunks together. In compatibility mode that partition moves requests out of order, as
    recorded. C++: utils::sortRequests.
    """
    if has_chunks:
        num_unfinished = _partition(context_requests, stable=not compatibility)
        unfinished, last = context_requests[:num_unfinished], context_requests[num_unfinished:]
        context_requests[:] = sorted(unfinished, key=_adapter_key) + sorted(last, key=_adapter_key)
    else:
        context_requests.sort(key=_adapter_key)
    generation_requests.sort(key=_adapter_key)


def _adapter_key(request: LlmRequest) -> int:
    return -1 if request.lora_task_id is None else request.lora_task_id


def _partition(requests: list[LlmRequest], *, stable: bool) -> int:
    """Move requests whose chunk is not the last of their prompt to the front; their number."""
    if stable:
        requests.sort(key=lambda request: request.is_last_context_chunk)
        return sum(not request.is_last_context_chunk for request in requests)
    front, back = 0, len(requests)
    while True:
        while front < back and not requests[front].is_last_context_chunk:
            front += 1
        while front < back and requests[back - 1].is_last_context_chunk:
            back -= 1
        if front >= back:
            return front
        requests[front], requests[back - 1] = requests[back - 1], requests[front]
        front += 1
        back -= 1
