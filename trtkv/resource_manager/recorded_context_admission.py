"""Admission of contexts as recorded."""

from __future__ import annotations

from collections.abc import Sequence

from trtkv.errors import OutOfBlocksError
from trtkv.records.llm_request import LlmRequest
from trtkv.resource_manager.context_admission import ContextAdmission


class RecordedContextAdmission(ContextAdmission):
    """A batch without room fails, and windows slide while prompts are still to be computed."""

    _holds_window = False

    def _add_at_once(self, requests: Sequence[LlmRequest]) -> OutOfBlocksError | None:
        self._add_batch(requests)
        return None
