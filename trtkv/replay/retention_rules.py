"""RetentionRules: which tokens of which requests are kept longer, as a user writes it in a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trtkv.checks import check_integer, check_number, check_type
from trtkv.errors import InvalidInputError, MissingExtraError
from trtkv.records.retention_config import (
    DEFAULT_RETENTION_PRIORITY,
    MAX_RETENTION_PRIORITY,
    KvCacheRetentionConfig,
    TokenRangeRetentionConfig,
)

if TYPE_CHECKING:
    from trtkv.traces.trace import RequestTrace, TraceRequest

FIRST_TURN: Final = "first_turn"
LATER_TURN: Final = "later_turn"
_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_RANGE: Final = re.compile(r"(\d+)\.\.(\d*)")

Span = tuple[int, int | None]
"""Tokens [start, end) of a prompt; None: up to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRule:
    """Priority of the tokens that it names in the requests that it names; without conditions, of all.

    The generated tokens are meant as well, unless ``tokens`` is given; with ``generated`` they alone are.
    """

    priority: int
    duration_ms: int | None = None
    tokens: Span | None = None
    generated: bool = False
    session: str | None = None
    """``first_turn`` or ``later_turn`` of a session; a request without a session is neither."""
    session_age_over_ms: int | None = None
    """The session began more than so long before the request arrived."""
    prompt_tokens_over: int | None = None
    adapter: int | None = None
    """The LoRA id of the request."""

    def __post_init__(self) -> None:
        check_integer("priority", self.priority, 0, MAX_RETENTION_PRIORITY)
        if self.session not in (None, FIRST_TURN, LATER_TURN):
            raise InvalidInputError(f"session is {self.session!r}; give {FIRST_TURN} or {LATER_TURN}")
        if self.tokens is not None and self.generated:
            raise InvalidInputError("tokens are those of a prompt, generated ones have no range; leave one of them out")

    def applies(self, request: TraceRequest, age_ms: float | None) -> bool:
        """Whether a request is meant; ``age_ms`` is that of its session, None if there is none."""
        has_session = request.session is not None
        is_first = not request.predecessors and not request.turn
        adapter = None if request.constraints is None else request.constraints.lora_task_id
        return (
            (self.session is None or (has_session and is_first == (self.session == FIRST_TURN)))
            and (self.session_age_over_ms is None or (age_ms is not None and age_ms > self.session_age_over_ms))
            and (self.prompt_tokens_over is None or request.input_length > self.prompt_tokens_over)
            and (self.adapter is None or adapter == self.adapter)
        )


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Rules in order: of each token the first that applies counts."""

    rules: tuple[RetentionRule, ...]
    name: str = "rules"

    @property
    def has_durations(self) -> bool:
        """Whether time has to pass for them to mean what they say."""
        return any(rule.duration_ms is not None for rule in self.rules)

    def apply(self, trace: RequestTrace) -> RequestTrace:
        """The trace with a retention for each request that a rule means."""
        requests = [
            replace(request, retention=self._config(request, age_ms))
            for request, age_ms in _with_session_ages(trace.requests, trace.seconds_per_unit)
        ]
        return replace(trace, requests=requests)

    def _config(self, request: TraceRequest, age_ms: float | None) -> KvCacheRetentionConfig | None:
        rules = [rule for rule in self.rules if rule.applies(request, age_ms)]
        if not rules:
            return None
        ranges: list[TokenRangeRetentionConfig] = []
        for rule in rules:
            if not rule.generated:
                span = (0, None) if rule.tokens is None else rule.tokens
                ranges += [
                    TokenRangeRetentionConfig(start, end, rule.priority, rule.duration_ms)
                    for start, end in _uncovered(span, request.input_length, ranges)
                ]
        decode = next((rule for rule in rules if rule.tokens is None), None)
        priority = DEFAULT_RETENTION_PRIORITY if decode is None else decode.priority
        return KvCacheRetentionConfig(ranges, priority, None if decode is None else decode.duration_ms)


def _uncovered(span: Span, input_length: int, ranges: Sequence[TokenRangeRetentionConfig]) -> Iterator[tuple[int, int]]:
    """Parts of a span inside a prompt that no range covers yet."""
    position, end = span[0], input_length if span[1] is None else min(span[1], input_length)
    for entry in sorted(ranges, key=lambda entry: entry.token_start):
        entry_end = input_length if entry.token_end is None else entry.token_end
        if position < min(entry.token_start, end):
            yield position, min(entry.token_start, end)
        position = max(position, entry_end)
    if position < end:
        yield position, end


def _with_session_ages(
    requests: Sequence[TraceRequest], seconds_per_unit: float | None
) -> Iterator[tuple[TraceRequest, float | None]]:
    """Each request with the time since its session's first one arrived, in ms."""
    starts: dict[str, float] = {}
    for request in requests:
        if request.session is not None:
            starts[request.session] = min(starts.get(request.session, request.timestamp), request.timestamp)
    for request in requests:
        if request.session is None or seconds_per_unit is None:
            yield request, None
        else:
            yield request, (request.timestamp - starts[request.session]) * seconds_per_unit * 1000


# -- files --------------------------------------------------------------------------------------------


def read_retention_rules(path: str | Path) -> RetentionRules:
    """Rules of a TOML file, one ``[[rule]]`` each. Raises InvalidInputError with file, rule and value."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} cannot be read: {error}") from error
    toml = _import_toml()
    try:
        document = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise InvalidInputError(f"{path} is not TOML: {error}") from error
    unknown = sorted(document.keys() - {"rule"})
    entries = document.get("rule")
    if unknown or not isinstance(entries, list) or not entries:
        what = f"{unknown[0]!r} is not known" if unknown else "there is no rule"
        raise InvalidInputError(f"{path}: {what}; write each rule under [[rule]]")
    return RetentionRules(tuple(_read_rule(path, number, entry) for number, entry in enumerate(entries, 1)), path.name)


def _import_toml() -> Any:
    for name in ("tomllib", "tomli"):  # Python 3.10 has only the latter
        try:
            return import_module(name)
        except ImportError:
            continue
    raise MissingExtraError("reading TOML on Python 3.10 needs tomli: pip install tomli")


def _read_rule(path: Path, number: int, entry: object) -> RetentionRule:
    try:
        check_type("a rule", entry, dict)
        return RetentionRule(**_fields(entry))  # type: ignore[arg-type]  # checked above
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}, rule {number}: {error}") from error


def _fields(entry: Mapping[str, object]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in entry.items():
        if name not in _READERS:
            raise InvalidInputError(f"{name!r} is not known; the fields are {', '.join(_READERS)}")
        field, read = _READERS[name]
        fields[field] = read(name, value)
    if "priority" not in fields:
        raise InvalidInputError(f"priority is missing; give 0 to {MAX_RETENTION_PRIORITY}")
    return fields


def _read_count(name: str, value: Any) -> int:
    return check_integer(name, value, 0)


def _read_duration(name: str, value: Any) -> int:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidInputError(f"{name} is {value!r}; write a number and a unit: 500ms, 60s, 30m or 2h")
    number = float(match[1])
    check_number(name, number, 0)
    return round(number * _UNITS[match[2]])


def _read_range(name: str, value: Any) -> Span:
    match = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if match is None or (match[2] and int(match[2]) <= int(match[1])):
        raise InvalidInputError(f'{name} is {value!r}; write "START..END" or "START..", as in "0..1024"')
    return int(match[1]), int(match[2]) if match[2] else None


def _read_text(name: str, value: Any) -> str:
    check_type(name, value, str)
    return str(value)


def _read_flag(name: str, value: Any) -> bool:
    check_type(name, value, bool)
    return bool(value)


_READERS: Final[Mapping[str, tuple[str, Any]]] = {
    "priority": ("priority", _read_count),
    "duration": ("duration_ms", _read_duration),
    "tokens": ("tokens", _read_range),
    "generated": ("generated", _read_flag),
    "session": ("session", _read_text),
    "session_age_over": ("session_age_over_ms", _read_duration),
    "prompt_tokens_over": ("prompt_tokens_over", _read_count),
    "adapter": ("adapter", _read_count),
}
"""Name in a file -> (field of the rule, what reads its value)."""
