"""CacheSettings: everything that a KVCacheManager is built from, checked once, in nested records that cannot change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trtkv.checks import check_count, check_integer, check_member
from trtkv.common import MAX_INT32, RECURRENT_STATES, CacheType, DataType, KeyForm, Priority, WindowSize
from trtkv.errors import ConfigurationError, UnknownIdError
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.records.retention_config import (
    DEFAULT_SECONDARY_OFFLOAD_MIN_PRIORITY,
    MAX_RETENTION_PRIORITY,
    MIN_RETENTION_PRIORITY,
)
from trtkv.records.window_size_metadata import PoolConfiguration


def _freeze(record: object, **values: object) -> None:
    """Set fields of a frozen record that is being made."""
    for name, value in values.items():
        object.__setattr__(record, name, value)


_TIER_NAMES: Final = ("primary", "secondary")
_MAX_TIERS: Final = 2
"""Nothing else counts tiers: this is how far blocks are moved."""


@dataclass(frozen=True, slots=True)
class IndexerKCacheSettings:
    """Sizes of the index-key pools beside the pools of a window."""

    quant_block_size: int = 128
    """Elements that share a scale."""
    index_head_dim: int = 0
    use_fp4: bool = False
    layer_mask: Sequence[bool] | None = None
    """Which layers keep index keys, one entry per layer; None: all."""

    def __post_init__(self) -> None:
        if self.layer_mask is not None:
            _freeze(self, layer_mask=tuple(bool(entry) for entry in self.layer_mask))
        if self.quant_block_size < 1 or self.index_head_dim < 0:
            raise ConfigurationError(
                f"index keys have head size {self.index_head_dim} and {self.quant_block_size} elements per scale; "
                "give at least 0 and 1"
            )


@dataclass(frozen=True, slots=True)
class LayerSettings:
    """What the layers of a model keep of each token."""

    num_kv_heads_per_layer: Sequence[int]
    size_per_head: int
    dtype: DataType = DataType.HALF
    cache_type: CacheType = CacheType.SELF
    indexer_k_cache: IndexerKCacheSettings | None = None
    """Index keys beside keys and values; None: there are none."""
    linear_attention_metadata: LinearAttentionMetadata | None = None
    """Recurrent states; their layers have the window RECURRENT_STATES."""

    def __post_init__(self) -> None:
        _freeze(self, num_kv_heads_per_layer=tuple(self.num_kv_heads_per_layer))
        _freeze(self, dtype=check_member("dtype", self.dtype, DataType, error=ConfigurationError))
        _freeze(self, cache_type=check_member("cache_type", self.cache_type, CacheType, error=ConfigurationError))
        if not self.num_kv_heads_per_layer:
            raise ConfigurationError("num_kv_heads_per_layer is empty; give one entry per layer")
        for layer, num_heads in enumerate(self.num_kv_heads_per_layer):
            check_integer(f"the number of KV heads of layer {layer}", num_heads, error=ConfigurationError)
            if num_heads < 1:
                raise ConfigurationError(f"layer {layer} has {num_heads} KV heads; give at least 1")
        check_count("size_per_head", self.size_per_head, 1, error=ConfigurationError)
        mask = None if self.indexer_k_cache is None else self.indexer_k_cache.layer_mask
        if mask is not None and len(mask) != len(self.num_kv_heads_per_layer):
            raise ConfigurationError(
                f"the layer mask of index keys has {len(mask)} entries for {len(self.num_kv_heads_per_layer)} layers; "
                "give one per layer"
            )


@dataclass(frozen=True, slots=True)
class WindowsSettings:
    """Attention windows, and the blocks each of them has in each tier."""

    max_attention_window_vec: Sequence[WindowSize]
    """Window of each layer in tokens: layer l takes entry l modulo the length."""
    blocks_per_window: Mapping[WindowSize, Sequence[int]]
    """Window -> blocks of its tiers, warm to cold: (primary, secondary), in device and host memory."""
    pool_configurations: Sequence[PoolConfiguration] = ()
    """Head size and element type of windows that differ from those of the layers."""

    def __post_init__(self) -> None:
        _freeze(self, max_attention_window_vec=tuple(self.max_attention_window_vec))
        _freeze(self, pool_configurations=tuple(self.pool_configurations))
        if not self.max_attention_window_vec:
            raise ConfigurationError("max_attention_window_vec is empty; give at least one window")
        for window_size in self.max_attention_window_vec:
            if window_size != RECURRENT_STATES:
                check_integer("attention window", window_size, error=ConfigurationError)
                if window_size < 1:
                    raise ConfigurationError(f"attention window is {window_size} tokens; give at least 1")
        for window_size, counts in self.blocks_per_window.items():
            if not isinstance(counts, Sequence) or not 1 <= len(counts) <= _MAX_TIERS:
                raise ConfigurationError(
                    f"blocks_per_window has {counts!r} for window {window_size}; give (primary, secondary) blocks, "
                    "or primary blocks only; blocks are moved between these two tiers"
                )
        _freeze(self, blocks_per_window={window: tuple(counts) for window, counts in self.blocks_per_window.items()})
        configured = [entry.window_size for entry in self.pool_configurations]
        for window_size in configured:
            if configured.count(window_size) > 1:
                raise ConfigurationError(f"window {window_size} has two pool configurations; give one per window")
        for entry in self.pool_configurations:
            check_count("size_per_head", entry.size_per_head, 1, error=ConfigurationError)

    def get_blocks(self, window_size: WindowSize) -> tuple[int, ...]:
        """Blocks of the tiers of a window, at least two of them. Raises UnknownIdError for a window that has none."""
        try:
            counts = tuple(self.blocks_per_window[window_size])
        except KeyError:
            raise UnknownIdError(
                f"blocks_per_window has no entry for window {window_size}; it has {sorted(self.blocks_per_window)}"
            ) from None
        for level, number in enumerate(counts):
            what = _TIER_NAMES[level] if level < len(_TIER_NAMES) else f"tier {level}"
            least = 0 if level else 1
            name = f"the number of {what} blocks of window {window_size}"
            check_integer(name, number, most=MAX_INT32, error=ConfigurationError)
            if number < least:
                raise ConfigurationError(f"window {window_size} has {number} {what} blocks; give it at least {least}")
        return counts if len(counts) > 1 else (*counts, 0)


@dataclass(frozen=True, slots=True)
class SequenceLimits:
    """The largest sequences that a manager is asked to hold."""

    max_sequence_length: int
    """Tokens of the longest sequence; a narrower window slides."""
    max_num_sequences: int
    max_beam_width: int = 1
    chunk_size: int | None = None
    """Largest context chunk in tokens, which only budgets ask for; None: ``max_sequence_length``."""

    def __post_init__(self) -> None:
        check_count("max_sequence_length", self.max_sequence_length, 1, error=ConfigurationError)
        check_count("max_num_sequences", self.max_num_sequences, 1, error=ConfigurationError)
        check_count("max_beam_width", self.max_beam_width, 1, error=ConfigurationError)
        if self.chunk_size is not None:
            check_count("chunk_size", self.chunk_size, 1, error=ConfigurationError)


@dataclass(frozen=True, slots=True)
class ReuseSettings:
    """What is found in the cache."""

    enable_block_reuse: bool = True
    """Whether blocks are stored, and found by later requests."""
    enable_partial_reuse: bool = True
    """Whether a block may be matched by its first tokens only."""
    copy_on_partial_reuse: bool = True
    """Whether such a block is copied if others use it or it has children; otherwise it is not a match."""
    hash_map_order: bool | None = None
    """Whether equal partial matches are taken in the iteration order of the original's hash map, not newest first. This
    takes the hash of each child of a node where a tie comes up. None: as ``compatibility``."""
    key_form: KeyForm = KeyForm.TOKENS
    """How the tokens of full blocks are kept. DIGESTS takes less than half the memory, for managers without partial
    reuse and events."""

    def __post_init__(self) -> None:
        _freeze(self, key_form=check_member("key_form", self.key_form, KeyForm, error=ConfigurationError))


@dataclass(frozen=True, slots=True)
class EvictionSettings:
    """Which blocks go first, and where to."""

    eviction: object = "priority-lru"
    """Name of the policy, or a class that makes one, or an ``Eviction``; see docs/eviction.md."""
    secondary_offload_min_priority: Priority = DEFAULT_SECONDARY_OFFLOAD_MIN_PRIORITY
    """Blocks of a lower priority are dropped instead of offloaded."""

    def __post_init__(self) -> None:
        limits = (MIN_RETENTION_PRIORITY, MAX_RETENTION_PRIORITY)
        value = self.secondary_offload_min_priority
        check_integer("secondary_offload_min_priority", value, *limits, error=ConfigurationError)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Everything that decides what a KVCacheManager does, apart from the objects it calls.

    Raises ConfigurationError for a wrong value, and UnknownIdError for a window without blocks.
    """

    tokens_per_block: int = 32
    layers: LayerSettings
    windows: WindowsSettings
    limits: SequenceLimits
    reuse: ReuseSettings = ReuseSettings()
    eviction: EvictionSettings = EvictionSettings()
    preallocate_blocks: bool = False
    """Whether all block objects are made at construction, at about 190 bytes and half a microsecond each, so that
    admission need not; otherwise a block costs nothing until it is first used."""
    compatibility: bool = False
    """Whether the recorded behaviour of the original is reproduced bit for bit, including the faults that hurt users,
    half-done failures and the order of equal partial matches; see docs/decisions."""

    def __post_init__(self) -> None:
        check_count("tokens_per_block", self.tokens_per_block, 1, error=ConfigurationError)
        for window_size in self.windows_in_use:
            self.windows.get_blocks(window_size)
        if self.layers.linear_attention_metadata is not None:
            self._check_recurrent_states(self.layers.linear_attention_metadata)
        elif RECURRENT_STATES in self.windows_in_use:
            raise ConfigurationError("a recurrent window needs linear_attention_metadata; give the sizes of its states")
        unknown = {entry.window_size for entry in self.windows.pool_configurations} - set(
            self.windows.max_attention_window_vec
        )
        if unknown and not self.compatibility:
            raise ConfigurationError(
                f"pool_configurations name windows {sorted(unknown)}, no layer has them; "
                f"windows are {sorted(set(self.windows.max_attention_window_vec))}"
            )
        self._check_key_form()

    @property
    def windows_in_use(self) -> list[WindowSize]:
        """The windows that layers have, ascending; the recurrent one, being negative, comes first."""
        return sorted(set(self.windows.max_attention_window_vec[: len(self.layers.num_kv_heads_per_layer)]))

    @property
    def hash_map_order(self) -> bool:
        """Whether equal partial matches are taken in the order of the original's hash map."""
        order = self.reuse.hash_map_order
        return self.compatibility if order is None else order

    def _check_recurrent_states(self, linear: LinearAttentionMetadata) -> None:
        if self.reuse.enable_partial_reuse:
            raise ConfigurationError("recurrent states cannot be reused in part; set enable_partial_reuse=False")
        if linear.states_snapshot_interval < 0 or (linear.num_placeholder_blocks or 0) < 0:
            raise ConfigurationError(
                f"states_snapshot_interval {linear.states_snapshot_interval} or num_placeholder_blocks "
                f"{linear.num_placeholder_blocks} is negative; give 0 or more"
            )
        if linear.states_snapshot_interval % self.tokens_per_block:
            raise ConfigurationError(
                f"states_snapshot_interval {linear.states_snapshot_interval} is not a multiple of "
                f"tokens_per_block {self.tokens_per_block}"
            )
        if self.limits.max_sequence_length not in self.windows.blocks_per_window:
            raise ConfigurationError(
                f"recurrent states need a full-attention window of max_sequence_length "
                f"{self.limits.max_sequence_length} beside them; windows are {sorted(self.windows.blocks_per_window)}"
            )
        if linear.all_recurrent_states_bytes < 1:
            raise ConfigurationError(
                f"all_recurrent_states_bytes is {linear.all_recurrent_states_bytes}; give the bytes of a layer's states"
            )

    def _check_key_form(self) -> None:
        if self.reuse.key_form is KeyForm.TOKENS:
            return
        reasons = {"a cross cache": self.layers.cache_type is CacheType.CROSS}
        if self.reuse.key_form is KeyForm.DIGESTS:
            reasons |= {"partial reuse": self.reuse.enable_partial_reuse, "hash-map order": self.hash_map_order}
        found = [name for name, applies in reasons.items() if applies]
        if found:
            refuse_key_form(self.reuse.key_form, " or ".join(found))


def refuse_key_form(key_form: KeyForm, what: str) -> None:
    """Raise ConfigurationError for a form of keys that something needs the tokens of."""
    raise ConfigurationError(
        f"key_form {key_form.value!r} is incompatible with {what}, which need the tokens of blocks; "
        "choose one or the other"
    )
