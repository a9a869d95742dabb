"""ModelSpec: what a cache has to know about a model."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from trtkv.common import DataType
from trtkv.errors import ConfigurationError

_DATA_TYPES = {
    torch.float16: DataType.HALF,
    torch.bfloat16: DataType.BF16,
    torch.float32: DataType.FLOAT,
    torch.float64: DataType.INT64,
}


class ModelSpec(NamedTuple):
    """Heads, head size and window of each attention layer, and the type of keys and values."""

    num_kv_heads_per_layer: tuple[int, ...]
    head_dim: int
    attention_windows: tuple[int | None, ...]
    """Tokens a query sees, itself included; None sees everything."""
    dtype: torch.dtype

    @property
    def pool_dtype(self) -> DataType:
        """Element type of the pools. 64-bit floats lie bit by bit in pools of 64-bit integers."""
        if self.dtype not in _DATA_TYPES:
            raise ConfigurationError(f"keys and values of {self.dtype} cannot be kept; use one of {list(_DATA_TYPES)}")
        return _DATA_TYPES[self.dtype]


def read_model_spec(model: torch.nn.Module) -> ModelSpec:
    """Read the attention layers of a Hugging Face decoder; each may have its own head count and window."""
    layers: list[Any] = sorted(
        (module for module in model.modules() if hasattr(module, "k_proj") and hasattr(module, "layer_idx")),
        key=lambda module: module.layer_idx,
    )
    if not layers or [layer.layer_idx for layer in layers] != list(range(len(layers))):
        raise ConfigurationError(
            f"{type(model).__name__} has no attention layers with layer_idx and k_proj, numbered from 0; "
            "use a decoder in the style of Llama, Qwen or Gemma"
        )
    head_dims = {int(layer.head_dim) for layer in layers}
    if len(head_dims) != 1:
        raise ConfigurationError(f"layers have head sizes {sorted(head_dims)}; one size for all is needed")
    head_dim = head_dims.pop()
    return ModelSpec(
        tuple(int(layer.k_proj.out_features) // head_dim for layer in layers),
        head_dim,
        tuple(_window_of(layer) for layer in layers),
        next(model.parameters()).dtype,
    )


def _window_of(layer: Any) -> int | None:
    config = layer.config
    layer_types = getattr(config, "layer_types", None)
    if layer_types and layer_types[layer.layer_idx] != "sliding_attention":
        return None
    window = getattr(layer if hasattr(layer, "sliding_window") else config, "sliding_window", None)
    return None if window is None else int(window)
