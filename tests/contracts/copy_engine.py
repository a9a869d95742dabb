"""What every copy engine must do: a mixin that the test of each engine runs."""

from __future__ import annotations

import random

import pytest
import torch

from trtkv.common import RECURRENT_STATES, DataType, KvCacheTransferMode
from trtkv.errors import InvalidInputError, UnknownIdError
from trtkv.pools.kv_cache_block_pool import (
    KVCacheBlockPool,
    KvLayout,
    create_block_scale_pool,
    create_data_pool,
    create_indexer_k_cache_pool,
    create_recurrent_state_pool,
)
from trtkv.pools.pool_tensors import PoolTensors
from trtkv.records.kv_cache_index import get_slot, is_primary, make_index
from trtkv.transfers.copy_engine import BlockCopy, CopyEngine

PRIMARY, SECONDARY, TOKENS, WINDOW = 6, 4, 4, 100


def make_pools(kind: str, layout: KvLayout = KvLayout.HND) -> list[KVCacheBlockPool]:
    """Allocated pools of one window: plain with two head counts, nvfp4 with scales, with index keys, or recurrent."""

    def data(dtype: DataType, heads: int, dim: int) -> KVCacheBlockPool:
        return create_data_pool(3, 2, heads, dim, TOKENS, dtype, WINDOW, (PRIMARY, SECONDARY))

    pools = {
        "plain": [data(DataType.HALF, 1, 24), data(DataType.HALF, 3, 24)],
        "odd bytes": [data(DataType.INT8, 3, 7)],
        "nvfp4": [data(DataType.NVFP4, 2, 32)],
        "index": [data(DataType.BF16, 2, 8)],
        "recurrent": [
            create_recurrent_state_pool(3, 40, TOKENS, DataType.FLOAT, RECURRENT_STATES, (PRIMARY, SECONDARY))
        ],
    }[kind]
    if kind == "nvfp4":
        pools.append(create_block_scale_pool(pools[0]))
    if kind == "index":
        pools.append(create_indexer_k_cache_pool(pools[0], 128, layer_mask=(True, False, True)))
    PoolTensors(pools, []).allocate_pools(kv_layout=layout)
    return pools


KINDS = ["plain", "odd bytes", "nvfp4", "index", "recurrent"]


def fill(pools: list[KVCacheBlockPool], seed: int) -> None:
    """Fake memory: other bytes at every place."""
    generator = torch.Generator().manual_seed(seed)
    for pool in pools:
        for tensor in (pool.primary, pool.secondary):
            assert tensor is not None
            raw = tensor.view(torch.uint8)
            raw.copy_(torch.randint(0, 256, raw.shape, generator=generator, dtype=torch.uint8))


def read(pool: KVCacheBlockPool, index: int) -> torch.Tensor:
    """Raw bytes of a block, [layers, kv, heads, tokens, bytes] for data pools, by plain indexing."""
    tensor = pool.primary if is_primary(index) else pool.secondary
    assert tensor is not None
    raw = tensor.view(torch.uint8)
    block = raw[:, get_slot(index)] if pool.layer_first_layout else raw[get_slot(index)]
    if not pool.is_data_pool or pool.num_kv_heads < 0:
        return block.clone()
    sizes = (pool.num_kv_heads, TOKENS) if pool.kv_layout is KvLayout.HND else (TOKENS, pool.num_kv_heads)
    view = block.reshape(*block.shape[:2], *sizes, -1)
    return view.clone() if pool.kv_layout is KvLayout.HND else view.transpose(2, 3).clone()


def make_copy(src: int, dst: int, num_tokens: int = 0, directory: str = "") -> BlockCopy:
    kind = "copy" if is_primary(src) and is_primary(dst) else "onboard" if is_primary(dst) else "offload"
    mode = KvCacheTransferMode.POSIX_DEBUG_FALLBACK if directory else KvCacheTransferMode.DRAM
    return BlockCopy(kind, WINDOW, src, dst, 0, 1, num_tokens, mode, directory)


class CopyEngineContract:
    """Runs against ``make_engine`` of the class it is mixed into."""

    directory = ""
    """Given with offloads, so that an engine that keeps files can be made to."""

    def make_engine(self) -> CopyEngine:
        raise NotImplementedError

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("layout", list(KvLayout))
    @pytest.mark.parametrize("num_tokens", [0, 1, 3, TOKENS])
    @pytest.mark.parametrize("way", ["copy", "onboard", "offload and onboard"])
    def test_every_pool_gets_the_tokens_asked_for_and_nothing_else(
        self, kind: str, layout: KvLayout, num_tokens: int, way: str
    ) -> None:
        engine, pools = self.make_engine(), make_pools(kind, layout)
        fill(pools, 1)
        src, dst, host = make_index(2), make_index(5), make_index(3, level=1)
        before = [read(pool, src) for pool in pools]
        if way == "offload and onboard":
            engine.copy_block(make_copy(src, host, directory=self.directory), pools)
            for pool in pools:  # the next owner of the slot
                assert pool.primary is not None
                pool.primary.view(torch.uint8).zero_()
            src = host
        elif way == "onboard":
            src = host
            before = [read(pool, src) for pool in pools]
        dst_before = [read(pool, dst) for pool in pools]
        others = [
            [read(pool, make_index(slot)) for slot in range(PRIMARY - 1)]
            + [read(pool, make_index(slot, True)) for slot in range(SECONDARY)]
            for pool in pools
        ]
        engine.copy_block(make_copy(src, dst, num_tokens), pools)
        engine.sync_transfers()
        for pool, wanted, old, other in zip(pools, before, dst_before, others, strict=True):
            now = read(pool, dst)
            if pool.is_data_pool and pool.num_kv_heads > 0 and num_tokens:
                assert torch.equal(now[:, :, :, :num_tokens], wanted[:, :, :, :num_tokens])
                assert torch.equal(now[:, :, :, num_tokens:], old[:, :, :, num_tokens:])
            else:
                assert torch.equal(now, wanted)
            rest = [read(pool, make_index(slot)) for slot in range(PRIMARY - 1)]
            rest += [read(pool, make_index(slot, True)) for slot in range(SECONDARY)]
            assert all(torch.equal(a, b) for a, b in zip(rest, other, strict=True))

    @pytest.mark.parametrize("kind", KINDS)
    def test_random_transfers_act_as_if_done_one_after_another(self, kind: str) -> None:
        engine, pools = self.make_engine(), make_pools(kind)
        fill(pools, 2)
        indices = [make_index(slot) for slot in range(PRIMARY)] + [make_index(slot, True) for slot in range(SECONDARY)]
        model = [{index: read(pool, index) for index in indices} for pool in pools]
        rng = random.Random(3)
        for _ in range(150):
            src = rng.choice(indices)
            dst = rng.choice([i for i in indices if i != src and (is_primary(i) or is_primary(src))])
            num_tokens = 0 if not is_primary(dst) else rng.choice([0, 1, 2, TOKENS])
            engine.copy_block(make_copy(src, dst, num_tokens, self.directory if not is_primary(dst) else ""), pools)
            for pool, blocks in zip(pools, model, strict=True):
                if pool.is_data_pool and pool.num_kv_heads > 0 and num_tokens:
                    blocks[dst] = blocks[dst].clone()
                    blocks[dst][:, :, :, :num_tokens] = blocks[src][:, :, :, :num_tokens]
                else:
                    blocks[dst] = blocks[src]
        engine.sync_transfers()
        if self.directory:  # what went to files is brought into a primary slot to be looked at
            for slot in range(SECONDARY):
                engine.copy_block(make_copy(make_index(slot, True), make_index(0)), pools)
                for pool, blocks in zip(pools, model, strict=True):
                    assert torch.equal(read(pool, make_index(0)), blocks[make_index(slot, True)])
            indices = indices[1:PRIMARY]
        for pool, blocks in zip(pools, model, strict=True):
            for index in indices:
                assert torch.equal(read(pool, index), blocks[index])

    @pytest.mark.parametrize("kind", KINDS)
    def test_bytes_of_a_whole_block_are_reported(self, kind: str) -> None:
        engine, pools = self.make_engine(), make_pools(kind)
        whole = sum(pool.block_bytes for pool in pools)
        assert engine.copy_block(make_copy(make_index(0), make_index(1)), pools) == whole
        assert engine.copy_block(make_copy(make_index(0), make_index(1, True), 0, self.directory), pools) == whole
        assert engine.copy_block(make_copy(make_index(1, True), make_index(2)), pools) == whole
        if kind == "plain":
            assert engine.copy_block(make_copy(make_index(1), make_index(2), 1), pools) == whole // TOKENS
            assert engine.copy_block(make_copy(make_index(1, True), make_index(2), 3), pools) == 3 * whole // TOKENS

    def test_a_refused_copy_changes_nothing(self) -> None:
        engine, pools = self.make_engine(), make_pools("index")
        fill(pools, 4)
        before = [pool.primary.clone() for pool in pools if pool.primary is not None]
        for bad in (
            make_copy(make_index(PRIMARY), make_index(0)),
            make_copy(make_index(0), make_index(PRIMARY)),
            make_copy(make_index(0), make_index(SECONDARY, True), 0, self.directory),
            make_copy(make_index(SECONDARY, True), make_index(0)),
        ):
            with pytest.raises(UnknownIdError):
                engine.copy_block(bad, pools)
        for num_tokens in (-1, TOKENS + 1):
            with pytest.raises(InvalidInputError, match="tokens to copy"):
                engine.copy_block(make_copy(make_index(0), make_index(1), num_tokens), pools)
        engine.sync_transfers()
        after = [pool.primary for pool in pools if pool.primary is not None]
        assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(after, before, strict=True))

    def test_pools_without_memory_are_refused(self) -> None:
        pools = make_pools("plain")
        PoolTensors(pools, []).release_pools()
        with pytest.raises(InvalidInputError, match="allocate_pools"):
            self.make_engine().copy_block(make_copy(make_index(0), make_index(1)), pools)
        with pytest.raises(InvalidInputError, match="no pools"):
            self.make_engine().copy_block(make_copy(make_index(0), make_index(1)), [])
