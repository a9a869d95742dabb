"""AdapterNames: the names under which listeners know adapters, as the manager knows ids only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trtkv.errors import InvalidInputError

MADE_PREFIX: Final = "lora-"
"""What a name made from an id begins with."""


class AdapterNames:
    """LoRA id -> name: that of ``names``, or one made from the id, the same in every process.

    Raises InvalidInputError if two ids would share a name, as listeners would mix up their blocks.
    """

    def __init__(self, names: Mapping[int, str] | None = None) -> None:
        self._names = dict(names or {})
        if len(set(self._names.values())) != len(self._names):
            raise InvalidInputError(f"two adapters share a name in {self._names}; give each its own")
        for lora_id, name in self._names.items():
            if not name or (name.startswith(MADE_PREFIX) and name != f"{MADE_PREFIX}{lora_id}"):
                raise InvalidInputError(
                    f"adapter {lora_id} is named {name!r}; give a name that is not empty and does not begin with "
                    f"{MADE_PREFIX!r}, which names made from ids do"
                )

    def get(self, lora_id: int | None) -> str | None:
        """The name of an adapter; None for the base model."""
        if lora_id is None:
            return None
        return self._names.get(lora_id) or f"{MADE_PREFIX}{lora_id}"


NO_NAMES: Final = AdapterNames()
"""Every name is made from the id."""
