"""Attention over paged keys and values, as an attention implementation of Hugging Face models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from trtkv.errors import InvalidInputError, MissingExtraError
from trtkv.executor.paged_kv_cache import PagedKvCache

IMPLEMENTATION_NAME = "trtkv_paged"


@dataclass(slots=True)
class SequenceSlice:
    """Consecutive tokens of one sequence (or beam) among the tokens of a forward pass."""

    table_row: int
    """Row of the offset table that the tokens are written to."""
    first_position: int
    num_tokens: int
    history_rows: torch.Tensor | None = None
    """With several beams: for each earlier position the row that holds it. None: all in ``table_row``."""


class PagedBatch:
    """The tokens of one forward pass, slice after slice, and the cache they are written to."""

    def __init__(self, cache: PagedKvCache, slices: Sequence[SequenceSlice]) -> None:
        self.cache = cache
        self.slices = slices
        self.positions = torch.cat(
            [torch.arange(entry.first_position, entry.first_position + entry.num_tokens) for entry in slices]
        ).to(cache.device)
        self.rows = torch.repeat_interleave(
            torch.tensor([entry.table_row for entry in slices]), torch.tensor([entry.num_tokens for entry in slices])
        ).to(cache.device)


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
    """Masks follow from positions, slice by slice."""


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
    """Store the new keys and values, then let each slice see its own sequence. Changes the pools.

    ``query`` is [1, heads, tokens, dim], ``key`` and ``value`` are [1, kv heads, tokens, dim], the result is
    [1, tokens, heads, dim].
    """
    if attention_mask is not None or dropout or s_aux is not None:
        raise InvalidInputError("paged attention takes no mask, dropout or attention sinks")
    layer_idx = int(module.layer_idx)
    cache = paged_batch.cache
    cache.write(layer_idx, paged_batch.rows, paged_batch.positions, key[0].transpose(0, 1), value[0].transpose(0, 1))
    output = torch.empty_like(query)
    begin = 0
    for entry in paged_batch.slices:
        end = begin + entry.num_tokens
        first_visible, keys, values = _read_history(cache, layer_idx, entry, sliding_window)
        output[0, :, begin:end] = attend(
            query[0, :, begin:end], keys, values, entry.first_position - first_visible, scaling, sliding_window, softcap
        )
        begin = end
    return output.transpose(1, 2), None


def _read_history(
    cache: PagedKvCache, layer_idx: int, entry: SequenceSlice, window: int | None
) -> tuple[int, torch.Tensor, torch.Tensor]:
    """First position that any token of the slice sees, and keys and values from there to the slice's last token."""
    last = entry.first_position + entry.num_tokens - 1
    first = 0 if window is None else max(0, entry.first_position - window + 1)
    if entry.history_rows is None:
        return (first, *cache.read(layer_idx, entry.table_row, first, last))
    positions = torch.arange(first, last + 1, device=cache.device)
    own = torch.full((entry.num_tokens,), entry.table_row, device=cache.device)
    rows = torch.cat([entry.history_rows[first:], own])
    return (first, *cache.read_scattered(layer_idx, rows, positions))


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    num_before: int,
    scaling: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Causal attention of ``query`` [heads, q, dim] over ``key``, ``value`` [kv heads, k, dim].

    The first query is the key at index ``num_before``. A query sees ``window`` keys, itself included.
    """
    group = query.shape[0] // key.shape[0]
    key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
    scores = query @ key.transpose(1, 2) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    query_index = torch.arange(query.shape[1], device=query.device)[:, None] + num_before
    key_index = torch.arange(key.shape[1], device=query.device)
    hidden = key_index > query_index
    if window is not None:
        hidden |= key_index <= query_index - window
    weights = scores.masked_fill(hidden, float("-inf"))
    precise = torch.float32 if weights.element_size() < 4 else weights.dtype
    return torch.softmax(weights, dim=-1, dtype=precise).to(value.dtype) @ value
