"""Settings a user writes: sampling limits of one sequence and sizes of one scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trtkv.checks import check_count, check_integer, check_number
from trtkv.errors import ConfigurationError, InvalidInputError

MIN_TEMPERATURE = 1e-10


class SamplingSettings(Protocol):
    """What a sequence reads of its sampling settings; SamplingParams has it, and so does nano-vllm's own class."""

    @property
    def temperature(self) -> float:
        """What logits are divided by."""

    @property
    def max_tokens(self) -> int:
        """Generated tokens at most."""

    @property
    def ignore_eos(self) -> bool:
        """Whether the sequence goes on after its end token."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """When a sequence ends; the temperature is carried along for a sampler."""

    temperature: float = 1.0
    """0: always the most likely token (nano-vllm has no such choice); otherwise above 1e-10, as logits are divided."""
    max_tokens: int = 64
    """Generated tokens at most, at least 1."""
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if check_number("temperature", self.temperature, 0, inclusive=True):
            check_number("temperature", self.temperature, MIN_TEMPERATURE)
        check_integer("max_tokens", self.max_tokens, 1)

    @classmethod
    def from_settings(cls, settings: SamplingSettings) -> SamplingParams:
        """The same settings, checked. Raises InvalidInputError if one is missing or out of range."""
        if isinstance(settings, cls):
            return settings
        try:
            return cls(settings.temperature, settings.max_tokens, settings.ignore_eos)
        except AttributeError as error:
            raise InvalidInputError(
                f"sampling_params is {settings!r:.200}; give temperature, max_tokens and ignore_eos ({error})"
            ) from error


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Sizes of a scheduler and of the pool it owns."""

    num_kvcache_blocks: int
    """Blocks in the pool."""
    kvcache_block_size: int = 256
    """Tokens in a block."""
    max_num_seqs: int = 512
    """Sequences in one step at most."""
    max_num_batched_tokens: int = 16384
    """Prompt tokens in one prefill step at most."""
    eos: int = -1
    """Token that ends a sequence; -1 for none."""

    def __post_init__(self) -> None:
        for name in ("num_kvcache_blocks", "kvcache_block_size", "max_num_seqs", "max_num_batched_tokens"):
            check_count(name, getattr(self, name), 1, error=ConfigurationError)
        check_integer("eos", self.eos, error=ConfigurationError)
