"""Blocks of running sequences: growing, sliding, shrinking."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

from trtkv.blocks.block_listener import RemovalReason
from trtkv.blocks.generation_request import GenerationRequest, SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock, create_swa_placeholder
from trtkv.common import PLACEHOLDER_BLOCK_ID, PRIMARY_LEVEL, RequestId, ceil_div, trunc_mod
from trtkv.errors import InvalidInputError, OutOfBlocksError, UnknownIdError
from trtkv.keys.packed_key import num_key_tokens
from trtkv.records.kv_cache_index import NULL_ENTRY, get_slot
from trtkv.records.llm_request import LlmRequest
from trtkv.window_block_manager.claiming import BlockClaimer
from trtkv.window_block_manager.context import WindowContext, WindowPart


def add_block_to_beam(block: KVCacheBlock, window: SequenceWindow, beam_idx: int, beam_width: int) -> None:
    """Append a block to one beam: one reference more, predecessor set. C++: addBlockToBeam."""
    block.ref_count += 1
    ids = window.block_ids[beam_idx]
    block.prev_block_in_seq = window.held[(len(ids) - 1) * beam_width + beam_idx] if ids else None
    ids.append(block.block_id)
    window.held.append(block)


def add_block_to_all_beams(block: KVCacheBlock, window: SequenceWindow, beam_width: int) -> None:
    """Append one shared block to every beam; each counts as a reference."""
    for beam_idx in range(beam_width):
        add_block_to_beam(block, window, beam_idx, beam_width)


def table_slot(block: KVCacheBlock) -> int:
    """Slot as the offset table shows it: without the level, NULL_ENTRY for placeholders."""
    return NULL_ENTRY if block.is_placeholder else get_slot(block.memory_pool_block_index)


def write_slots(window: SequenceWindow, beam_width: int) -> None:
    """Write the table entries of all positions. C++: updateSequenceCacheBlockOffsets."""
    for beam_idx in range(beam_width):
        blocks = window.held if beam_width == 1 else window.held[beam_idx::beam_width]
        try:
            slots = array("i", [block.memory_pool_block_index for block in blocks])
        except OverflowError:  # a secondary slot or a placeholder among them
            slots = array("i", [table_slot(block) for block in blocks])
        window.slots[beam_idx] = slots


def write_slot_at(window: SequenceWindow, beam_width: int, block_idx: int) -> None:
    """Write the table entry of one position. C++: updateCacheBlockOffsetsAtIdx."""
    for beam_idx in range(beam_width):
        slots = window.slots[beam_idx]
        slot = table_slot(window.held[block_idx * beam_width + beam_idx])
        if block_idx < len(slots):
            slots[block_idx] = slot
        else:
            slots.append(slot)


def _count_held_alone(blocks: Sequence[KVCacheBlock]) -> int:
    """Blocks with one reference; stand-ins at positions without a block do not count."""
    return sum(block.ref_count == 1 and block.block_id != PLACEHOLDER_BLOCK_ID for block in blocks)


class SequenceBlocks(WindowPart):
    """Growth and shrinking of sequences in one window. C++: the sequence methods of WindowBlockManager."""

    def __init__(self, context: WindowContext, claimer: BlockClaimer) -> None:
        super().__init__(context)
        self._placeholder = create_swa_placeholder()  # stands at positions that left the window
        self._claimer = claimer
        claimer.on_held_moved = self.note_moved
        self.allocated_blocks_per_seq: dict[RequestId, SequenceWindow] = {}
        self.rewind_reserve = 0
        """Tokens by which a sequence may be rewound: a sliding window keeps that many more."""
        self.num_shared_moves = 0
        """Times a cached block was moved to another node of the tree although several sequences held it."""
        self.pin_counts: dict[KVCacheBlock, int] = {}  # references that belong to no sequence

    def get_window(self, request_id: RequestId) -> SequenceWindow:
        """Blocks that a sequence holds in this window."""
        try:
            return self.allocated_blocks_per_seq[request_id]
        except KeyError:
            raise UnknownIdError(f"request {request_id} holds no blocks; add its sequence first") from None

    def note_moved(self, block: KVCacheBlock) -> None:
        """Have the rows of all sequences that hold a block written anew when they are read."""
        for window in self.allocated_blocks_per_seq.values():
            window.has_moved |= block in window.held

    # -- pins -------------------------------------------------------------------------------------

    def add_pin(self, block: KVCacheBlock) -> None:
        """Add a reference that outlives sequences; the block must not be queued."""
        block.ref_count += 1
        self.pin_counts[block] = self.pin_counts.get(block, 0) + 1

    def drop_pin(self, block: KVCacheBlock) -> None:
        """Drop such a reference; a block without another holder becomes free."""
        block.dec_ref_count()
        count = self.pin_counts.pop(block, 0)
        if count > 1:
            self.pin_counts[block] = count - 1
        if not block.ref_count:
            self._policy.release_block(block)

    def forget(self, request_id: RequestId) -> None:
        """Drop the record of a sequence that is removed."""
        del self.allocated_blocks_per_seq[request_id]

    # -- growing ----------------------------------------------------------------------------------

    def adjust_blocks_if_needed(self, sequence: GenerationRequest) -> None:
        """Slide the window, and take a block if the newest token starts one. C++: adjustBlocksIfNeeded."""
        settings = self._settings
        window = sequence.get_window(settings.window_size)
        for _ in range(self.num_detachable(sequence, window, sequence.num_tokens)):
            self.detach_front_block(sequence, window)
        if trunc_mod(sequence.num_tokens - 1, settings.tokens_per_block):
            return
        if self._listener is not None:
            self._listener.on_allocation(sequence.request_id, settings.window_size)
        self._add_position(sequence, window)
        self._counters.gen_alloc += 1

    def _add_position(self, sequence: GenerationRequest, window: SequenceWindow) -> None:
        """Grow by one block per beam."""
        self.allocate_block(sequence, window, share_among_beams=sequence.beam_width == 1)
        write_slot_at(window, sequence.beam_width, len(window.block_ids[0]) - 1)

    def copy_linear_attention_block(self, sequence: GenerationRequest, request: LlmRequest) -> bool:
        """Carry a recurrent state over a block boundary; whether a copy was issued. C++: copyLinearAttentionBlock."""
        return False

    def num_blocks_to_come(self, sequence: GenerationRequest, prompt_len: int, enable_reuse: bool) -> int:
        """Blocks that a sequence will still take without being longer: none, but of recurrent states."""
        return 0

    def storable_blocks(self, sequence: GenerationRequest, request: LlmRequest) -> Sequence[KVCacheBlock]:
        """Beam 0's blocks by position, to be read only; a stand-in where nothing may be stored."""
        held = sequence.get_window(self._settings.window_size).held
        return held if sequence.beam_width == 1 else held[:: sequence.beam_width]

    def num_detachable(self, sequence: GenerationRequest, window: SequenceWindow, num_tokens: int) -> int:
        """Front blocks that lie outside the sliding window at this length."""
        settings = self._settings
        if not settings.is_swa or sequence.holds_window:
            return 0
        num_held = num_tokens - window.num_front_blocks_removed * settings.tokens_per_block
        excess = num_held - settings.window_size - self.rewind_reserve
        return max(0, excess // settings.tokens_per_block)

    def count_freed_by_sliding(self, sequence: GenerationRequest, num_tokens: int) -> int:
        """Blocks that become free when the window moves to this length; those others hold do not."""
        return _count_held_alone(self._blocks_sliding_out(sequence, num_tokens))

    def _blocks_sliding_out(self, sequence: GenerationRequest, num_tokens: int) -> list[KVCacheBlock]:
        """Entries that a sequence lets go of when the window moves to this length."""
        window = sequence.get_window(self._settings.window_size)
        first = window.num_front_blocks_removed
        return window.held[first : first + self.num_detachable(sequence, window, num_tokens)]

    def count_needed(self, sequence: GenerationRequest, num_tokens: int) -> int:
        """Free blocks it takes to grow to this length, sliding on the way.

        Each position takes at least what sliding gives back, so the most are missing when the last one begins.
        """
        width = self._settings.tokens_per_block
        last = ceil_div(num_tokens, width)
        num_new = (last - ceil_div(sequence.num_tokens, width)) * sequence.beam_width
        return max(0, num_new - self.count_freed_by_sliding(sequence, (last - 1) * width + 1)) if num_new > 0 else 0

    def count_held_alone(self, sequence: GenerationRequest) -> int:
        """Blocks of a sequence that have no other holder."""
        window = sequence.get_window(self._settings.window_size)
        return _count_held_alone(window.held[window.num_front_blocks_removed :])

    def check_can_add_token(self, sequence: GenerationRequest) -> None:
        """Raise what the next ``adjust_blocks_if_needed`` would raise, before anything is changed."""
        settings, num_tokens = self._settings, sequence.num_tokens + 1
        if settings.is_swa:
            self._check_can_slide(sequence)
        if (num_tokens - 1) % settings.tokens_per_block:
            return
        free = self._policy.get_num_free_blocks(PRIMARY_LEVEL)
        if settings.is_swa:
            free += self.count_freed_by_sliding(sequence, num_tokens)
        if free < sequence.beam_width:
            self._raise_no_block(sequence)

    def _check_can_slide(self, sequence: GenerationRequest) -> None:
        """Raise if the next token of several beams would make the window move."""
        window_size = self._settings.window_size
        if sequence.beam_width > 1 and self.num_detachable(
            sequence, sequence.get_window(window_size), sequence.num_tokens + 1
        ):
            raise InvalidInputError(
                f"request {sequence.request_id} has {sequence.beam_width} beams and leaves the sliding window of "
                f"{window_size} tokens; beam search needs a window as wide as the sequence"
            )

    def _raise_no_block(self, sequence: GenerationRequest) -> None:
        raise OutOfBlocksError(
            f"window {self._settings.window_size} has {self._policy.get_num_free_blocks(PRIMARY_LEVEL)} free blocks, "
            f"too few for the next token of request {sequence.request_id}; pause a sequence or enlarge the pool"
        )

    def check_can_add_tokens(self, sequences: Sequence[GenerationRequest]) -> None:
        """``check_can_add_token`` for sequences that grow in turn; what one lets go of, the next may take."""
        if len(sequences) == 1:
            self.check_can_add_token(sequences[0])
            return
        settings = self._settings
        free = self._policy.get_num_free_blocks(PRIMARY_LEVEL)
        let_go: Counter[KVCacheBlock] = Counter()
        for sequence in sequences:
            if settings.is_swa:
                self._check_can_slide(sequence)
                for block in self._blocks_sliding_out(sequence, sequence.num_tokens + 1):
                    if block.block_id != PLACEHOLDER_BLOCK_ID:
                        let_go[block] += 1
                        free += let_go[block] == block.ref_count
            if not sequence.num_tokens % settings.tokens_per_block:
                free -= sequence.beam_width
            if free < 0:
                self._raise_no_block(sequence)

    def allocate_block(self, sequence: GenerationRequest, window: SequenceWindow, share_among_beams: bool) -> None:
        """Append one block per beam, or one for all, with the decode retention. C++: allocateBlock."""
        required = 1 if share_among_beams else sequence.beam_width
        free = self._policy.get_num_free_blocks(PRIMARY_LEVEL)
        if free < required:
            raise OutOfBlocksError(
                f"window {self._settings.window_size} has {free} free blocks, {required} are needed; "
                "pause a sequence or enlarge the pool"
            )
        if share_among_beams:
            add_block_to_all_beams(self.take_decode_block(sequence), window, sequence.beam_width)
            return
        for beam_idx in range(sequence.beam_width):
            add_block_to_beam(self.take_decode_block(sequence), window, beam_idx, sequence.beam_width)

    def drop_unfinished_block(self, sequence: GenerationRequest) -> None:
        """Give back blocks after the last position that has a table entry."""
        window = sequence.get_window(self._settings.window_size)
        self._drop_entries(window, sequence.beam_width, len(window.slots[-1]))

    def drop_last_position(self, sequence: GenerationRequest) -> None:
        """Undo the allocation of the last position, for every beam."""
        window = sequence.get_window(self._settings.window_size)
        self._drop_entries(window, sequence.beam_width, len(window.block_ids[-1]) - 1)
        for ids, slots in zip(window.block_ids, window.slots, strict=True):
            del slots[len(ids) :]

    def _drop_entries(self, window: SequenceWindow, beam_width: int, num_positions: int) -> None:
        while len(window.held) > num_positions * beam_width:
            block = window.held.pop()
            window.block_ids[len(window.held) % beam_width].pop()
            block.dec_ref_count()
            self._claimer.give_back((block,))

    def take_decode_block(self, sequence: GenerationRequest) -> KVCacheBlock:
        """A fresh block with the sequence's decode retention."""
        return self._claimer.get_free_block(
            sequence.decode_retention_priority,
            sequence.decode_duration_ms,
            sequence.transfer_mode,
            sequence.directory,
        )

    # -- sliding ----------------------------------------------------------------------------------

    def detach_front_block(self, sequence: GenerationRequest, window: SequenceWindow) -> None:
        """Let go of the first block still held. C++: detachFrontBlock."""
        if sequence.beam_width != 1:
            raise InvalidInputError(
                f"request {sequence.request_id} has {sequence.beam_width} beams; only one beam can leave a window"
            )
        index = window.num_front_blocks_removed
        block = window.held[index]
        window.held[index] = self._placeholder
        self._blank_entry(window, index)
        window.num_front_blocks_removed += 1
        if block.block_id == PLACEHOLDER_BLOCK_ID:
            return
        self._policy.end_duration(block)
        block.dec_ref_count()
        if not block.ref_count:
            self._policy.release_block(block)

    def _blank_entry(self, window: SequenceWindow, block_idx: int) -> None:
        """Take the slot of a position that left the window out of the table: it may be another sequence's soon."""
        window.slots[0][block_idx] = NULL_ENTRY

    # -- shrinking --------------------------------------------------------------------------------

    def ends_block(self, num_tokens: int) -> bool:
        """Whether a sequence cut to this length no longer needs its last block."""
        return trunc_mod(num_tokens, self._settings.tokens_per_block) == 0

    def _num_blocks_of_last(self, sequence: GenerationRequest, num_tokens: int) -> int:
        """Blocks that a sequence loses with its last tokens."""
        last = sequence.num_tokens
        return sum(self.ends_block(length) for length in range(last - num_tokens, last))

    def check_can_rewind(self, sequence: GenerationRequest, num_tokens: int) -> None:
        """Raise, before anything is changed, if cutting the last tokens would reach blocks no longer held."""
        window = self.get_window(sequence.request_id)
        num_blocks = self._num_blocks_of_last(sequence, num_tokens)
        first_kept = len(window.held) - num_blocks
        if num_blocks and (first_kept < 0 or window.held[first_kept].block_id == PLACEHOLDER_BLOCK_ID):
            raise InvalidInputError(
                f"rewinding request {sequence.request_id} by {num_tokens} tokens reaches blocks that left the window "
                f"of {self._settings.window_size} tokens; rewind by fewer"
            )
        index, inside = divmod(sequence.num_tokens - num_tokens, self._settings.tokens_per_block)
        if not inside or index >= len(window.held):
            return
        block = window.held[index]
        if block.ref_count > 1 and self._covers_more(block, inside):
            raise InvalidInputError(
                f"rewinding request {sequence.request_id} by {num_tokens} tokens reaches into block {block.block_id}, "
                f"which {block.ref_count} holders share; rewind to a block boundary"
            )

    def detach_rewound_block(self, sequence: GenerationRequest) -> None:
        """Take the last block out of the tree if it is cached under tokens that were just cut off."""
        window = self.get_window(sequence.request_id)
        index, inside = divmod(sequence.num_tokens, self._settings.tokens_per_block)
        if not inside or index >= len(window.held):
            return
        block = window.held[index]
        if block.ref_count == 1 and self._covers_more(block, inside):
            self._claimer.remove_from_tree(block, RemovalReason.DROPPED)

    @staticmethod
    def _covers_more(block: KVCacheBlock, num_tokens: int) -> bool:
        """Whether a block is cached under more tokens than that, so that writing behind them would falsify it."""
        return block.lookup_node is not None and num_key_tokens(block.key) > num_tokens

    def release_last_block(self, sequence: GenerationRequest) -> None:
        """Drop the last block. C++: releaseLastBlock."""
        window = self.get_window(sequence.request_id)
        block = window.held[-1]
        block.dec_ref_count()
        if not block.ref_count:
            self._release_cut_off(block)
        window.held.pop()
        window.block_ids[0].pop()
        del window.slots[0][len(window.held) :]

    def _release_cut_off(self, block: KVCacheBlock) -> None:
        """Make a block free whose tokens were cut off a sequence."""
        self._policy.release_block(block)
