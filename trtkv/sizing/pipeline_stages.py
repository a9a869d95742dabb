"""Which layers each stage of a pipeline has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkv.common import RECURRENT_STATES
from trtkv.errors import ConfigurationError

if TYPE_CHECKING:
    from trtkv.sizing.model_shape import ModelShape


def split_into_stages(shape: ModelShape, num_stages: int) -> list[ModelShape]:
    """The shape of each stage: consecutive layers, the first stages one more where they cannot be shared evenly.

    Layers without a cache count, as in TensorRT-LLM's mapping. Raises ConfigurationError for a stage without a layer
    that keeps something.
    """
    if num_stages == 1:
        return [shape]
    if num_stages > shape.num_layers:
        raise ConfigurationError(f"{shape.name} has {shape.num_layers} layers, too few for {num_stages} stages")
    each, rest = divmod(shape.num_layers, num_stages)
    stages, start = [], 0
    for number in range(num_stages):
        end = start + each + (number < rest)
        held = [i for i, position in enumerate(shape.layer_numbers) if start <= position < end]
        layers = tuple(shape.layers[i] for i in held)
        if not layers:
            raise ConfigurationError(
                f"none of the layers {start} to {end - 1} of {shape.name} keeps anything; choose fewer stages"
            )
        has_states = any(layer.window == RECURRENT_STATES for layer in layers)
        positions = tuple(shape.layer_numbers[i] for i in held)
        stages.append(replace(shape, layers=layers, positions=positions, states=shape.states if has_states else None))
        start = end
    return stages
