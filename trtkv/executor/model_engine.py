"""ModelEngine: runs a Hugging Face model on the tokens of one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from trtkv.executor.attention_group import SequenceSlice
from trtkv.executor.paged_attention import IMPLEMENTATION_NAME, register_paged_attention
from trtkv.executor.paged_batch import PagedBatch
from trtkv.executor.paged_memory import PagedMemory


class EngineInput(NamedTuple):
    """Tokens of one slice, and how many logits of its last tokens are wanted."""

    slice: SequenceSlice
    tokens: Sequence[int]
    num_logits: int


class ModelEngine:
    """Owns the model during execution and switches its attention to pages."""

    def __init__(self, model: torch.nn.Module, memory: PagedMemory) -> None:
        register_paged_attention()
        self._model = model.to(memory.device).eval()
        set_attn_implementation: Any = self._model.set_attn_implementation  # unknown to torch.nn.Module
        set_attn_implementation(IMPLEMENTATION_NAME)
        self._memory = memory

    @torch.inference_mode()
    def forward(self, inputs: Sequence[EngineInput]) -> torch.Tensor:
        """Compute all slices in one pass and write their keys and values.

        Returns the wanted logits [number of them, vocabulary], those of the first input first. Blocks for the tokens
        must be in place, and the offset table up to date.
        """
        batch = PagedBatch(self._memory, [entry.slice for entry in inputs])
        tokens: list[int] = []
        wanted: list[range] = [range(0)] * len(inputs)
        for index in batch.order:
            tokens += inputs[index].tokens
            wanted[index] = range(len(tokens) - inputs[index].num_logits, len(tokens))
        device = self._memory.device
        output = self._model(
            input_ids=torch.tensor([tokens], device=device),
            position_ids=batch.positions[None].to(device),
            use_cache=False,
            logits_to_keep=torch.tensor([place for places in wanted for place in places], dtype=torch.long).to(device),
            paged_batch=batch,
        )
        logits: torch.Tensor = output.logits[0]
        return logits
