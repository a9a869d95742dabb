"""Who holds which block of the pool, and which full block of tokens is found where."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from trtkv.checks import check_count, check_integer
from trtkv.errors import ConfigurationError, InvalidInputError, OutOfBlocksError, check
from trtkv.nano.block import NO_HASH, Block
from trtkv.nano.block_chain import BlockChain
from trtkv.nano.hashing import hash_block, pack_tokens, token_bytes
from trtkv.nano.managed_sequence import ManagedSequence, read_tokens


class BlockManager:
    """Block accounting with prefix reuse by chained hashes, as nano-vllm does it.

    A full block is known by the xxHash64 of its parent's hash and its tokens; a hit counts only if the tokens are
    equal too. The last block of a sequence is never matched, so at least one token is always computed. Released blocks
    join the end of a first-in first-out queue, deepest block first, and stay matchable until they are handed out again.

    Sequences may be of any class with what ManagedSequence lists, nano-vllm's own included. Their hashes are kept here,
    each computed once: preemption does not lose them, the end of the sequence does.

    Nothing here depends on the number of blocks in the pool but the constructor and ``used_block_ids``.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        check_count("num_blocks", num_blocks, 1, error=ConfigurationError)
        check_count("block_size", block_size, 1, error=ConfigurationError)
        self.block_size = block_size
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self.hash_to_block_id: dict[int, int] = {}
        """Chained hash -> the block registered last under it."""
        # An ordered dict is a queue from whose middle a block can be taken at once when it is matched.
        self.free_block_ids: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        """Blocks that are not held, next one to be handed out first."""
        # Sequences that are dropped without having ended take their hashes with them.
        self._chains: WeakKeyDictionary[ManagedSequence, BlockChain] = WeakKeyDictionary()

    @classmethod
    def compute_hash(cls, token_ids: Iterable[int], prefix: int = NO_HASH) -> int:
        """Hash of a block whose parent has hash ``prefix`` (-1: no parent). Unsigned, 64 bits."""
        check_integer("prefix (-1, or an unsigned 64-bit hash)", prefix, NO_HASH, 2**64 - 1)
        parent = b"" if prefix == NO_HASH else prefix.to_bytes(8, "little")
        return hash_block(parent, token_bytes(pack_tokens(token_ids)))

    @property
    def num_free_blocks(self) -> int:
        """Blocks that are not held."""
        return len(self.free_block_ids)

    @property
    def used_block_ids(self) -> set[int]:
        """Blocks held by a sequence, as a new set; walks the pool."""
        return {block.block_id for block in self.blocks if block.ref_count}

    def can_allocate(self, seq: ManagedSequence) -> int:
        """Number of leading blocks that are cached, or -1 if the sequence does not fit now. Changes nothing.

        A cached block that no sequence holds still takes a place among the free blocks; one in use takes none.
        """
        num_blocks = seq.num_blocks
        num_new_blocks = num_blocks
        chain = self._extend_chain(seq, num_blocks - 1)
        num_cached_blocks = 0
        contents = chain.contents
        find, blocks = self.hash_to_block_id.get, self.blocks
        for i, block_hash in enumerate(chain.hashes[: num_blocks - 1]):
            block_id = find(block_hash)
            if block_id is None:
                break
            block = blocks[block_id]
            if block.content != contents[i]:
                break
            num_cached_blocks += 1
            if block.ref_count:
                num_new_blocks -= 1
        return num_cached_blocks if num_new_blocks <= len(self.free_block_ids) else -1

    def allocate(self, seq: ManagedSequence, num_cached_blocks: int) -> None:
        """Fill the block table: ``num_cached_blocks`` matched ones as counted by can_allocate, then new ones.

        Raises InvalidInputError if the sequence holds blocks already or fewer blocks match, OutOfBlocksError if it
        does not fit; nothing is changed then.
        """
        check_integer("num_cached_blocks", num_cached_blocks)
        hits = self._find_hits(seq, num_cached_blocks)
        num_new_blocks = seq.num_blocks - num_cached_blocks
        num_free_hits = sum(not block.ref_count for block in hits)
        self._check_free(seq, num_new_blocks + num_free_hits)
        free = self.free_block_ids
        for block in hits:
            if not block.ref_count:
                del free[block.block_id]
            block.ref_count += 1
        seq.block_table.extend(block.block_id for block in hits)
        seq.block_table.extend(self._allocate_block() for _ in range(num_new_blocks))
        seq.num_cached_tokens = num_cached_blocks * self.block_size

    def deallocate(self, seq: ManagedSequence) -> None:
        """Give back all blocks, deepest first; content stays matchable. A sequence without blocks is left alone."""
        blocks, free = self.blocks, self.free_block_ids
        self._check_held(seq)
        for block_id in reversed(seq.block_table):
            block = blocks[block_id]
            block.ref_count -= 1
            if not block.ref_count:
                free[block_id] = None
        seq.num_cached_tokens = 0
        seq.block_table.clear()
        if seq.is_finished:
            self._chains.pop(seq, None)

    def can_append(self, seq: ManagedSequence) -> bool:
        """Whether there is a block for the newest token, if that token is the first of a block."""
        return bool(self.free_block_ids) or (seq.num_tokens - 1) % self.block_size != 0

    def may_append(self, seq: ManagedSequence) -> None:
        """Take a block if the newest token is the first of a block. Raises OutOfBlocksError, changing nothing."""
        if (seq.num_tokens - 1) % self.block_size == 0:
            self._check_free(seq, 1)
            seq.block_table.append(self._allocate_block())

    def hash_blocks(self, seq: ManagedSequence) -> None:
        """Register the blocks that the scheduled tokens complete, so that others can match them.

        To be called before the scheduled tokens are counted as cached. Where a hash is registered already, the newer
        block replaces the older one. Raises InvalidInputError if blocks are missing; nothing is changed then.
        """
        block_size = self.block_size
        start = seq.num_cached_tokens // block_size
        end = (seq.num_cached_tokens + seq.num_scheduled_tokens) // block_size
        if start == end:
            return
        self._check_hashable(seq, start, end)
        chain = self._extend_chain(seq, end)
        hashes, contents, table = chain.hashes, chain.contents, seq.block_table
        if start and self.blocks[table[start - 1]].hash != hashes[start - 1]:
            raise InvalidInputError(f"block {start - 1} of sequence {seq.seq_id} was not hashed before its successors")
        for i in range(start, end):
            self._register(self.blocks[table[i]], hashes[i], contents[i])

    def _register(self, block: Block, block_hash: int, content: bytes) -> None:
        if block.hash not in (NO_HASH, block_hash):
            self._forget(block)
        block.update(block_hash, content)
        self.hash_to_block_id[block_hash] = block.block_id

    def _forget(self, block: Block) -> None:
        """Drop the registration of a block unless a later block took the hash over."""
        if self.hash_to_block_id.get(block.hash) == block.block_id:
            del self.hash_to_block_id[block.hash]

    def _allocate_block(self) -> int:
        block_id, _ = self.free_block_ids.popitem(last=False)
        block = self.blocks[block_id]
        check(block.ref_count == 0, f"block {block_id} is free but held {block.ref_count} times")
        if block.hash != NO_HASH:
            self._forget(block)
        block.reset()
        return block_id

    def _find_hits(self, seq: ManagedSequence, num_cached_blocks: int) -> list[Block]:
        if seq.block_table:
            raise InvalidInputError(f"sequence {seq.seq_id} holds {len(seq.block_table)} blocks already")
        if not 0 <= num_cached_blocks < seq.num_blocks:
            raise InvalidInputError(
                f"sequence {seq.seq_id} of {seq.num_blocks} blocks can match 0..{seq.num_blocks - 1} of them, "
                f"not {num_cached_blocks}"
            )
        chain = self._extend_chain(seq, num_cached_blocks)
        hits = []
        for i in range(num_cached_blocks):
            block_id = self.hash_to_block_id.get(chain.hashes[i])
            if block_id is None or self.blocks[block_id].content != chain.contents[i]:
                raise InvalidInputError(
                    f"only {i} blocks of sequence {seq.seq_id} are cached, not {num_cached_blocks}: "
                    "call can_allocate again"
                )
            hits.append(self.blocks[block_id])
        return hits

    def _extend_chain(self, seq: ManagedSequence, num_blocks: int) -> BlockChain:
        """Hashes of a sequence, at least those of its first ``num_blocks`` blocks."""
        if seq.block_size != self.block_size:
            raise InvalidInputError(
                f"sequence {seq.seq_id} has blocks of {seq.block_size} tokens, the pool of {self.block_size}"
            )
        chain = self._chains.get(seq)
        if chain is None:
            chain = self._chains[seq] = BlockChain()
        num_known = len(chain.hashes)
        if num_blocks > num_known:
            chain.extend(read_tokens(seq, num_known * self.block_size, num_blocks * self.block_size), self.block_size)
        return chain

    def _check_free(self, seq: ManagedSequence, num_needed: int) -> None:
        if num_needed > len(self.free_block_ids):
            raise OutOfBlocksError(
                f"sequence {seq.seq_id} needs {num_needed} free blocks, {len(self.free_block_ids)} of "
                f"{len(self.blocks)} are free"
            )

    def _check_held(self, seq: ManagedSequence) -> None:
        blocks = self.blocks
        for block_id in seq.block_table:
            if not 0 <= block_id < len(blocks) or not blocks[block_id].ref_count:
                raise InvalidInputError(f"sequence {seq.seq_id} lists block {block_id}, which it cannot hold")

    def _check_hashable(self, seq: ManagedSequence, start: int, end: int) -> None:
        if end < start or end > seq.num_tokens // self.block_size or end > len(seq.block_table):
            raise InvalidInputError(
                f"sequence {seq.seq_id} of {seq.num_tokens} tokens in {len(seq.block_table)} blocks cannot complete "
                f"blocks {start}..{end - 1}"
            )
