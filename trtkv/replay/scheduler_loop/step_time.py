"""StepTimeModel: how long one step of the scheduler loop takes on the virtual clock."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from trtkv.errors import InvalidInputError

MODEL_NAME: Final = "linear"
_NS_PER_UNIT: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|ms|us|ns)?")


class StepWork(NamedTuple):
    """What one step computes."""

    context_tokens: int
    """Prompt tokens computed."""
    generation_requests: int
    """Requests that generate a token."""
    cached_tokens: int
    """Tokens whose keys and values are read: those in front of each chunk, and all of a generating request."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the forward pass."""
        return self.context_tokens + self.generation_requests


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """base + context * context tokens + generation * generating requests + cached * cached tokens, in nanoseconds.

    The defaults are the order of magnitude of a model of 8 billion parameters in 16 bits, with 128 KiB of keys and
    values per token, on an accelerator with 3.3 TB/s and 400 useful TFLOP/s: weights read once a step, 2 operations
    per parameter and token, and the cache read at 80 % of the bandwidth.
    """

    base_ns: float = 6_000_000
    """Every step: weights, launches, scheduling."""
    context_ns: float = 40_000
    """Each prompt token computed."""
    generation_ns: float = 20_000
    """Each generating request."""
    cached_ns: float = 50
    """Each token whose keys and values are read."""

    def __post_init__(self) -> None:
        for name in ("base_ns", "context_ns", "generation_ns", "cached_ns"):
            value: object = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= getattr(self, name) < float("inf"):
                raise InvalidInputError(f"{name} is {value!r}; a step cannot take less than 0 or endless time")

    def duration_ns(self, work: StepWork) -> int:
        """Duration of a step in whole nanoseconds."""
        return round(
            self.base_ns
            + self.context_ns * work.context_tokens
            + self.generation_ns * work.generation_requests
            + self.cached_ns * work.cached_tokens
        )

    def to_json(self) -> dict[str, object]:
        """Name and coefficients in nanoseconds."""
        return {
            "model": MODEL_NAME,
            "base_ns": self.base_ns,
            "context_ns": self.context_ns,
            "generation_ns": self.generation_ns,
            "cached_ns": self.cached_ns,
        }


def parse_step_time(text: str) -> StepTimeModel:
    """A model from ``linear`` or ``linear:base=6ms,context=40us,generation=20us,cached=50ns``.

    Coefficients left out keep their defaults. Times have a unit (s, ms, us, ns) unless they are 0.
    """
    name, _, settings = text.strip().partition(":")
    if name != MODEL_NAME:
        raise InvalidInputError(f"step time model {text!r} is unknown; give {MODEL_NAME} or {MODEL_NAME}:base=6ms,...")
    coefficients: dict[str, float] = {}
    for setting in settings.split(",") if settings else []:
        key, separator, value = (part.strip() for part in setting.partition("="))
        field = f"{key}_ns"
        if not separator or field not in StepTimeModel.__dataclass_fields__ or field in coefficients:
            raise InvalidInputError(
                f"{setting!r} in step time model {text!r} is not a setting; give each of base, context, generation and "
                "cached at most once, as in base=6ms"
            )
        coefficients[field] = _parse_time(value, text)
    return StepTimeModel(**coefficients)


def _parse_time(value: str, text: str) -> float:
    match = _TIME.fullmatch(value)
    if match is None or (match[2] is None and float(match[1]) != 0):
        raise InvalidInputError(
            f"{value!r} in step time model {text!r} is not a time; write it as 40us (s, ms, us, ns)"
        )
    nanoseconds = float(match[1]) * _NS_PER_UNIT[match[2] or "ns"]
    return int(nanoseconds) if nanoseconds.is_integer() else nanoseconds
