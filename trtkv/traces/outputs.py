"""Outputs of requests: what the trace has of them, and made-up tokens for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from trtkv.common import MAX_INT32, RequestId, TokenId

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trtkv.traces.trace import TraceRequest

_TOKEN_STRIDE: Final = 1_000_003


def generated_tokens(request_id: RequestId, output_length: int) -> NDArray[np.int32]:
    """What a request generates, int32: (id * 1000003 + left) & 0x7fffffff, left counting down to 1.

    A request of output length 0 generates one token all the same, with left 0.
    """
    left = np.arange(output_length, 0, -1, dtype=np.int64) if output_length else np.zeros(1, dtype=np.int64)
    return ((left + request_id * _TOKEN_STRIDE) & MAX_INT32).astype(np.int32)


def output_tokens(request: TraceRequest) -> NDArray[np.int32]:
    """What a request of a trace generates, int32: the tokens that the trace has, made-up ones elsewhere."""
    tokens = generated_tokens(request.index, request.output_length)
    if request.output is not None:
        known, start = request.output.tokens(), request.output.start
        tokens[start : start + len(known)] = known[: len(tokens) - start]
    return tokens


def generated_token(request_id: RequestId, num_left: int) -> TokenId:
    """One token of ``generated_tokens``, by the number of tokens left to generate, itself included."""
    return (num_left + request_id * _TOKEN_STRIDE) & MAX_INT32
