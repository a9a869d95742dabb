"""FixedMatchConnector: the connector of recorded programs, with the same answer for every request."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtkv.records.llm_request import LlmRequest


class FixedMatchConnector:
    """Reports a fixed number of tokens that an outside cache holds beyond the matched ones."""

    __slots__ = ("_num_matched_tokens",)

    def __init__(self, num_matched_tokens: int) -> None:
        self._num_matched_tokens = num_matched_tokens

    def get_num_new_matched_tokens(self, request: LlmRequest, num_computed_tokens: int) -> int:
        """Tokens matched outside. Changes nothing. C++: KvCacheConnectorManager::getNumNewMatchedTokens."""
        return self._num_matched_tokens
