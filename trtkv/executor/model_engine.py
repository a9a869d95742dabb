"""ModelEngine: runs a Hugging Face model on the tokens of one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from trtkv.executor.paged_attention import IMPLEMENTATION_NAME, PagedBatch, SequenceSlice, register_paged_attention
from trtkv.executor.paged_kv_cache import PagedKvCache


class EngineInput(NamedTuple):
    """Tokens of one slice, and how many logits of its last tokens are wanted."""

    slice: SequenceSlice
    tokens: Sequence[int]
    num_logits: int


class ModelEngine:
    """Owns the model during execution and switches its attention to pages."""

    def __init__(self, model: torch.nn.Module, cache: PagedKvCache) -> None:
        register_paged_attention()
        self._model = model.to(cache.device).eval()
        set_attn_implementation: Any = self._model.set_attn_implementation  # unknown to torch.nn.Module
        set_attn_implementation(IMPLEMENTATION_NAME)
        self._cache = cache

    @torch.inference_mode()
    def forward(self, inputs: Sequence[EngineInput]) -> list[torch.Tensor]:
        """Compute all slices in one pass and write their keys and values; returns logits [num_logits, vocabulary] each.

        Blocks for the tokens must be in place, and the offset table up to date.
        """
        batch = PagedBatch(self._cache, [entry.slice for entry in inputs])
        token_ids = torch.tensor([token for entry in inputs for token in entry.tokens], device=self._cache.device)
        wanted: list[int] = []
        end = 0
        for entry in inputs:
            end += len(entry.tokens)
            wanted += range(end - entry.num_logits, end)
        output = self._model(
            input_ids=token_ids[None],
            position_ids=batch.positions[None],
            use_cache=False,
            logits_to_keep=torch.tensor(wanted, dtype=torch.long, device=self._cache.device),
            paged_batch=batch,
        )
        logits: torch.Tensor = output.logits[0]
        return list(torch.split(logits, [entry.num_logits for entry in inputs]))
