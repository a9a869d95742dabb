"""Enumerations with the numbers of the bindings, and small types of the root module."""

from __future__ import annotations

import time
from enum import Enum
from typing import Any, TypeVar

from trtkv import common

E = TypeVar("E", bound=Enum)


class DataType(Enum):
    """Element types, with the numbers of the C++ enumeration."""

    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT32 = 3
    BOOL = 4
    UINT8 = 5
    FP8 = 6
    BF16 = 7
    INT64 = 8
    NVFP4 = 10


class CacheType(Enum):
    """What a cache holds."""

    SELF = 0
    CROSS = 1
    SELFKONLY = 2


class LayerType(Enum):
    """Kinds of layers."""

    ATTENTION = 0
    RECURRENT = 1


class LinearCacheType(Enum):
    """Window sizes that stand for something else."""

    RECURRENT_STATES = common.RECURRENT_STATES


class LlmRequestType(Enum):
    """Which phases of a request this server runs."""

    LLMREQUEST_TYPE_CONTEXT_AND_GENERATION = 0
    LLMREQUEST_TYPE_CONTEXT_ONLY = 1
    LLMREQUEST_TYPE_GENERATION_ONLY = 2


def expect(name: str, value: object, kind: type[E]) -> E:
    """The value if it is a member of the enumeration; the bindings take nothing else."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not {value!r}")
    return value


def to_core_dtype(dtype: DataType) -> common.DataType:
    """The type of the same name."""
    try:
        return common.DataType[dtype.name]
    except KeyError:
        raise RuntimeError(f"no cache holds {dtype.name} elements") from None


def to_bound_dtype(dtype: common.DataType) -> DataType:
    """The type of the same name."""
    return DataType[dtype.name]


class Comparable:
    """Equality and pickling by attributes, as the records of the bindings have them."""

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal by value and mutable

    def __repr__(self) -> str:
        fields = ", ".join(f"{name.lstrip('_')}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"


class SamplingConfig(Comparable):
    """Sampling parameters of the runtime: each a list with one value for all beams or one each, or None."""

    _FIELDS = (
        "temperature",
        "min_length",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "top_k",
        "top_p",
        "random_seed",
        "top_p_decay",
        "top_p_min",
        "top_p_reset_ids",
        "beam_search_diversity_rate",
        "length_penalty",
        "early_stopping",
        "no_repeat_ngram_size",
        "min_p",
        "beam_width_array",
    )

    temperature: Any
    min_length: Any
    random_seed: Any

    def __init__(self, beam_width: Any = 1, external_draft_tokens_config: object = None) -> None:
        source = None if isinstance(beam_width, int) else beam_width
        self.beam_width: int = beam_width if source is None else source.beam_width
        for name in self._FIELDS:
            value = getattr(source, name, getattr(source, _EXECUTOR_NAMES.get(name, name), None))
            setattr(self, name, value if value is None or isinstance(value, list) else [value])
        self.num_return_sequences: int | None = getattr(source, "num_return_sequences", None)
        self.normalize_log_probs: bool | None = None


_EXECUTOR_NAMES = {"min_length": "min_tokens", "random_seed": "seed"}


class ModelConfig:
    """Sizes of a model."""

    def __init__(
        self,
        vocab_size: int,
        num_layers: int,
        num_attention_layers: int,
        num_rnn_layers: int,
        num_heads: int,
        hidden_size: int,
        data_type: DataType,
    ) -> None:
        self.vocab_size = vocab_size
        self._layers = (num_layers, num_attention_layers, num_rnn_layers)
        self.num_heads = num_heads
        self.hidden_size = hidden_size
        self.data_type = expect("data_type", data_type, DataType)
        self.num_kv_heads_per_layer = [num_heads] * num_attention_layers
        self.size_per_head = hidden_size // num_heads
        self.tokens_per_block = 64
        self.layer_types = [LayerType.ATTENTION] * num_attention_layers + [LayerType.RECURRENT] * num_rnn_layers
        self.lora_modules: list[object] = []
        self.use_lora_plugin = False
        self.max_lora_rank = 0
        self.speculative_decoding_mode: object = None
        self.max_batch_size = 0
        self.max_beam_width = 1
        self.max_input_len = 0
        self.max_seq_len = 0
        self.max_num_tokens: int | None = None
        self.use_gpt_attention_plugin = False
        self.use_packed_input = False
        self.compute_context_logits = False
        self.compute_generation_logits = False

    def num_layers(self, pipeline_parallelism: int = 1, pipeline_parallelism_rank: int = 0) -> int:
        """Layers of one pipeline rank."""
        return self._layers[0] // pipeline_parallelism

    def num_attention_layers(self, pipeline_parallelism: int = 1, pipeline_parallelism_rank: int = 0) -> int:
        """Attention layers of one pipeline rank."""
        return self._layers[1] // pipeline_parallelism

    def num_rnn_layers(self, pipeline_parallelism: int = 1, pipeline_parallelism_rank: int = 0) -> int:
        """Recurrent layers of one pipeline rank."""
        return self._layers[2] // pipeline_parallelism

    def num_kv_heads(self, layer_idx: int) -> int:
        """KV heads of a layer."""
        return self.num_kv_heads_per_layer[layer_idx]

    def set_num_kv_heads(self, num_kv_heads: int) -> None:
        """The same number of KV heads for all layers."""
        self.num_kv_heads_per_layer = [num_kv_heads] * len(self.num_kv_heads_per_layer)

    @property
    def head_size(self) -> int:
        """Elements of a head."""
        return self.size_per_head


class WorldConfig:
    """Parallel layout of the ranks."""

    def __init__(
        self,
        tensor_parallelism: int = 1,
        pipeline_parallelism: int = 1,
        context_parallelism: int = 1,
        rank: int = 0,
        gpus_per_node: int = 8,
        device_ids: list[int] | None = None,
        enable_attention_dp: bool = False,
    ) -> None:
        self.tensor_parallelism = tensor_parallelism
        self.pipeline_parallelism = pipeline_parallelism
        self.context_parallelism = context_parallelism
        self.rank = rank
        self.gpus_per_node = gpus_per_node
        self.device_ids = device_ids
        self.enable_attention_dp = enable_attention_dp

    @property
    def size(self) -> int:
        """Ranks."""
        return self.tensor_parallelism * self.pipeline_parallelism * self.context_parallelism

    @property
    def is_pipeline_parallel(self) -> bool:
        """Whether layers are spread over ranks."""
        return self.pipeline_parallelism > 1

    @property
    def is_tensor_parallel(self) -> bool:
        """Whether heads are spread over ranks."""
        return self.tensor_parallelism > 1


class MpiComm:
    """A world of one process."""

    @staticmethod
    def rank() -> int:
        """The rank of this process."""
        return 0

    @staticmethod
    def size() -> int:
        """Processes."""
        return 1

    @staticmethod
    def local_size() -> int:
        """Processes of this node."""
        return 1

    @staticmethod
    def split(color: int, rank: int) -> None:
        """One process is not split."""


def steady_clock_now() -> float:
    """Seconds of the monotonic clock."""
    return time.monotonic()


class LoraModuleType(Enum):
    """Places of a model that an adapter may change; kept as names only."""

    ATTN_QKV = 0
    ATTN_Q = 1
    ATTN_K = 2
    ATTN_V = 3
    ATTN_DENSE = 4
    MLP_H_TO_4H = 5
    MLP_4H_TO_H = 6
    MLP_GATE = 7


class LoraModule(Comparable):
    """One kind of adapter weights; kept, not used."""

    def __init__(self, *args: object, **fields: object) -> None:
        self.args = args
        self.fields = fields


class PeftCacheManagerConfig(Comparable):
    """Sizes of an adapter cache; kept, not used."""

    def __init__(self, **fields: object) -> None:
        for name, value in fields.items():
            setattr(self, name, value)
