"""Models by name: facts of public checkpoints that come with the package, read by the same rules as their files."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final, NamedTuple

from trtkv.sizing.hf_config import HfConfig, make_hf_config

TABLE_FILE: Final = "known_models.json"


class KnownModel(NamedTuple):
    """One entry of the table."""

    name: str
    hub_id: str
    """Name on the Hugging Face hub."""
    source: str
    """Where its facts were read."""
    config: Mapping[str, Any]
    """The keys of its config.json that decide the size of its cache."""

    def hf_config(self) -> HfConfig:
        """Its config as a reader takes it."""
        return make_hf_config(self.config, self.name)


class KnownModels(NamedTuple):
    """The table."""

    date: str
    """Year and month in which the facts were read; checkpoints change."""
    models: Mapping[str, KnownModel]

    def find(self, name: str) -> KnownModel | None:
        """The model of this name or hub id, whatever the case."""
        wanted = name.lower()
        by_hub_id = (model for model in self.models.values() if model.hub_id.lower() == wanted)
        return self.models.get(wanted) or next(by_hub_id, None)

    def similar(self, name: str) -> str | None:
        """The known name that is most like this one, if any is."""
        found = difflib.get_close_matches(name.lower().rpartition("/")[2], self.models, n=1, cutoff=0.6)
        return found[0] if found else None


def load_known_models() -> KnownModels:
    """Read the table from the package."""
    table = json.loads(files("trtkv.sizing").joinpath(TABLE_FILE).read_text(encoding="utf-8"))
    models = {
        name: KnownModel(name, entry["hub"], entry["source"], entry["config"])
        for name, entry in table["models"].items()
    }
    return KnownModels(table["date"], models)
