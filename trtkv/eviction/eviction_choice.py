"""EvictionChoice: an eviction policy as a user of a replay names it."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Final, NamedTuple

from trtkv.errors import ConfigurationError
from trtkv.eviction.registry import DEFAULT_EVICTION, Eviction, find_eviction, order_eviction


class EvictionChoice(NamedTuple):
    """Name and options; ``module:Class`` names a policy of one's own."""

    name: str = DEFAULT_EVICTION
    options: tuple[tuple[str, float], ...] = ()
    leaves_only: bool = True
    """Whether no block goes while a block behind it is cached."""
    seed: int = 0
    """For policies that draw."""

    @property
    def is_default(self) -> bool:
        """Whether it is the policy of the original."""
        return self.name == DEFAULT_EVICTION

    @property
    def label(self) -> str:
        """A few words for a report."""
        words = [self.name, *(f"{name}={value:g}" for name, value in self.options)]
        return ", ".join(words if self.leaves_only else [*words, "any block"])

    def make(self) -> Eviction:
        """The policy. Raises ConfigurationError for what is not known."""
        if ":" not in self.name:
            return order_eviction(self.name, dict(self.options), leaves_only=self.leaves_only, seed=self.seed)
        if self.options or not self.leaves_only:
            raise ConfigurationError(f"eviction {self.name} is a class of your own; give it its options in Python")
        module_name, _, class_name = self.name.partition(":")
        try:
            return find_eviction(getattr(import_module(module_name), class_name))
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(f"eviction {self.name} cannot be imported: {error}") from error

    def to_json(self) -> dict[str, object]:
        """Name and options in a fixed order."""
        return {
            "name": self.name,
            "options": dict(self.options),
            "leaves_only": self.leaves_only,
            "seed": self.seed,
        }


DEFAULT_CHOICE: Final = EvictionChoice()


def parse_eviction_options(texts: Iterable[str]) -> tuple[tuple[str, float], ...]:
    """Options written as NAME=NUMBER. Raises ConfigurationError for another form."""
    options: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            options[name] = float(value)
        except ValueError:
            raise ConfigurationError(f"eviction option {text!r} is not NAME=NUMBER; write e.g. small=0.1") from None
    return tuple(options.items())
