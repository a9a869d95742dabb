"""PoolTensors: the memory of a manager's pools as torch tensors, and views of it for attention kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtkv.common import PRIMARY_LEVEL, SECONDARY_LEVEL, DataType
from trtkv.errors import InvalidInputError, MissingExtraError, UnknownIdError
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool, KvLayout
from trtkv.records.kv_cache_index import KVCacheIndex, get_level, get_slot

if TYPE_CHECKING:
    import torch

_TORCH_DTYPES = {
    DataType.FLOAT: "float32",
    DataType.HALF: "float16",
    DataType.BF16: "bfloat16",
    DataType.FP8: "float8_e4m3fn",
    DataType.INT8: "int8",
    DataType.UINT8: "uint8",
    DataType.INT32: "int32",
    DataType.INT64: "int64",
}


def to_torch_dtype(dtype: DataType) -> torch.dtype:
    """The torch type of a pool's elements."""
    import torch

    if dtype not in _TORCH_DTYPES:
        raise InvalidInputError(f"no tensor holds single {dtype.value} elements; NVFP4 pools are stored as int8")
    result: torch.dtype = getattr(torch, _TORCH_DTYPES[dtype])
    return result


class PoolTensors:
    """Allocates, releases and shows the tensors of pools.

    ``pools``: all pools of a manager in its order. ``layer_to_pool``: per layer its data pool and its row there.
    """

    def __init__(self, pools: Sequence[KVCacheBlockPool], layer_to_pool: Sequence[tuple[int, int]]) -> None:
        self._pools = list(pools)
        self._layer_to_pool = list(layer_to_pool)

    # -- memory ---------------------------------------------------------------------------------

    def allocate_pools(self, device: torch.device | str = "cpu", kv_layout: KvLayout | str = KvLayout.HND) -> None:
        """Make the tensors, zeroed: primary on ``device``, other tiers on the host, pinned when the device is CUDA.

        Sets ``tensors`` and ``kv_layout`` of each pool; a tier without blocks has no tensor. When memory runs out
        nothing is kept. C++: allocatePools.
        """
        _require_torch()
        import torch

        if self.is_allocated:
            raise InvalidInputError("the pools are allocated already; call release_pools() first")
        place = torch.device(device)
        layout = KvLayout(kv_layout)
        made = []
        for pool in self._pools:
            dtype = to_torch_dtype(pool.dtype)
            tensors: list[torch.Tensor | None] = [torch.zeros(pool.primary_shape, dtype=dtype, device=place)]
            for level, num_blocks in enumerate(pool.blocks_per_tier[1:], 1):
                shape = pool.shape_of_tier(level)
                on_host = place.type == "cuda"
                tensors.append(torch.zeros(shape, dtype=dtype, pin_memory=on_host) if num_blocks else None)
            made.append((pool, tensors))
        for pool, tensors in made:
            pool.tensors, pool.kv_layout = tensors, layout

    def release_pools(self) -> None:
        """Drop the tensors; copies still running must have been waited for. C++: releasePools."""
        for pool in self._pools:
            pool.release()

    @property
    def is_allocated(self) -> bool:
        """Whether the tensors exist."""
        return any(pool.primary is not None for pool in self._pools)

    @property
    def primary_bytes(self) -> int:
        """Bytes of all primary tensors, allocated or not."""
        return sum(pool.primary_bytes for pool in self._pools)

    @property
    def pools(self) -> Sequence[KVCacheBlockPool]:
        """All pools in order."""
        return self._pools

    # -- views ----------------------------------------------------------------------------------

    def get_buffers(self, layer_idx: int, kv_layout: KvLayout | str | None = None) -> torch.Tensor:
        """Primary blocks of a layer, a view [blocks, kv, tokens, heads, dim], or HND: [.., heads, tokens, dim].

        Without ``kv_layout`` it is the layout the pools were allocated with. Asking for the other one gives a view with
        swapped strides. NVFP4 layers show two values per int8 element.
        """
        pool_idx, row = self._find_layer(layer_idx)
        return view_layer(self._pools[pool_idx], row, kv_layout)

    def get_block_scale_buffers(self, layer_idx: int, kv_layout: KvLayout | str | None = None) -> torch.Tensor:
        """NVFP4 scales of a layer, shaped as ``get_buffers`` with a last dimension of head size / 16."""
        pool_idx, row = self._find_layer(layer_idx)
        return view_layer(self._find_companion(pool_idx, "contains_block_scales"), row, kv_layout)

    def get_indexer_k_cache_pool_data(self, layer_idx: int) -> torch.Tensor | None:
        """Index keys of a layer, uint8 [blocks, bytes of a block]; None for a layer that the mask leaves out."""
        pool_idx, pool_layer_idx = self._find_layer(layer_idx)
        pool = self._find_companion(pool_idx, "contains_indexer_k_cache")
        row = pool.row_of_layer(pool_layer_idx)
        return None if row is None else get_primary(pool)[:, row].flatten(1)

    def get_primary_pool_data(self, layer_idx: int) -> torch.Tensor:
        """Primary blocks of a layer as they lie in memory: [blocks, kv, elements of a block]."""
        pool_idx, row = self._find_layer(layer_idx)
        return select_layer(self._pools[pool_idx], row)

    def get_unique_primary_pool(self) -> torch.Tensor:
        """The primary tensor of the only data pool; an error when layers are spread over several."""
        data_pools = [pool for pool in self._pools if pool.is_data_pool]
        if len(data_pools) != 1:
            raise InvalidInputError(f"the layers use {len(data_pools)} pools; ask for each layer's buffers instead")
        return get_primary(data_pools[0])

    def _get_only(self, pools: list[KVCacheBlockPool], what: str) -> torch.Tensor:
        if len(pools) != 1:
            raise InvalidInputError(f"there are {len(pools)} pools of {what}; this call needs exactly one")
        return get_primary(pools[0])

    def get_indexer_k_cache_pool(self) -> torch.Tensor:
        """The primary tensor of the only pool of index keys. C++: getIndexerKCachePool."""
        return self._get_only([pool for pool in self._pools if pool.contains_indexer_k_cache], "index keys")

    def get_recurrent_states_pool(self) -> torch.Tensor:
        """The primary tensor of the only pool of recurrent states. C++: getRecurrentStatesPool."""
        return self._get_only([pool for pool in self._pools if pool.num_kv_heads < 0], "recurrent states")

    @property
    def block_pool_pointers(self) -> torch.Tensor:
        """int64 [pools without scales, 2]: addresses of primary and secondary (0: none). C++: getBlockPoolPointers."""
        return _pointers([pool for pool in self._pools if not pool.contains_block_scales])

    @property
    def block_scale_pool_pointers(self) -> torch.Tensor:
        """int64 [scale pools, 2]: addresses of primary and secondary. C++: getBlockScalePoolPointers."""
        return _pointers([pool for pool in self._pools if pool.contains_block_scales])

    @property
    def merged_pool_pointers(self) -> torch.Tensor:
        """int64 [pools without scales, 2, 2]: addresses of primary and secondary, of each the data and its scales.

        Row by row ``block_pool_pointers`` with the scale pool that belongs to each; 0 where there is none.
        """
        import torch

        pools = [pool for pool in self._pools if not pool.contains_block_scales]
        scales = [self._find_scales(pool) for pool in pools]
        rows = torch.zeros((len(pools), 2), dtype=torch.int64)
        for row, pool in enumerate(scales):
            if pool is not None:
                rows[row] = _pointers([pool])[0]
        return torch.stack((_pointers(pools), rows), dim=-1)

    def _find_scales(self, pool: KVCacheBlockPool) -> KVCacheBlockPool | None:
        has_scales = any(other.contains_block_scales and other.window_size == pool.window_size for other in self._pools)
        if not has_scales or not pool.is_data_pool:
            return None
        return self._find_companion(self._pools.index(pool), "contains_block_scales")

    @property
    def layer_to_pool_mapping(self) -> torch.Tensor:
        """int32 [layers, 2]: pool of each layer, counted without scale pools, and its row there."""
        import torch

        numbers: dict[int, int] = {}
        for pool_idx, pool in enumerate(self._pools):
            if not pool.contains_block_scales:
                numbers[pool_idx] = len(numbers)
        rows = [(numbers[pool_idx], row) for pool_idx, row in self._layer_to_pool]
        return torch.tensor(rows, dtype=torch.int32).view(-1, 2)

    # -- details --------------------------------------------------------------------------------

    def _find_layer(self, layer_idx: int) -> tuple[int, int]:
        if not 0 <= layer_idx < len(self._layer_to_pool):
            raise UnknownIdError(f"layer {layer_idx} is not in 0..{len(self._layer_to_pool) - 1}")
        return self._layer_to_pool[layer_idx]

    def _find_companion(self, pool_idx: int, mark: str) -> KVCacheBlockPool:
        """The marked pool that belongs to a data pool: of the same window, and at the same place in their order."""
        window = self._pools[pool_idx].window_size
        of_window = [pool for pool in self._pools if pool.window_size == window]
        data_pools = [pool for pool in of_window if pool.is_data_pool]
        companions = [pool for pool in of_window if getattr(pool, mark)]
        if not companions:
            raise InvalidInputError(f"window {window} has no pool that {mark.replace('_', ' ')}")
        return companions[[pool is self._pools[pool_idx] for pool in data_pools].index(True)]


def get_primary(pool: KVCacheBlockPool) -> torch.Tensor:
    """The primary tensor, or an error that says how to get one."""
    primary = pool.primary
    if primary is None:
        raise InvalidInputError(f"the pool of window {pool.window_size} has no memory; call allocate_pools() first")
    return primary


def get_tensor(pool: KVCacheBlockPool, level: int) -> torch.Tensor:
    """The tensor of a tier, or an error that says how to get one."""
    if level == PRIMARY_LEVEL:
        return get_primary(pool)
    tensor = pool.tensors[level] if level < len(pool.tensors) else None
    if tensor is None:
        name, counts = ("secondary" if level == SECONDARY_LEVEL else f"tier {level}"), pool.blocks_per_tier
        raise InvalidInputError(
            f"the pool of window {pool.window_size} has no {name} memory; it has "
            f"{counts[level] if level < len(counts) else 0} {name} blocks, and allocate_pools() must have been called"
        )
    return tensor


def select_layer(pool: KVCacheBlockPool, row: int) -> torch.Tensor:
    """Primary blocks of one layer, a view [blocks, kv, elements]."""
    return get_primary(pool)[row] if pool.layer_first_layout else get_primary(pool)[:, row]


def view_layer(pool: KVCacheBlockPool, row: int, kv_layout: KvLayout | str | None = None) -> torch.Tensor:
    """Primary blocks of one layer with heads and tokens apart; see PoolTensors.get_buffers."""
    if pool.num_kv_heads < 0:
        raise InvalidInputError(f"window {pool.window_size} keeps recurrent states, which have no heads")
    blocks = select_layer(pool, row)
    view = blocks.view(*blocks.shape[:2], *_inner_sizes(pool))
    wanted = pool.kv_layout if kv_layout is None else KvLayout(kv_layout)
    return view if wanted is pool.kv_layout else view.transpose(-3, -2)


def view_block(pool: KVCacheBlockPool, index: KVCacheIndex, num_tokens: int = 0) -> torch.Tensor:
    """All layers of one block, a view: the whole of it, or of a data pool its first ``num_tokens`` tokens.

    Pools that keep something else than one vector per head and token (scales in an order of their own, index keys
    followed by their scales, recurrent states) are always shown whole. ``num_tokens`` 0 means the whole block.
    """
    level, slot = get_level(index), get_slot(index)
    tensor, num_blocks = get_tensor(pool, level), pool.blocks_per_tier[level]
    if slot >= num_blocks:
        raise UnknownIdError(f"slot {slot} is not in 0..{num_blocks - 1} of window {pool.window_size}")
    block = tensor[:, slot] if pool.layer_first_layout else tensor[slot]
    return view_tokens(pool, block, num_tokens)


def view_tokens(pool: KVCacheBlockPool, block: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """First tokens of a block given as [layers, kv, elements]; the block itself where ``is_partial`` is false."""
    if not is_partial(pool, num_tokens):
        return block
    block = block.view(*block.shape[:2], *_inner_sizes(pool))
    return block[..., :num_tokens, :] if pool.kv_layout is KvLayout.HND else block[..., :num_tokens, :, :]


def is_partial(pool: KVCacheBlockPool, num_tokens: int) -> bool:
    """Whether a copy of this many tokens (0: all) leaves part of this pool's block out."""
    return 0 < num_tokens < pool.tokens_per_block and pool.is_data_pool and pool.num_kv_heads > 0


def _inner_sizes(pool: KVCacheBlockPool) -> tuple[int, int, int]:
    if pool.kv_layout is KvLayout.HND:
        return (pool.num_kv_heads, pool.tokens_per_block, pool.size_per_head)
    return (pool.tokens_per_block, pool.num_kv_heads, pool.size_per_head)


def _pointers(pools: Sequence[KVCacheBlockPool]) -> torch.Tensor:
    import torch

    rows = [
        (get_primary(pool).data_ptr(), 0 if pool.secondary is None else pool.secondary.data_ptr()) for pool in pools
    ]
    return torch.tensor(rows, dtype=torch.int64).view(-1, 2)


def _require_torch() -> None:
    try:
        import torch  # noqa: F401 - only whether it can be
    except ImportError as error:
        raise MissingExtraError('pool memory needs PyTorch: pip install "trtkv[torch]"') from error
