"""ActiveRequest: an LlmRequest in an executor, with what only the executor needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from trtkv.common import RequestId
from trtkv.executor.beam_search import BeamSearch
from trtkv.records.llm_request import LlmRequest


class GenerationResult(NamedTuple):
    """Output of a finished request: per beam the generated tokens, best first, and scores (greedy: no scores)."""

    request_id: RequestId
    token_ids: list[list[int]]
    scores: list[float]


@dataclass(slots=True)
class ActiveRequest:
    """A request between submission and its last token."""

    request: LlmRequest
    num_prompt_tokens: int
    """Tokens of the prompt as submitted; a pause may turn output into prompt, this number stays."""
    max_new_tokens: int
    end_token_id: int | None
    rows: list[int] = field(default_factory=list)
    """Rows of the offset table, one per beam, while the request has a sequence."""
    drafts: list[int] = field(default_factory=list)
    """Tokens to be verified in this step."""
    beams: BeamSearch | None = None

    @property
    def tokens(self) -> list[int]:
        """Prompt and output of beam 0."""
        return self.request.get_tokens(0).tolist()

    @property
    def num_generated(self) -> int:
        """Tokens of the output so far."""
        return self.request.get_num_tokens(0) - self.num_prompt_tokens

    @property
    def num_remaining(self) -> int:
        """Tokens still to be generated."""
        return self.max_new_tokens - self.num_generated

    @property
    def is_finished(self) -> bool:
        """Whether the output is complete."""
        if self.num_generated <= 0:
            return False
        if self.beams is not None:
            return self.num_remaining <= 0 or self.beams.has_ended
        return self.num_remaining <= 0 or self.request.get_tokens(0)[-1] == self.end_token_id

    def restart_beams(self) -> None:
        """Begin the search anew; a paused beam request computes its prompt again."""
        if self.request.beam_width > 1:
            self.beams = BeamSearch(self.request.beam_width, self.end_token_id)

    def get_result(self) -> GenerationResult:
        """The output."""
        if self.beams is not None:
            return GenerationResult(self.request.request_id, self.beams.tokens, self.beams.scores)
        return GenerationResult(self.request.request_id, [self.tokens[self.num_prompt_tokens :]], [])
