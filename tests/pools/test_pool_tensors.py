"""Pools as tensors: shapes, element types, views and pointers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="pools are torch tensors")

from trtkv.common import RECURRENT_STATES, DataType  # noqa: E402
from trtkv.errors import ConfigurationError, InvalidInputError, UnknownIdError  # noqa: E402
from trtkv.pools.kv_cache_block_pool import (  # noqa: E402
    KVCacheBlockPool,
    KvLayout,
    create_block_scale_pool,
    create_data_pool,
    create_indexer_k_cache_pool,
    create_recurrent_state_pool,
)
from trtkv.pools.pool_tensors import PoolTensors, to_torch_dtype, view_block  # noqa: E402
from trtkv.records.kv_cache_index import make_index  # noqa: E402

HEADS, DIM, TOKENS, BLOCKS, SECONDARY = 3, 32, 4, 7, 5


def data_pool(
    dtype: DataType = DataType.HALF, layers: int = 2, heads: int = HEADS, window: int = 100
) -> KVCacheBlockPool:
    return create_data_pool(layers, 2, heads, DIM, TOKENS, dtype, window, (BLOCKS, SECONDARY))


@pytest.mark.parametrize(
    ("dtype", "torch_dtype"),
    [
        (DataType.FLOAT, torch.float32),
        (DataType.HALF, torch.float16),
        (DataType.BF16, torch.bfloat16),
        (DataType.FP8, torch.float8_e4m3fn),
        (DataType.INT8, torch.int8),
    ],
)
def test_pool_has_the_promised_shape_type_and_bytes(dtype: DataType, torch_dtype: torch.dtype) -> None:
    pool = data_pool(dtype)
    tensors = PoolTensors([pool], [(0, 0), (0, 1)])
    tensors.allocate_pools()
    assert pool.primary is not None
    assert pool.secondary is not None
    assert pool.primary.dtype == pool.secondary.dtype == torch_dtype
    assert pool.primary.shape == (BLOCKS, 2, 2, HEADS * DIM * TOKENS) == pool.primary_shape
    assert pool.secondary.shape == (SECONDARY, 2, 2, HEADS * DIM * TOKENS)
    assert pool.primary.numel() * pool.primary.element_size() == pool.primary_bytes == BLOCKS * pool.block_bytes
    assert pool.secondary.numel() * pool.secondary.element_size() == pool.secondary_bytes
    assert tensors.get_unique_primary_pool() is pool.primary


def test_buffers_are_views_with_the_layout_asked_for() -> None:
    pool = data_pool(DataType.FLOAT)
    tensors = PoolTensors([pool], [(0, 1), (0, 0)])
    tensors.allocate_pools(kv_layout="HND")
    hnd = tensors.get_buffers(0)
    assert hnd.shape == (BLOCKS, 2, HEADS, TOKENS, DIM)
    nhd = tensors.get_buffers(0, "NHD")
    assert nhd.shape == (BLOCKS, 2, TOKENS, HEADS, DIM)
    nhd[3, 1, 2, 1, 5] = 9.0
    assert hnd[3, 1, 1, 2, 5] == 9.0
    assert pool.primary is not None
    assert pool.primary[3, 1, 1, (1 * TOKENS + 2) * DIM + 5] == 9.0
    assert not tensors.get_buffers(1).any()
    assert tensors.get_primary_pool_data(0)[3, 1, (1 * TOKENS + 2) * DIM + 5] == 9.0


def test_nhd_memory_keeps_tokens_outside() -> None:
    pool = data_pool(DataType.FLOAT)
    tensors = PoolTensors([pool], [(0, 0), (0, 1)])
    tensors.allocate_pools(kv_layout="NHD")
    assert tensors.get_buffers(0).is_contiguous(memory_format=torch.contiguous_format) is False  # a layer of a block
    assert tensors.get_buffers(0).shape == (BLOCKS, 2, TOKENS, HEADS, DIM)
    tensors.get_buffers(0)[1, 0, 2, 1, 5] = 4.0
    assert pool.primary is not None
    assert pool.primary[1, 0, 0, (2 * HEADS + 1) * DIM + 5] == 4.0
    assert tensors.get_buffers(0, KvLayout.HND)[1, 0, 1, 2, 5] == 4.0


def test_several_pools_map_layers_and_have_no_unique_one() -> None:
    pools = [data_pool(heads=2, layers=1), data_pool(heads=4, layers=2)]
    tensors = PoolTensors(pools, [(1, 0), (0, 0), (1, 1)])
    tensors.allocate_pools()
    assert tensors.get_buffers(0, "NHD").shape[3] == 4
    assert tensors.get_buffers(1, "NHD").shape[3] == 2
    assert tensors.layer_to_pool_mapping.tolist() == [[1, 0], [0, 0], [1, 1]]
    assert tensors.block_pool_pointers.tolist() == [
        [pool.primary.data_ptr(), pool.secondary.data_ptr()]  # type: ignore[union-attr]
        for pool in pools
    ]
    with pytest.raises(InvalidInputError, match="2 pools"):
        tensors.get_unique_primary_pool()
    with pytest.raises(UnknownIdError):
        tensors.get_buffers(3)


def test_nvfp4_keeps_two_values_in_a_byte_and_a_scale_for_sixteen() -> None:
    pools = [data_pool(DataType.NVFP4, heads=2), data_pool(DataType.NVFP4, heads=4)]
    pools += [create_block_scale_pool(pool) for pool in pools]
    tensors = PoolTensors(pools, [(0, 0), (1, 0), (1, 1), (0, 1)])
    tensors.allocate_pools()
    values, scales = tensors.get_buffers(1, "NHD"), tensors.get_block_scale_buffers(1, "NHD")
    assert values.dtype == torch.int8
    assert values.shape == (BLOCKS, 2, TOKENS, 4, DIM // 2)
    assert scales.dtype == torch.float8_e4m3fn
    assert scales.shape == (BLOCKS, 2, TOKENS, 4, DIM // 16)
    assert tensors.get_block_scale_buffers(0).shape[2] == 2
    assert tensors.block_pool_pointers.shape == tensors.block_scale_pool_pointers.shape == (2, 2)
    assert tensors.block_scale_pool_pointers[1, 0] == pools[3].primary.data_ptr()  # type: ignore[union-attr]
    assert sum(pool.primary_bytes for pool in pools) == BLOCKS * 2 * 2 * TOKENS * 6 * (DIM // 2 + DIM // 16)
    with pytest.raises(ConfigurationError, match="multiple of 16"):
        create_block_scale_pool(create_data_pool(1, 2, 1, 24, 4, DataType.NVFP4, 1, (1, 0)))
    with pytest.raises(ConfigurationError, match="even"):
        create_data_pool(1, 2, 1, 7, 4, DataType.NVFP4, 1, (1, 0))


def test_merged_pointers_say_which_scales_belong_to_which_pool() -> None:
    plain, packed = data_pool(), data_pool(DataType.NVFP4, window=32)
    scales = create_block_scale_pool(packed)
    tensors = PoolTensors([plain, packed, scales], [(0, 0), (1, 0)])
    tensors.allocate_pools()
    addresses = [
        [pool.primary.data_ptr(), pool.tensors[1].data_ptr()]  # type: ignore[union-attr]
        for pool in (plain, packed, scales)
    ]
    (plain_row, packed_row) = tensors.merged_pool_pointers.tolist()
    assert plain_row == [[addresses[0][0], 0], [addresses[0][1], 0]]
    assert packed_row == [[addresses[1][0], addresses[2][0]], [addresses[1][1], addresses[2][1]]]
    assert tensors.merged_pool_pointers[..., 0].equal(tensors.block_pool_pointers)


def test_index_keys_have_rows_for_masked_layers_only() -> None:
    source = data_pool(layers=4)
    pools = [source, create_indexer_k_cache_pool(source, 128, layer_mask=(True, False, False, True))]
    tensors = PoolTensors(pools, [(0, layer) for layer in range(4)])
    tensors.allocate_pools()
    rows = [tensors.get_indexer_k_cache_pool_data(layer) for layer in range(4)]
    assert rows[1] is None
    assert rows[2] is None
    assert rows[0].shape == rows[3].shape == (BLOCKS, 2 * TOKENS * (128 + 4))
    assert rows[3].dtype == torch.uint8
    rows[3].fill_(7)
    assert not rows[0].any()
    assert tensors.layer_to_pool_mapping.tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]
    assert len(tensors.block_pool_pointers) == 2
    assert create_indexer_k_cache_pool(source, 128, use_fp4=True).block_size == TOKENS * (64 + 4)
    with pytest.raises(ConfigurationError, match="layer mask"):
        create_indexer_k_cache_pool(source, 128, layer_mask=(True,))
    with pytest.raises(InvalidInputError, match="no pool"):
        tensors.get_block_scale_buffers(0)


def test_recurrent_states_put_layers_first_and_have_no_heads() -> None:
    pool = create_recurrent_state_pool(3, 64, TOKENS, DataType.HALF, RECURRENT_STATES, (BLOCKS, 0))
    tensors = PoolTensors([pool], [(0, 0), (0, 1), (0, 2)])
    tensors.allocate_pools()
    assert pool.primary is not None
    assert pool.primary.shape == (3, BLOCKS, 1, 32)
    assert pool.secondary is None
    assert tensors.get_primary_pool_data(1).shape == (BLOCKS, 1, 32)
    assert tensors.block_pool_pointers.tolist() == [[pool.primary.data_ptr(), 0]]
    with pytest.raises(InvalidInputError, match="no heads"):
        tensors.get_buffers(1)


def test_memory_exists_between_allocate_and_release_only() -> None:
    pool = data_pool()
    tensors = PoolTensors([pool], [(0, 0), (0, 1)])
    with pytest.raises(InvalidInputError, match="allocate_pools"):
        tensors.get_buffers(0)
    tensors.allocate_pools()
    with pytest.raises(InvalidInputError, match="allocated already"):
        tensors.allocate_pools()
    tensors.release_pools()
    assert pool.primary is None
    assert pool.secondary is None
    tensors.allocate_pools()
    assert tensors.is_allocated


def test_pools_stay_empty_when_memory_runs_out() -> None:
    small, huge = data_pool(), data_pool()
    huge.blocks_per_tier = (2**50, 0)
    with pytest.raises(RuntimeError):
        PoolTensors([small, huge], []).allocate_pools()
    assert small.primary is None


def test_block_views_show_leading_tokens_of_every_head() -> None:
    for layout in KvLayout:
        pool = data_pool(DataType.FLOAT)
        tensors = PoolTensors([pool], [(0, 0), (0, 1)])
        tensors.allocate_pools(kv_layout=layout)
        view_block(pool, make_index(2), 3).fill_(1.0)
        view_block(pool, make_index(4, level=1)).fill_(2.0)
        nhd = tensors.get_buffers(1, "NHD")
        assert (nhd[2, :, :3] == 1).all()
        assert not nhd[2, :, 3:].any()
        assert nhd.sum() == 2 * 3 * HEADS * DIM
        assert pool.secondary is not None
        assert (pool.secondary[4] == 2).all()
        assert not pool.secondary[:4].any()
    with pytest.raises(UnknownIdError):
        view_block(pool, make_index(BLOCKS))
    with pytest.raises(UnknownIdError):
        view_block(pool, make_index(SECONDARY, level=1))


def test_four_bit_elements_have_no_torch_type() -> None:
    with pytest.raises(InvalidInputError, match="int8"):
        to_torch_dtype(DataType.NVFP4)
