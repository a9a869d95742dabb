"""The rules of docs/invariants.md, recomputed from scratch; for tests and for finding faults.

Every violation is a sentence that starts with the number of its rule. Nothing here is fast, and nothing changes a
manager: blocks that were never used are not even made.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial

from trtkv.blocks.generation_request import GenerationRequest, SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock, LookupNodePtr
from trtkv.blocks.templated_trie import ChildMap
from trtkv.common import (
    PLACEHOLDER_BLOCK_ID,
    PLACEHOLDER_LEVEL,
    BlockId,
    CacheType,
    KeyForm,
    RequestId,
    WindowSize,
    ceil_div,
)
from trtkv.errors import check
from trtkv.eviction.eviction_policy import get_cache_level
from trtkv.eviction.level_queues import LevelQueues
from trtkv.keys.key_builder import build_block_keys_of, build_encoder_keys
from trtkv.keys.key_hash import hash_block_key
from trtkv.keys.packed_key import PackedKey, describe_key, num_key_tokens
from trtkv.keys.recorded_keys import to_recorded_keys
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.kv_cache_index import NULL_INDEX
from trtkv.records.llm_request import LlmRequest
from trtkv.records.retention_config import DEFAULT_RETENTION_PRIORITY
from trtkv.window_block_manager import WindowBlockManager
from trtkv.window_block_manager.sequences import table_slot

Pins = Mapping[WindowSize, Mapping[BlockId, int]]
"""Window -> block id -> number of pins."""


def check_invariants(
    manager: KVCacheManager,
    requests: Mapping[RequestId, LlmRequest] | None = None,
    *,
    pins: Pins | None = None,
    rewound: Collection[RequestId] = (),
) -> None:
    """Raise LogicError naming every violation that ``find_violations`` finds."""
    found = find_violations(manager, requests, pins=pins, rewound=rewound)
    check(not found, f"{len(found)} invariants are broken:\n  " + "\n  ".join(found))


def find_violations(
    manager: KVCacheManager,
    requests: Mapping[RequestId, LlmRequest] | None = None,
    *,
    pins: Pins | None = None,
    rewound: Collection[RequestId] = (),
) -> list[str]:
    """Every broken rule of docs/invariants.md as a sentence with its number. Walks everything; changes nothing.

    ``requests``: tokens of live sequences by id; only those named here are compared with the tree (rule 23).
    ``pins``: what the caller knows to be pinned; without it the manager's own record counts.
    ``rewound``: sequences cut by more tokens than the manager was told to expect (rule 16).
    """
    tree = _Tree(manager)
    found = list(tree.find_violations())
    found += _find_foreign_records(manager)
    window_class = _RecordedWindow if manager.compatibility else _Window
    for window_size, window_manager in manager.block_manager.window_block_managers.items():
        window_pins = None if pins is None else pins.get(window_size, {})
        window = window_class(manager, window_manager, tree, window_pins)
        found += window.find_violations(requests or {}, rewound)
    return found


# -- the tree ---------------------------------------------------------------------------------------


class _Tree:
    """Nodes that can be reached from the root, each with the node it was reached from."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.root: LookupNodePtr = manager.block_manager.lookup_tree.root
        self.above: dict[int, LookupNodePtr] = {id(self.root): self.root}
        """Node above each node, by the id of its object; the root's own is itself."""
        self._hashes: dict[int, int] = {id(self.root): 0}
        self.nodes: list[LookupNodePtr] = [self.root]
        self._managers = {m.settings.channel: m for m in manager.block_manager.window_block_managers.values()}
        for node in self.nodes:  # grows while it is walked
            for child in _children_of(node):
                if id(child) not in self.above:
                    self.above[id(child)] = node
                    self.nodes.append(child)

    def contains(self, node: LookupNodePtr) -> bool:
        """Whether the node hangs in the present tree."""
        return id(node) in self.above

    def chain_hash(self, node: LookupNodePtr) -> int:
        """Hash that the keys from the root down to a reached node give; 0 for the root."""
        chain = []
        while id(node) not in self._hashes:
            chain.append(node)
            node = self.above[id(node)]
        value = self._hashes[id(node)]
        for below in reversed(chain):
            value = self._hashes[id(below)] = hash_block_key(below.key, value)
        return value

    def name(self, node: LookupNodePtr) -> str:
        """The node for a message."""
        if node is self.root:
            return "the root"
        keys = [node.key]
        while (node := self.above.get(id(node), self.root)) is not self.root:
            keys.append(node.key)
        return "node " + "/".join(f"[{describe_key(key)}]" for key in reversed(keys))

    def find_violations(self) -> Iterator[str]:
        """Rules 8, 9 and 10, seen from the nodes."""
        for node in self.nodes:
            yield from self._check_children(node)
            yield from self._check_values(node)
            if node is not self.root and not node.has_values and not node.has_children:
                yield f"10: {self.name(node)} has neither a value nor a child"

    def _check_children(self, node: LookupNodePtr) -> Iterator[str]:
        seen: set[PackedKey] = set()
        for child in _children_of(node):
            if child.parent is not node:
                yield f"9: {self.name(child)} does not know its parent, {self.name(node)}"
            if child.key in seen or node.find_matching_node(child.key) is not child:
                yield f"9: {self.name(node)} does not find its child {self.name(child)} by its key"
            seen.add(child.key)
        if isinstance(node, KVCacheBlock) and len(seen) > 1:
            yield f"9: block {node.block_id} serves as a node and has {len(seen)} children"
        yield from self._check_index(node)

    def _check_index(self, node: LookupNodePtr) -> Iterator[str]:
        children = node.children
        if not isinstance(children, ChildMap):
            return
        if not children:
            yield f"9: {self.name(node)} keeps an empty map of children"
        if any(key != child.key for key, child in children.items()):
            yield f"9: {self.name(node)} has a child under a key that is not the child's"
        if children.index is None:
            return
        expected: dict[object, list[int]] = {}
        for key, child in children.items():
            expected.setdefault(node.key_functions.family(key), []).append(id(child))
        indexed = {family: [id(child) for child in part] for family, part in children.index.children().items()}
        if expected != indexed:
            yield f"9: the index for partial matches of {self.name(node)} differs from its children"

    def _check_values(self, node: LookupNodePtr) -> Iterator[str]:
        if isinstance(node, KVCacheBlock) and node.lookup_node is not node:
            yield f"8: block {node.block_id} serves as a node and says it is elsewhere"
        for channel, block in node.values().items():
            manager = self._managers.get(channel)
            if manager is None:
                yield f"8: {self.name(node)} has a value for channel {channel}, which no window has"
                continue
            if block.lookup_node is not node:
                yield f"8: {self.name(node)} holds block {block.block_id}, which says it is elsewhere"
            is_root_block = block is manager.matcher.root_block
            if (node is self.root) != is_root_block:
                yield f"8: block {block.block_id} stands at {self.name(node)}"
            elif not is_root_block and _find_block(manager, block.block_id) is not block:
                yield f"8: {self.name(node)} holds a block {block.block_id} that is not of its window"


def _children_of(node: LookupNodePtr) -> list[LookupNodePtr]:
    return list(node.ordered_children())


def _find_block(manager: WindowBlockManager, block_id: BlockId) -> KVCacheBlock | None:
    """The block object of an id, if it was made already."""
    for level in manager.eviction_policy.levels():
        fresh = level.fresh
        if block_id in fresh.ids:
            index = fresh.ids.index(block_id)
            return fresh.blocks[index] if index < len(fresh.blocks) else None
    return None


def _find_foreign_records(manager: KVCacheManager) -> Iterator[str]:
    """Rule 13."""
    expected = set(manager.sequences)
    for window_size, window_manager in manager.block_manager.window_block_managers.items():
        records = window_manager.sequences.allocated_blocks_per_seq
        if set(records) != expected:
            difference = sorted(set(records) ^ expected)
            yield f"13: window {window_size} and the manager disagree about sequences {difference}"
        for request_id in expected & set(records):
            sequence = manager.sequences[request_id]
            if sequence.request_id != request_id or records[request_id] is not sequence.get_window(window_size):
                yield f"13: window {window_size} has another record of sequence {request_id} than the manager"


# -- one window -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Holders:
    """Who holds the blocks of a window."""

    entries: Counter[KVCacheBlock] = field(default_factory=Counter)
    """Entries in sequences, one per beam and position."""
    pins: Counter[KVCacheBlock] = field(default_factory=Counter)


class _Window:
    """The rules of one window."""

    _may_stay_in_old_tree = False
    _checks_states = True
    _checks_reach = True
    _names_encoder_input = True
    _puts_empty_first = True

    def __init__(
        self,
        manager: KVCacheManager,
        window_manager: WindowBlockManager,
        tree: _Tree,
        pins: Mapping[BlockId, int] | None,
    ) -> None:
        self._manager = manager
        self._window = window_manager
        self._settings = window_manager.settings
        self._policy = window_manager.eviction_policy
        self._tree = tree
        self._blocks = window_manager.block_objects()
        self._holders = _Holders()
        for record in window_manager.sequences.allocated_blocks_per_seq.values():
            self._holders.entries.update(block for block in record.held if block.block_id != PLACEHOLDER_BLOCK_ID)
        if pins is None:
            self._holders.pins.update(window_manager.sequences.pin_counts)
        else:
            self._holders.pins.update({window_manager.get_block_by_id(i): count for i, count in pins.items()})

    def find_violations(
        self, requests: Mapping[RequestId, LlmRequest], rewound: Collection[RequestId]
    ) -> Iterator[str]:
        """All rules of this window, each violation with the window's size."""
        prefix = f"window {self._settings.window_size}, "
        for text in self._find(requests, rewound):
            number, sentence = text.split(": ", 1)
            yield f"{number}: {prefix}{sentence}"

    def _find(self, requests: Mapping[RequestId, LlmRequest], rewound: Collection[RequestId]) -> Iterator[str]:
        yield from self._check_identities()
        yield from self._check_slots()
        yield from self._check_references()
        yield from self._check_queues()
        yield from self._check_expiries()
        for block in self._blocks:
            if block.lookup_node is not None:
                yield from self._check_attached(block, block.lookup_node)
        for request_id, record in self._window.sequences.allocated_blocks_per_seq.items():
            sequence = self._manager.sequences.get(request_id)
            if sequence is None:
                continue
            yield from self._check_entries(sequence, record)
            yield from self._check_extent(sequence, record)
            if request_id not in rewound:
                yield from self._check_reach(sequence, record)
            yield from self._check_table(sequence, record)
            if request_id in requests:
                yield from self._check_tokens(record, sequence, requests[request_id])
        yield from self._check_counters()

    @property
    def _hashes_whole_paths(self) -> bool:
        return True

    def _may_differ_in_extent(self, num_tokens: int) -> bool:
        return False

    # -- blocks and slots ---------------------------------------------------------------------------

    def _num_blocks(self, level: int) -> int:
        settings = self._settings
        return (*settings.blocks_per_tier, settings.num_placeholder_blocks)[level]

    def _tiers(self) -> list[int]:
        """Levels with memory."""
        return [level.level for level in self._policy.levels() if level.level != PLACEHOLDER_LEVEL]

    def _check_identities(self) -> Iterator[str]:
        """Rule 1."""
        for level in self._policy.levels():
            fresh, number = level.fresh, level.level
            if len(fresh.ids) != self._num_blocks(number):
                yield f"1: level {number} has {len(fresh.ids)} ids for {self._num_blocks(number)} blocks"
            for block_id, block in zip(fresh.ids, fresh.blocks, strict=False):
                if block.block_id != block_id:
                    yield f"1: the block of id {block_id} says that it is {block.block_id}"
        for block, count in Counter(self._blocks).items():
            if count > 1:
                yield f"1: block {block.block_id} has {count} ids"

    def _check_slots(self) -> Iterator[str]:
        """Rule 2. Slots are exchanged only between blocks that were made, so those have their first slots together."""
        slots = {
            level: Counter(
                table_slot(block)
                for block in self._blocks
                if not block.is_placeholder and get_cache_level(block) == level
            )
            for level in self._tiers()
        }
        for level, found in slots.items():
            expected = Counter(range(len(self._policy.get_fresh_blocks(level).blocks)))
            for slot in sorted((found - expected) | (expected - found)):
                yield f"2: slot {slot} of level {level} is behind {found[slot]} blocks, not {expected[slot]}"
        for block in self._policy.get_fresh_blocks(PLACEHOLDER_LEVEL).blocks:
            if block.memory_pool_block_index != NULL_INDEX:
                yield f"2: placeholder {block.block_id} has slot {block.memory_pool_block_index}"

    def _check_references(self) -> Iterator[str]:
        """Rules 3 and 19."""
        entries, pins = self._holders.entries, self._holders.pins
        for block in self._blocks:
            if block.ref_count != entries[block] + pins[block]:
                yield (
                    f"3: block {block.block_id} counts {block.ref_count} references; "
                    f"{entries[block]} entries and {pins[block]} pins hold it"
                )
            if not self._manager.sequences and not pins and block.has_refs:
                yield f"19: block {block.block_id} is held although there is no sequence and no pin"
        for block in set(entries) | set(pins):
            if _find_block(self._window, block.block_id) is not block:
                yield f"3: a block {block.block_id} that is not of this window is held"

    # -- queues -------------------------------------------------------------------------------------

    def _check_queues(self) -> Iterator[str]:
        """Rules 4, 5 and 6."""
        for queue in self._policy.queues():
            if not queue.policy.is_intact():
                yield f"4: the queue of level {queue.level} and priority {queue.priority} is broken"
        queued: Counter[KVCacheBlock] = Counter()
        for queue, block in self._policy.queued_blocks():
            queued[block] += 1
            if block.free_queue is not queue:
                yield f"4: block {block.block_id} stands in a queue that it does not know of"
            own = self._policy.get_level_of(block)
            if queue.level != own.level or queue.priority != own.get_priority_of(block):
                yield (
                    f"5: block {block.block_id} of level {own.level} and priority {own.get_priority_of(block)} "
                    f"stands in the queue of level {queue.level} and priority {queue.priority}"
                )
        for level in self._policy.levels():
            fresh = level.fresh
            queued.update(block for block in fresh.blocks if block.block_id in fresh.remaining_ids())
            for block in fresh.blocks:
                if (block.free_queue is fresh) != (block.block_id in fresh.remaining_ids()):
                    yield f"4: block {block.block_id} and the never-used blocks disagree about where it stands"
        for block in self._blocks:
            if queued[block] != (not block.has_refs) or (block.free_queue is None) != (not queued[block]):
                yield (
                    f"4: block {block.block_id} with {block.ref_count} references stands in {queued[block]} queues "
                    f"and {'knows none' if block.free_queue is None else 'knows one'}"
                )
        yield from self._check_counts(queued)
        yield from self._check_order()

    def _check_counts(self, queued: Counter[KVCacheBlock]) -> Iterator[str]:
        for level in self._policy.levels():
            number, num_free = level.level, level.num_free
            num_unmade = len(level.fresh.ids) - len(level.fresh.blocks)
            num_queued = num_unmade + sum(n for block, n in queued.items() if get_cache_level(block) == number)
            num_held = sum(block.has_refs and get_cache_level(block) == number for block in self._blocks)
            if num_free != num_queued:
                yield f"6: level {number} counts {num_free} free blocks, {num_queued} stand in its queues"
            if num_free + num_held != self._num_blocks(number):
                yield f"6: level {number} has {num_free} free and {num_held} held of {self._num_blocks(number)} blocks"

    def _check_order(self) -> Iterator[str]:
        """Rules 22 and 26."""
        for level in self._policy.levels():
            if self._puts_empty_first:
                yield from self._check_empty_first(level)
            for priority, ids in level.free_ids():
                if not level.looks_at(priority):
                    yield (
                        f"22: level {level.level} does not look for victims at priority {priority}, "
                        f"where {ids[0]} stands"
                    )

    def _check_empty_first(self, level: LevelQueues) -> Iterator[str]:
        """Rule 26."""
        cached = None
        for _, ids in level.free_ids():
            for block_id in ids:
                block = _find_block(self._window, block_id)
                if block is not None and block.lookup_node is not None:
                    cached = block_id
                elif cached is not None:
                    yield (
                        f"26: at level {level.level} block {block_id}, which no request can find, waits after "
                        f"block {cached}, which is cached"
                    )
                    return

    def _check_expiries(self) -> Iterator[str]:
        """Rule 7."""
        expiring = self._policy.expiring()
        times = [expiry for _, expiry in expiring]
        if times != sorted(times):
            yield f"7: expiries are out of order: {expiring}"
        for block_id, expiry in expiring:
            block = _find_block(self._window, block_id)
            if block is None or block.has_refs or block.free_queue is None:
                yield f"7: block {block_id} waits for expiry and is not free"
            elif self._policy.get_duration_ms(block) is None or block.priority == DEFAULT_RETENTION_PRIORITY:
                yield (
                    f"7: block {block_id} waits for expiry with duration {self._policy.get_duration_ms(block)} "
                    f"and priority {block.priority}"
                )
            elif self._policy.get_expiration_time(block) != expiry:
                yield (
                    f"7: block {block_id} expires at {self._policy.get_expiration_time(block)}, "
                    f"it is filed under {expiry}"
                )

    # -- tree ---------------------------------------------------------------------------------------

    def _check_attached(self, block: KVCacheBlock, node: LookupNodePtr) -> Iterator[str]:
        """Rules 8, 11 and 12, seen from the block."""
        if node.get_value(self._settings.channel) is not block:
            yield f"8: block {block.block_id} says it is at {self._tree.name(node)}, which does not hold it"
        if not self._tree.contains(node):
            if not self._may_stay_in_old_tree:
                yield f"8: block {block.block_id} is attached outside the tree"
            return
        if self._settings.is_recurrent_state and not self._checks_states:
            return
        if block.block_key != node.key:
            yield (
                f"11: block {block.block_id} has key [{describe_key(block.block_key)}], its node is "
                f"{self._tree.name(node)}"
            )
        num_tokens = num_key_tokens(block.block_key)
        if block.is_full != (num_tokens == self._settings.tokens_per_block):
            yield f"11: block {block.block_id} has {num_tokens} tokens and full flag {block.is_full}"
        has_hash = self._settings.key_form is not KeyForm.DIGESTS
        if has_hash and self._hashes_whole_paths:
            expected = self._tree.chain_hash(node)
            if block.hash != expected:
                yield f"12: block {block.block_id} has hash {block.hash:016x}, its path gives {expected:016x}"

    # -- sequences ----------------------------------------------------------------------------------

    def _check_entries(self, sequence: GenerationRequest, record: SequenceWindow) -> Iterator[str]:
        """Rules 14 and 17."""
        name = f"sequence {sequence.request_id}"
        beam_width, front = sequence.beam_width, record.num_front_blocks_removed
        if len(record.block_ids) != beam_width or {len(ids) * beam_width for ids in record.block_ids} != {
            len(record.held)
        }:
            yield f"14: {name} holds {len(record.held)} entries and shows {[len(i) for i in record.block_ids]} ids"
            return
        if front and not self._settings.is_swa:
            yield f"14: {name} has {front} blocks removed in front of a window that does not slide"
        for position, block in enumerate(record.held):
            block_idx, beam_idx = divmod(position, beam_width)
            shown = record.block_ids[beam_idx][block_idx]
            is_placeholder = block.block_id == PLACEHOLDER_BLOCK_ID
            if block_idx < front and not is_placeholder:
                yield f"14: {name} holds block {block.block_id} at position {block_idx}, which left the window"
            if block_idx >= front and shown != block.block_id:
                yield f"14: {name} shows {shown} at position {block_idx} and holds {block.block_id}"
            is_state = self._settings.is_recurrent_state and self._checks_states
            if is_placeholder and not self._settings.is_swa and not is_state:
                yield f"14: {name} has a sliding-window placeholder at position {block_idx}"
            if not block.is_placeholder and not block.is_primary:
                yield f"17: {name} holds block {block.block_id}, which lies in the secondary pool"

    def _check_extent(self, sequence: GenerationRequest, record: SequenceWindow) -> Iterator[str]:
        """Rule 15."""
        settings, num_tokens = self._settings, sequence.num_tokens
        num_blocks = len(record.held) // sequence.beam_width
        expected = ceil_div(num_tokens, settings.tokens_per_block)
        if num_blocks != expected and not self._may_differ_in_extent(num_tokens):
            yield f"15: sequence {sequence.request_id} of {num_tokens} tokens has {num_blocks} blocks, not {expected}"

    def _check_reach(self, sequence: GenerationRequest, record: SequenceWindow) -> Iterator[str]:
        """Rule 16."""
        if not self._settings.is_swa or not self._checks_reach:
            return
        holes = [i // sequence.beam_width for i, b in enumerate(record.held) if b.block_id == PLACEHOLDER_BLOCK_ID]
        num_lost = (holes[-1] + 1) * self._settings.tokens_per_block if holes else 0
        if num_lost > max(0, sequence.num_tokens + 1 - self._settings.window_size):
            yield (
                f"16: sequence {sequence.request_id} of {sequence.num_tokens} tokens has no block at position "
                f"{holes[-1]}, which the next token attends to"
            )

    def _check_table(self, sequence: GenerationRequest, record: SequenceWindow) -> Iterator[str]:
        """Rules 24 and 25: a row is as long as its ids, its entries in the window are the slots of the blocks there."""
        for slots, ids in zip(record.slots, record.block_ids, strict=True):
            if len(slots) != len(ids):
                yield (
                    f"25: sequence {sequence.request_id} has {len(slots)} table entries for {len(ids)} blocks of a beam"
                )
        if self._settings.is_recurrent_state and not self._checks_states:
            return
        for position, block in enumerate(record.held):
            block_idx, beam_idx = divmod(position, sequence.beam_width)
            if block_idx < record.num_front_blocks_removed or beam_idx >= len(record.slots):
                continue
            slots = record.slots[beam_idx]
            entry = slots[block_idx] if block_idx < len(slots) else None
            if entry != table_slot(block):
                yield (
                    f"24: sequence {sequence.request_id} has table entry {entry} at position {block_idx}, "
                    f"the slot of block {block.block_id} is {table_slot(block)}"
                )

    def _check_tokens(self, record: SequenceWindow, sequence: GenerationRequest, request: LlmRequest) -> Iterator[str]:
        """Rule 23: a block of a sequence is cached, if at all, under the sequence's own tokens."""
        manager = self._manager
        of_encoder = self._names_encoder_input and manager.cache_type is CacheType.CROSS
        keys = _SequenceKeys(manager, self._tree, sequence, request, of_encoder)
        for position, block in enumerate(record.held):
            node = block.lookup_node
            if node is None or block.block_id == PLACEHOLDER_BLOCK_ID or not self._tree.contains(node):
                continue
            block_idx, beam_idx = divmod(position, sequence.beam_width)
            if not keys.lead_to(node, block_idx, beam_idx):
                yield (
                    f"23: sequence {sequence.request_id} holds block {block.block_id} at position {block_idx}, "
                    f"which is cached as {self._tree.name(node)}"
                )

    def _check_counters(self) -> Iterator[str]:
        """Rule 18."""
        now, reported = self._window.counters, self._window.reported
        if now.alloc_new > now.alloc_total:
            yield f"18: {now.alloc_new} new blocks among {now.alloc_total} allocated"
        if now.reused != now.full_reused + now.partial_reused:
            yield f"18: {now.reused} blocks reused, {now.full_reused} in full and {now.partial_reused} in part"
        for name in (entry.name for entry in fields(now)):
            if getattr(now, name) < getattr(reported, name):
                yield f"18: counter {name} fell from {getattr(reported, name)} to {getattr(now, name)}"


class _RecordedWindow(_Window):
    """The rules of one window whose parts behave as recorded."""

    _may_stay_in_old_tree = True
    _checks_states = False
    _checks_reach = False
    _names_encoder_input = False
    _puts_empty_first = False

    @property
    def _hashes_whole_paths(self) -> bool:
        return not self._settings.is_swa

    def _may_differ_in_extent(self, num_tokens: int) -> bool:
        window_size = self._settings.window_size
        limit = self._manager.window_sizes_metadata[window_size].max_token_num
        return num_tokens > limit or window_size % self._settings.tokens_per_block > 0


class _SequenceKeys:
    """The keys under which a sequence's blocks may be cached."""

    def __init__(
        self,
        manager: KVCacheManager,
        tree: _Tree,
        sequence: GenerationRequest,
        request: LlmRequest,
        of_encoder: bool,
    ) -> None:
        self._request = request
        self._tree = tree
        self._tokens_per_block = manager.tokens_per_block
        self._is_recorded = manager.compatibility
        self._build_keys = build_encoder_keys if of_encoder else partial(build_block_keys_of, key_form=manager.key_form)
        self._tokens = [
            (request.encoder_tokens or array("i"))
            if of_encoder
            else request.get_tokens(min(beam, request.beam_width - 1))[: sequence.num_tokens]
            for beam in range(sequence.beam_width)
        ]
        self._keys = [self._build(tokens, len(tokens)) for tokens in self._tokens]
        self._confirmed: list[dict[int, int]] = [{id(tree.root): -1} for _ in self._tokens]
        """Per beam: position of each node found to be cached under the sequence's own tokens."""

    def lead_to(self, node: LookupNodePtr, block_idx: int, beam_idx: int) -> bool:
        """Whether a node's path is that of the block at this position: whole blocks, the last one perhaps shorter."""
        confirmed = self._confirmed[beam_idx]
        if not self._is_key_at(node.key, block_idx, beam_idx):
            return False
        below, position = [node], block_idx - 1
        above = self._tree.above[id(node)]
        while id(above) not in confirmed:
            if position < 0 or above.key != self._keys[beam_idx][position]:
                return False
            below.append(above)
            above, position = self._tree.above[id(above)], position - 1
        if confirmed[id(above)] != position:
            return False
        if num_key_tokens(node.key) < self._tokens_per_block:
            del below[0]  # nothing may follow it
            block_idx -= 1
        confirmed.update((id(found), block_idx - distance) for distance, found in enumerate(below))
        return True

    def _is_key_at(self, key: PackedKey, block_idx: int, beam_idx: int) -> bool:
        num_key = num_key_tokens(key)
        tokens, keys = self._tokens[beam_idx], self._keys[beam_idx]
        end = block_idx * self._tokens_per_block + num_key
        if not num_key or end > len(tokens):
            return False
        return key == keys[block_idx] or key == self._build(tokens, end)[block_idx]

    def _build(self, tokens: array[int], length: int) -> list[PackedKey]:
        keys = self._build_keys(self._request, tokens, self._tokens_per_block, length, True)
        return to_recorded_keys(keys) if self._is_recorded else keys
