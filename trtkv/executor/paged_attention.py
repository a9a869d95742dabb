"""Attention over paged keys and values, as an attention implementation of Hugging Face models."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from trtkv.errors import InvalidInputError, MissingExtraError
from trtkv.executor.attention_group import VisibleHistory
from trtkv.executor.paged_batch import PagedBatch

IMPLEMENTATION_NAME = "trtkv_paged"


class AttentionModule(Protocol):
    """What is asked of a model's attention layer."""

    layer_idx: int


def register_paged_attention() -> None:
    """Make ``trtkv_paged`` known to transformers; doing so again changes nothing."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise MissingExtraError('the executor runs models of transformers: pip install "trtkv[executor]"') from error
    AttentionInterface.register(IMPLEMENTATION_NAME, paged_attention_forward)
    AttentionMaskInterface.register(IMPLEMENTATION_NAME, _make_no_mask)


def _make_no_mask(*_args: Any, **_kwargs: Any) -> None:
    """Masks follow from positions, group by group."""


def paged_attention_forward(
    module: AttentionModule,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    *,
    paged_batch: PagedBatch,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Store the new keys and values, then let each token see its own sequence; changes the pools.

    Each group of the batch takes one copy of its pages and one call of torch's attention.

    ``query`` is [1, heads, tokens, dim], ``key`` and ``value`` are [1, kv heads, tokens, dim], the result is
    [1, tokens, heads, dim].
    """
    if attention_mask is not None or dropout or s_aux is not None:
        raise InvalidInputError("paged attention takes no mask, dropout or attention sinks")
    layer_idx, memory = int(module.layer_idx), paged_batch.memory
    memory.write(layer_idx, paged_batch.find_new_tokens(layer_idx), key[0], value[0])
    outputs = []
    begin = 0
    for group, history in zip(paged_batch.groups, paged_batch.find_histories(layer_idx, sliding_window), strict=True):
        end = begin + len(group.slices) * group.num_tokens
        own = query[0, :, begin:end].unflatten(1, (-1, group.num_tokens)).transpose(0, 1)
        keys, values = memory.read(layer_idx, history.index)[..., : history.num_keys, :]
        outputs.append(attend(own, keys, values, history, scaling, softcap).transpose(1, 2).flatten(0, 1))
        begin = end
    return torch.cat(outputs)[None], None


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    history: VisibleHistory,
    scaling: float,
    softcap: float | None,
) -> torch.Tensor:
    """Attention [slices, heads, q, dim] of ``query`` over ``key``, ``value`` [slices, kv heads, k, dim]."""
    if softcap is not None:
        return _attend_capped(query, key, value, history, scaling, softcap)
    num_heads = query.shape[1]
    if query.shape[2] == 1:
        # Heads that share keys see the same: as queries of one head they need no second copy of the keys.
        query = query.reshape(len(query), key.shape[1], -1, query.shape[3])
    output = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=history.mask,
        is_causal=history.is_causal and query.shape[2] > 1,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output.reshape(len(output), num_heads, -1, output.shape[3])


def _attend_capped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    history: VisibleHistory,
    scaling: float,
    softcap: float,
) -> torch.Tensor:
    """The same with a soft cap on the scores, for which torch has no function of its own."""
    num_kv_heads, num_queries, num_keys = key.shape[1], query.shape[2], key.shape[2]
    by_group = query.reshape(len(query), num_kv_heads, -1, query.shape[3])
    scores = torch.tanh(by_group @ key.transpose(2, 3) * (scaling / softcap)) * softcap
    mask = history.mask
    if history.is_causal:
        mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device).tril()[None, None]
    if mask is not None:
        scores.unflatten(2, (-1, num_queries)).masked_fill_(~mask[:, :, None], float("-inf"))
    precise = torch.float32 if scores.element_size() < 4 else scores.dtype
    output = torch.softmax(scores, dim=-1, dtype=precise).to(value.dtype) @ value
    return output.reshape(query.shape)
