"""CauseCounts: tokens by cause, request by request; what is known of evictions; use of the tiers over the run."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from trtkv.blocks.block_listener import RemovalReason
from trtkv.common import RequestId
from trtkv.errors import check
from trtkv.replay.causes.causes import CAUSES, Cause

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trtkv.replay.causes.miss_causes import Segment
    from trtkv.replay.causes.window_history import WindowHistory

QUANTILES: Final = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1.0}
_COLUMN: Final = {cause: column for column, cause in enumerate(CAUSES)}


class LossKind(NamedTuple):
    """What evicted tokens are counted by."""

    reason: RemovalReason
    level: int
    """Tier from which the block was lost."""
    in_decode: bool
    """Whether the one that needed the block was generating."""


class WindowUse(NamedTuple):
    """Blocks of a window at some point."""

    held: int
    """Primary blocks that live requests hold."""
    cached_primary: int
    """Primary blocks in the tree, held ones included."""
    cached_host: int
    """Host blocks in the tree."""


class EvictionLosses:
    """Prompt tokens not found because their blocks were lost: how, to whom, how long ago."""

    def __init__(self) -> None:
        self.by_kind: Counter[LossKind] = Counter()
        self.by_request: Counter[RequestId] = Counter()
        """By the request whose allocation or take-over it was."""
        self._weights = array("q")
        self._ages = {name: array("q") for name in ("idle_requests", "idle_tokens", "late_requests", "late_tokens")}

    def add(self, segment: Segment, num_admitted: int) -> None:
        """Count a segment with a removal, of a request that had this many admissions before it."""
        removal = segment.removal
        if removal is None:
            return
        self.by_kind[LossKind(removal.reason, removal.level, removal.in_decode)] += segment.num_tokens
        if removal.reason in (RemovalReason.EVICTED, RemovalReason.TAKEN_OVER):
            self.by_request[removal.request_id] += segment.num_tokens
        self._weights.append(segment.num_tokens)
        self._ages["idle_requests"].append(removal.idle_requests)
        self._ages["idle_tokens"].append(removal.idle_tokens)
        self._ages["late_requests"].append(num_admitted - removal.at.num_admitted)
        self._ages["late_tokens"].append(removal.late_tokens)

    @property
    def num_tokens(self) -> int:
        """All of them."""
        return sum(self._weights)

    def quantiles(self) -> dict[str, dict[str, int]]:
        """Smallest value that this share of the tokens does not exceed, for each kind of age."""
        if not self._weights:
            return {}
        result = {}
        for name in self._ages:
            ages, reached = self.cumulative(name)
            wanted = {key: max(1, int(np.ceil(share * reached[-1]))) for key, share in QUANTILES.items()}
            result[name] = {key: int(ages[int(np.searchsorted(reached, tokens))]) for key, tokens in wanted.items()}
        return result

    def cumulative(self, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Ages of one kind in ascending order, and the tokens up to each, int64, shape [parts] both."""
        ages = np.frombuffer(self._ages[name], dtype=np.int64)
        order = np.argsort(ages, kind="stable")
        return ages[order], np.cumsum(np.frombuffer(self._weights, dtype=np.int64)[order])


class CauseCounts:
    """Filled by an observer in the order of admission."""

    def __init__(self) -> None:
        self.losses = EvictionLosses()
        self.same_batch_tokens = 0
        """Of the tokens not stored yet, those that only requests of the same batch had computed."""
        self.uses: list[tuple[int, tuple[WindowUse, ...]]] = []
        """(requests admitted, use of each window, the widest first) behind each admission."""
        self._rows: dict[RequestId, array[int]] = {}

    @property
    def num_requests(self) -> int:
        """Requests admitted so far."""
        return len(self._rows)

    def add(self, request_id: RequestId, prompt_len: int, found: int, segments: Sequence[Segment]) -> None:
        """Count a request. Raises LogicError if its tokens are not covered exactly."""
        row = array("q", bytes(8 * len(CAUSES)))
        row[_COLUMN[Cause.HIT]] = found
        for segment in segments:
            row[_COLUMN[segment.cause]] += segment.num_tokens
            self.same_batch_tokens += segment.num_tokens if segment.same_batch else 0
            self.losses.add(segment, self.num_requests)
        check(sum(row) == prompt_len, f"causes of request {request_id} sum to {sum(row)} of {prompt_len} tokens")
        self._rows[request_id] = row

    def sample(self, windows: Sequence[WindowHistory]) -> None:
        """Note how much of each tier is in use now."""
        uses = tuple(
            WindowUse(
                window.settings.num_primary_blocks - window.manager.num_free_blocks,
                window.num_present[0],
                window.num_present[1],
            )
            for window in windows
        )
        self.uses.append((self.num_requests, uses))

    def table(self, request_ids: Sequence[RequestId], prompt_lengths: Sequence[int]) -> NDArray[Any]:
        """Tokens, int64, shape [requests, causes]; requests that were never admitted were refused."""
        result = np.zeros((len(request_ids), len(CAUSES)), dtype=np.int64)
        for index, (request_id, length) in enumerate(zip(request_ids, prompt_lengths, strict=True)):
            row = self._rows.get(request_id)
            if row is None:
                result[index, _COLUMN[Cause.REFUSED]] = length
            else:
                result[index] = row
        return result
