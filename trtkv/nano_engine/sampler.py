"""Sampler: the next token of each sequence."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Sampler:
    """Chooses the most likely token at temperature 0, and draws by softmax(logits / temperature) otherwise."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        """``generator``: source of randomness, on the device of the logits; None: torch's own."""
        self._generator = generator

    def sample(self, logits: torch.Tensor, temperatures: Sequence[float]) -> list[int]:
        """One token for each row of ``logits`` [sequences, vocabulary]. Draws nothing if all temperatures are 0."""
        likeliest = logits.argmax(dim=-1)
        if not any(temperatures):
            return _to_list(likeliest)
        scale = torch.tensor(temperatures, dtype=torch.float64, device=logits.device)
        is_greedy = scale == 0
        weights = torch.softmax(logits.double() / scale.masked_fill(is_greedy, 1)[:, None], dim=-1)
        drawn = torch.multinomial(weights, 1, generator=self._generator)[:, 0]
        return _to_list(torch.where(is_greedy, likeliest, drawn))


def _to_list(tokens: torch.Tensor) -> list[int]:
    result: list[int] = tokens.tolist()
    return result
