"""BeamSearch: hypotheses of one request, their scores, and where each keeps its keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class BeamSearch:
    """Fixed-width beam search. A hypothesis that has ended is kept as it is, padded with its end token.

    Score: sum of log probabilities. All hypotheses start from one prompt, computed in the row of beam 0.
    """

    def __init__(self, beam_width: int, end_token_id: int | None) -> None:
        self.beam_width = beam_width
        self._end_token_id = end_token_id
        self.tokens: list[list[int]] = [[] for _ in range(beam_width)]
        self.scores = [0.0] * beam_width
        self._writers: list[list[int]] = [[] for _ in range(beam_width)]

    @property
    def num_tokens(self) -> int:
        """Tokens generated per hypothesis."""
        return len(self.tokens[0])

    @property
    def has_ended(self) -> bool:
        """Whether all hypotheses have ended."""
        return all(self._is_closed(beam) for beam in range(self.beam_width))

    def _is_closed(self, beam: int) -> bool:
        return bool(self.tokens[beam]) and self.tokens[beam][-1] == self._end_token_id

    def get_history_rows(self, beam: int, rows: Sequence[int], prompt_len: int) -> list[int]:
        """Table row of every position before a hypothesis' newest token."""
        return [rows[0]] * prompt_len + [rows[writer] for writer in self._writers[beam]]

    def advance(self, logits: torch.Tensor) -> None:
        """Take the next token of all hypotheses.

        ``logits`` [hypotheses, vocabulary]: one row after the prompt, later one per beam. The keys and values of each
        beam's newest token have been written by that beam.
        """
        log_probs = torch.log_softmax(logits.double(), dim=-1)
        is_first = self.num_tokens == 0
        candidates = log_probs[:1].clone() if is_first else log_probs + torch.tensor(self.scores)[:, None].to(log_probs)
        if not is_first:
            for beam in range(self.beam_width):
                if self._is_closed(beam):
                    candidates[beam] = float("-inf")
                    candidates[beam, self._end_token_id] = self.scores[beam]
        scores, places = candidates.flatten().topk(self.beam_width)
        parents = (places // candidates.shape[1]).tolist()
        chosen = (places % candidates.shape[1]).tolist()
        if is_first:
            self._writers = [[] for _ in parents]
        else:
            self._writers = [[*self._writers[parent], parent] for parent in parents]
        self.tokens = [[*self.tokens[parent], token] for parent, token in zip(parents, chosen, strict=True)]
        self.scores = scores.tolist()
