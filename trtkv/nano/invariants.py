"""The rules a BlockManager obeys between calls, checked in full; for tests and for finding faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from trtkv.errors import check
from trtkv.nano.block import NO_HASH
from trtkv.nano.block_manager import BlockManager
from trtkv.nano.hashing import TOKEN_BYTES
from trtkv.nano.managed_sequence import ManagedSequence


def find_violations(manager: BlockManager, sequences: Iterable[ManagedSequence]) -> list[str]:
    """Every broken rule as a sentence, given all sequences that hold blocks. Walks the pool; changes nothing."""
    held = Counter(block_id for seq in sequences for block_id in seq.block_table)
    found = []
    for block in manager.blocks:
        name = f"block {block.block_id}"
        if block.ref_count != held[block.block_id]:
            found.append(f"{name} counts {block.ref_count} holders, {held[block.block_id]} sequences list it")
        if (block.ref_count == 0) != (block.block_id in manager.free_block_ids):
            found.append(f"{name} with {block.ref_count} holders is on the wrong side of the free queue")
        if (block.hash == NO_HASH) != (not block.content):
            found.append(f"{name} has a hash without content or content without a hash")
        if block.content and len(block.content) != manager.block_size * TOKEN_BYTES:
            found.append(f"{name} keeps {len(block.content)} bytes, not one full block")
    found.extend(f"block {i} is free or held but not in the pool" for i in _strangers(manager, held))
    for block_hash, block_id in manager.hash_to_block_id.items():
        if manager.blocks[block_id].hash != block_hash:
            found.append(f"hash {block_hash} leads to block {block_id}, which holds {manager.blocks[block_id].hash}")
    return found


def check_invariants(manager: BlockManager, sequences: Iterable[ManagedSequence]) -> None:
    """Raise LogicError naming every violation."""
    found = find_violations(manager, sequences)
    check(not found, "; ".join(found))


def _strangers(manager: BlockManager, held: Counter[int]) -> list[int]:
    known = range(len(manager.blocks))
    return [block_id for block_id in [*manager.free_block_ids, *held] if block_id not in known]
