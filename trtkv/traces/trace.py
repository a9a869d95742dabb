"""TraceRequest: one request of a trace, whatever its file format; tokens are expanded only when asked for."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import numpy as np

from trtkv.tables.wording import count, shortened
from trtkv.traces.sessions.protocol import SessionFacts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trtkv.records.retention_config import KvCacheRetentionConfig


class TokenSource(Protocol):
    """What the tokens of a prompt are made from."""

    has_consecutive_tokens: bool
    """Whether the tokens are made up, in runs of consecutive numbers."""

    def expand(self, num_tokens: int) -> NDArray[np.int32]:
        """The first ``num_tokens`` tokens, int32, shape [num_tokens]. Changes nothing."""


class HashIdTokens:
    """Tokens by rule: token j of the block named h is ``block_size * h + j``.

    Equal ids give equal tokens and different ids differ in their first token, which is all that
    prefix matching looks at. Ids are small enough for every token to fit int32.
    """

    __slots__ = ("block_size", "ids")

    has_consecutive_tokens = True

    def __init__(self, ids: array[int], block_size: int) -> None:
        self.ids = ids
        self.block_size = block_size

    def expand(self, num_tokens: int) -> NDArray[np.int32]:
        """The first ``num_tokens`` tokens; no Python object per token is made."""
        ids: NDArray[np.int32] = np.frombuffer(self.ids, dtype=np.int64).astype(np.int32)
        starts = ids * np.int32(self.block_size)
        tokens = starts[:, None] + np.arange(self.block_size, dtype=np.int32)
        return cast("NDArray[np.int32]", tokens.reshape(-1)[:num_tokens])


class TokenIds:
    """Tokens as the trace lists them."""

    __slots__ = ("tokens",)

    has_consecutive_tokens = False

    def __init__(self, tokens: array[int]) -> None:
        self.tokens = tokens

    def expand(self, num_tokens: int) -> NDArray[np.int32]:
        """The first ``num_tokens`` tokens, as a view of the stored ones."""
        return np.frombuffer(self.tokens, dtype=np.int32)[:num_tokens]


class KeyConstraints(NamedTuple):
    """What tells prompts apart besides their tokens: blocks are shared only where all of it is equal."""

    cache_salt: str | None = None
    lora_task_id: int | None = None


class KnownOutput(NamedTuple):
    """Generated tokens that the trace has."""

    source: TokenSource
    length: int
    """At most the output length."""
    start: int = 0
    """Place of the first one in the output: tokens before it, such as hidden reasoning, are not known."""

    def tokens(self) -> NDArray[np.int32]:
        """The known tokens, int32, shape [length]."""
        return self.source.expand(self.length)


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. ``index`` is its place in replay order and serves as its request id.

    What the fields after ``constraints`` say, docs/trace_formats.md describes for each format ("Sessions and outputs").
    """

    index: int
    timestamp: float
    """Arrival in the unit of its format (Mooncake: ms, tokens: ns); the closed loop does not read it."""
    input_length: int
    """Prompt tokens, at least 1."""
    output_length: int
    """Tokens to generate, 0 or more."""
    source: TokenSource
    constraints: KeyConstraints | None = None
    """None: the tokens alone."""
    session: str | None = None
    """Its conversation, or its agent; None if the trace does not say."""
    turn: int = 0
    """Its place in the session, in replay order; 0 is the first."""
    predecessors: tuple[int, ...] = ()
    """Requests, by index, that have to be over before it may start. They may come later in replay order."""
    num_missing: int = 0
    """Predecessors that the trace names but does not have; they count as over."""
    delay_seconds: float = 0.0
    """Time from the end of its last predecessor to its own arrival."""
    is_timed: bool = True
    """False: the row has no timestamp, and ``timestamp`` is that of its first predecessor, or 0."""
    parent_session: str | None = None
    """The session that started this one, for a sub-agent."""
    is_delta: bool = False
    """Whether its row held only what the prompt adds to the predecessor's prompt and output; the prompt is whole."""
    output: KnownOutput | None = None
    """None: no token of the output is known."""
    retention: KvCacheRetentionConfig | None = None
    """How long its blocks are kept; no format says, rules may."""
    completion: HashIdTokens | None = None
    """Names of the blocks of prompt and output together, where the trace has them."""

    def tokens(self) -> NDArray[np.int32]:
        """The prompt, int32, shape [input_length], made anew on each call."""
        return self.source.expand(self.input_length)


class RowFault(NamedTuple):
    """A row that was skipped."""

    line_number: int
    reason: str


@dataclass(slots=True)
class RequestTrace:
    """A trace in replay order, and what was met while reading it."""

    name: str
    """File name without its folders; ``-`` for standard input."""
    format: str
    block_size: int | None
    """Tokens that one hash id stands for; None where the format has no hash ids."""
    requests: Sequence[TraceRequest] = field(repr=False)
    faults: Sequence[RowFault] = field(default_factory=list)
    """Rows skipped by lenient reading, in file order."""
    detected: str = ""
    """What told the format, e.g. ``mooncake (the first row has input_length, hash_ids)``."""
    seconds_per_unit: float | None = None
    """Seconds of one unit of the timestamps; None if they are not times of one clock."""
    has_tokens: bool = True
    """False: only the lengths of prompts are known."""
    row_limit: int | None = None
    """Rows that were asked for; None: all."""
    warnings: Sequence[str] = ()
    """What the user should know about it, a line each."""
    sessions: SessionFacts = field(default_factory=SessionFacts)
    """What it has of sessions and outputs, and the protocol they follow."""

    @property
    def max_total_length(self) -> int:
        """Largest prompt plus output of a request, in tokens."""
        return max((request.input_length + request.output_length for request in self.requests), default=0)

    def session_words(self) -> dict[str, str]:
        """What requests waited for and what they generated, for people."""
        facts = self.sessions
        waits = f"{facts.protocol.sessions.value}: {count(facts.requests_with_predecessor)} requests wait for another"
        known = f"{facts.protocol.outputs.value}: {count(facts.output_tokens_known)} tokens known"
        return {"sessions": waits, "outputs": known}

    def notes(self) -> list[str]:
        """What was left out of the file, and what is a guess."""
        lines = []
        facts = self.sessions
        if facts.inferred_predecessors:
            lines.append(
                f"{count(facts.inferred_predecessors)} predecessors were inferred from prompts (--sessions infer)."
            )
        if facts.missing_predecessors:
            lines.append(f"{count(facts.missing_predecessors)} predecessors are not in the trace and count as over.")
        if self.row_limit is not None:
            lines.append(f"Only the first {count(self.row_limit)} rows of the file were read (--limit).")
        if self.faults:
            lines.append(f"{count(len(self.faults))} malformed rows were skipped:")
            lines += shortened([f"{self.name}:{fault.line_number}: {fault.reason}" for fault in self.faults])
        return lines
