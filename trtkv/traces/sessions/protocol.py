"""SessionProtocol and SessionFacts: the order of requests and their outputs. docs/sessions.md."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from trtkv.checks import check_member
from trtkv.errors import ConfigurationError


class Sessions(str, Enum):
    """What makes a request wait for another."""

    TRACE = "trace"
    """What the trace says."""
    INFER = "infer"
    """Also what prompts suggest, for rows of which the trace says nothing: a guess."""
    IGNORE = "ignore"
    """Nothing; requests run in replay order as there is room."""


class Outputs(str, Enum):
    """What a request generates."""

    TRACE = "trace"
    """The tokens of the trace, as far as it tells them, made-up ones elsewhere."""
    SYNTHETIC = "synthetic"
    """Made-up tokens that no other request has."""


@dataclass(frozen=True, slots=True)
class SessionProtocol:
    """How sessions and outputs of a trace are treated."""

    sessions: Sessions = Sessions.TRACE
    outputs: Outputs = Outputs.TRACE

    def __post_init__(self) -> None:
        for name, kind in (("sessions", Sessions), ("outputs", Outputs)):
            value = check_member(name, getattr(self, name), kind, error=ConfigurationError)
            object.__setattr__(self, name, value)

    @property
    def options(self) -> dict[str, Any]:
        """Both settings as arguments of ``read_trace``."""
        return {"sessions": self.sessions, "outputs": self.outputs}


OLD_PROTOCOL = SessionProtocol(Sessions.IGNORE, Outputs.SYNTHETIC)
"""That of results made before traces had sessions and outputs."""


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What a trace has of sessions and outputs under a protocol."""

    protocol: SessionProtocol = OLD_PROTOCOL
    session_count: int = 0
    requests_with_predecessor: int = 0
    missing_predecessors: int = 0
    """Predecessors that the trace names but does not have; they count as over."""
    inferred_predecessors: int = 0
    outputs_known: int = 0
    """Requests of whose output some token is known."""
    output_tokens_known: int = 0
    from_ids: int = 0
    """Of these, tokens that the trace lists or names."""
    from_continuation: int = 0
    """Of these, tokens that the next prompt of the session tells."""

    @property
    def has_sessions(self) -> bool:
        """Whether some request waits for another."""
        return self.requests_with_predecessor > 0

    def to_json(self) -> dict[str, object]:
        """All fields, the protocol's first."""
        return {
            "sessions": self.protocol.sessions.value,
            "outputs": self.protocol.outputs.value,
            "session_count": self.session_count,
            "requests_with_predecessor": self.requests_with_predecessor,
            "missing_predecessors": self.missing_predecessors,
            "inferred_predecessors": self.inferred_predecessors,
            "outputs_known": self.outputs_known,
            "output_tokens_known": self.output_tokens_known,
            "from_ids": self.from_ids,
            "from_continuation": self.from_continuation,
        }
