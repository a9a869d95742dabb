"""KVCacheBlockPool: shape, element type and, once allocated, the memory of one group of layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from trtkv.common import DataType, WindowSize, trunc_div
from trtkv.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

NVFP4_QUANT_BLOCK_SIZE = 16
"""Consecutive elements of a head that share one NVFP4 scale."""


class KvLayout(str, Enum):
    """Order of heads (H), tokens (N) and head elements (D) within one K or V block of a layer."""

    HND = "HND"
    NHD = "NHD"


PoolShape = tuple[int, int, int, int]
"""(blocks, layers, kv, elements), or (layers, blocks, kv, elements) when layers come first."""


@dataclass(slots=True, eq=False)
class KVCacheBlockPool:
    """One pool of a window: layers of equal head count, in blocks. C++: KVCacheBlockPool.

    ``size_per_head`` and ``block_size`` count stored elements of ``dtype``: NVFP4 keeps two values in one byte, so its
    pool has dtype INT8 and half the head size. The tensors stay None until the pool is allocated.
    """

    num_layers: int
    kv_factor: int
    """2 where keys and values are kept, 1 for keys only and for recurrent states."""
    num_kv_heads: int
    size_per_head: int
    tokens_per_block: int
    dtype: DataType
    window_size: WindowSize
    blocks_per_tier: tuple[int, ...]
    """Warm to cold: primary, secondary."""
    block_size: int = -1
    """Elements of one K or V block of one layer; -1 means heads * head size * tokens."""
    layer_first_layout: bool = False
    contains_block_scales: bool = False
    contains_indexer_k_cache: bool = False
    layer_mask: tuple[bool, ...] | None = None
    """Which layers of the source pool have rows here; None means all of them."""
    kv_layout: KvLayout = KvLayout.HND
    """Order of the elements of a block in memory; chosen when the pool is allocated."""
    tensors: list[torch.Tensor | None] = field(init=False, repr=False)
    """Memory of each tier, where it is allocated."""

    def __post_init__(self) -> None:
        self.release()
        if self.block_size < 0:
            self.block_size = self.num_kv_heads * self.size_per_head * self.tokens_per_block

    @property
    def is_data_pool(self) -> bool:
        """Whether layers map to this pool, i.e. it holds neither scales nor index keys."""
        return not (self.contains_block_scales or self.contains_indexer_k_cache)

    def release(self) -> None:
        """Let go of the tensors."""
        self.tensors = [None] * len(self.blocks_per_tier)

    @property
    def num_primary_blocks(self) -> int:
        """Blocks of the first tier."""
        return self.blocks_per_tier[0]

    @property
    def num_secondary_blocks(self) -> int:
        """Blocks of the second tier."""
        return self.blocks_per_tier[1]

    @property
    def primary(self) -> torch.Tensor | None:
        """Memory of the first tier."""
        return self.tensors[0]

    @property
    def secondary(self) -> torch.Tensor | None:
        """Memory of the second tier."""
        return self.tensors[1]

    @property
    def primary_shape(self) -> PoolShape:
        """Shape of the primary tensor."""
        return self.shape_of_tier(0)

    @property
    def secondary_shape(self) -> PoolShape:
        """Shape of the secondary tensor."""
        return self.shape_of_tier(1)

    @property
    def block_bytes(self) -> int:
        """Bytes that one block takes over all layers, keys and values."""
        return self.num_layers * self.kv_factor * self.block_size * self.dtype.num_bits // 8

    @property
    def primary_bytes(self) -> int:
        """Bytes of the primary tensor."""
        return self.num_primary_blocks * self.block_bytes

    @property
    def secondary_bytes(self) -> int:
        """Bytes of the secondary tensor."""
        return self.num_secondary_blocks * self.block_bytes

    def row_of_layer(self, pool_layer_idx: int) -> int | None:
        """Row of a layer of the source pool; None when the mask leaves that layer out."""
        if self.layer_mask is None:
            return pool_layer_idx
        return sum(self.layer_mask[:pool_layer_idx]) if self.layer_mask[pool_layer_idx] else None

    def shape_of_tier(self, level: int) -> PoolShape:
        """Shape of the tensor of a tier."""
        num_blocks = self.blocks_per_tier[level]
        if self.layer_first_layout:
            return (self.num_layers, num_blocks, self.kv_factor, self.block_size)
        return (num_blocks, self.num_layers, self.kv_factor, self.block_size)


def create_data_pool(
    num_layers: int,
    kv_factor: int,
    num_kv_heads: int,
    size_per_head: int,
    tokens_per_block: int,
    dtype: DataType,
    window_size: WindowSize,
    blocks_per_tier: tuple[int, ...],
) -> KVCacheBlockPool:
    """Pool of keys and values; ``size_per_head`` counts values, also for NVFP4."""
    if dtype is DataType.NVFP4:
        if size_per_head % 2:
            raise ConfigurationError(f"size_per_head {size_per_head} must be even for NVFP4, two values share a byte")
        size_per_head //= 2
        dtype = DataType.INT8
    return KVCacheBlockPool(
        num_layers,
        kv_factor,
        num_kv_heads,
        size_per_head,
        tokens_per_block,
        dtype,
        window_size,
        blocks_per_tier,
    )


def create_recurrent_state_pool(
    num_layers: int,
    all_recurrent_states_bytes: int,
    tokens_per_block: int,
    dtype: DataType,
    window_size: WindowSize,
    blocks_per_tier: tuple[int, ...],
) -> KVCacheBlockPool:
    """Pool of recurrent states, layers first; heads do not apply and are -1."""
    if all_recurrent_states_bytes * 8 % dtype.num_bits:
        raise ConfigurationError(
            f"all_recurrent_states_bytes {all_recurrent_states_bytes} is not a multiple of the {dtype.num_bits} bits "
            f"of {dtype.value}; choose another element type for the window, or round up"
        )
    return KVCacheBlockPool(
        num_layers,
        1,
        -1,
        -1,
        tokens_per_block,
        dtype,
        window_size,
        blocks_per_tier,
        block_size=all_recurrent_states_bytes * 8 // dtype.num_bits,
        layer_first_layout=True,
    )


def create_block_scale_pool(
    source: KVCacheBlockPool, quant_block_size: int = NVFP4_QUANT_BLOCK_SIZE
) -> KVCacheBlockPool:
    """Pool of fp8 scales beside an NVFP4 pool: head size / 16 per head. C++: createBlockScalePools."""
    head_dim = source.size_per_head * 2
    if head_dim % quant_block_size:
        raise ConfigurationError(f"head size {head_dim} must be a multiple of {quant_block_size} for NVFP4 scales")
    return KVCacheBlockPool(
        source.num_layers,
        source.kv_factor,
        source.num_kv_heads,
        head_dim // quant_block_size,
        source.tokens_per_block,
        DataType.FP8,
        source.window_size,
        source.blocks_per_tier,
        contains_block_scales=True,
    )


def create_indexer_k_cache_pool(
    source: KVCacheBlockPool,
    index_head_dim: int,
    quant_block_size: int = 128,
    use_fp4: bool = False,
    layer_mask: tuple[bool, ...] | None = None,
) -> KVCacheBlockPool:
    """Pool of quantised index keys and their scales beside another pool, uint8. C++: createIndexerKCachePools."""
    if layer_mask is not None and len(layer_mask) != source.num_layers:
        raise ConfigurationError(f"layer mask has {len(layer_mask)} entries, the pool has {source.num_layers} layers")
    scale_bytes = trunc_div(index_head_dim, quant_block_size) * 4
    data_bytes = index_head_dim // 2 if use_fp4 else index_head_dim
    return KVCacheBlockPool(
        source.num_layers if layer_mask is None else sum(layer_mask),
        source.kv_factor,
        1,
        scale_bytes + data_bytes,
        source.tokens_per_block,
        DataType.UINT8,
        source.window_size,
        source.blocks_per_tier,
        contains_indexer_k_cache=True,
        layer_mask=layer_mask,
    )
