"""KnownModelsReport: the models that are known by name, as a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from trtkv.sizing.cache_plan import SizingOptions, make_layout
from trtkv.sizing.known_models import KnownModel, KnownModels
from trtkv.sizing.model_shape import make_model_shape
from trtkv.tables.result import Result
from trtkv.tables.table import Table, list_table

_LONG: Final = 2**20
"""Longest sequence of models that name none; it only has to be beyond their windows."""


class _Row(NamedTuple):
    model: KnownModel
    bytes_per_token: int
    """On one GPU, in the type that the checkpoint asks for."""
    kv_dtype: str


@dataclass(frozen=True, slots=True, repr=False)
class KnownModelsReport(Result):
    """Every entry of the table, sized."""

    known: KnownModels

    def rows(self) -> list[_Row]:
        """Models by name."""
        return [_size(model) for model in self.known.models.values()]

    def to_json(self) -> dict[str, object]:
        """Everything, sources included."""
        return {
            "date": self.known.date,
            "models": [
                {
                    "name": row.model.name,
                    "hub_id": row.model.hub_id,
                    "bytes_per_token": row.bytes_per_token,
                    "kv_dtype": row.kv_dtype,
                    "source": row.model.source,
                }
                for row in self.rows()
            ],
        }

    def tables(self) -> list[Table]:
        """A row for each model."""
        return [
            list_table(
                "Known models",
                {
                    "name": lambda row: row.model.name,
                    "hub id": lambda row: row.model.hub_id,
                    "type": lambda row: row.kv_dtype,
                    "bytes per token": lambda row: row.bytes_per_token,
                },
                self.rows(),
                texts=3,
            )
        ]

    def notes(self) -> list[str]:
        """How old the facts are."""
        return [f"Facts as read in {self.known.date}. Checkpoints change: the config.json of yours is better."]


def _size(model: KnownModel) -> _Row:
    shape = make_model_shape(model.hf_config(), model.name)
    layout = make_layout(shape, SizingOptions(1, max_sequence_length=shape.max_position_embeddings or _LONG))
    index_bytes = sum(layer.index_bytes for layer in shape.layers)
    return _Row(model, sum(layout.bytes_per_token.values()) + index_bytes, shape.kv_dtype.value)
