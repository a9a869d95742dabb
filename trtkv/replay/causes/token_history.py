"""TokenHistory: the token strings of a run whatever their salts, LoRA ids and multimodal content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkv.common import RequestId
from trtkv.replay.causes.key_history import TokenLoader
from trtkv.traces.prefixes.prefix_tree import PrefixTree

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TokenHistory:
    """A prefix tree of tokens alone. ``load_tokens``: see KeyHistory."""

    def __init__(self, load_tokens: TokenLoader) -> None:
        self._load_tokens = load_tokens
        self._strings: list[tuple[RequestId, int]] = []
        self._tree = PrefixTree(self._load)

    def add(self, request_id: RequestId, num_tokens: int) -> int:
        """Add the first tokens of a request; returns how many of them were there before."""
        self._strings.append((request_id, num_tokens))
        return self._tree.insert(self._load(len(self._strings) - 1))

    def _load(self, owner: int) -> NDArray[Any]:
        request_id, num_tokens = self._strings[owner]
        return np.frombuffer(self._load_tokens(request_id), dtype="<i4", count=num_tokens)
