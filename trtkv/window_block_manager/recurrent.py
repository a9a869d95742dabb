"""Recurrent states: the last block of a sequence is its live state, earlier ones are snapshots or placeholders."""

from __future__ import annotations

from collections.abc import Sequence

from trtkv.blocks.generation_request import GenerationRequest, SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock, create_swa_placeholder
from trtkv.common import PLACEHOLDER_LEVEL, PRIMARY_LEVEL, RequestId
from trtkv.errors import InvalidInputError, LogicError, OutOfBlocksError, UnknownIdError, check
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.records.llm_request import LlmRequest
from trtkv.window_block_manager.claiming import BlockClaimer
from trtkv.window_block_manager.context import WindowContext
from trtkv.window_block_manager.sequences import SequenceBlocks, add_block_to_beam, write_slot_at


class RecurrentSequenceBlocks(SequenceBlocks):
    """Sequences of recurrent states. C++: the linear-attention parts of WindowBlockManager.

    A block that is cached as a snapshot is never written again: at the next decode boundary the sequence takes a new
    live block and the state is copied into it. And a block is only cached if a state was left in it: steps that pass
    over a snapshot position leave none there.
    """

    def __init__(self, context: WindowContext, claimer: BlockClaimer) -> None:
        super().__init__(context, claimer)
        metadata = context.settings.linear_attention_metadata
        if metadata is None:
            raise LogicError("a window of recurrent states has no metadata of them")
        self._metadata: LinearAttentionMetadata = metadata
        self._no_state = create_swa_placeholder()  # stands where nothing may be stored
        self._step_starts: dict[RequestId, set[int]] = {}  # prompt positions at which context steps began

    # -- decoding ---------------------------------------------------------------------------------

    def _keeps_snapshot(self, sequence: GenerationRequest, window: SequenceWindow) -> bool:
        """Whether the last block is cached and must stay as it is."""
        last = window.held[-sequence.beam_width]
        return last.lookup_node is not None

    def check_can_add_token(self, sequence: GenerationRequest) -> None:
        """Raise what the next allocation would raise, before anything is changed."""
        self.check_can_add_tokens((sequence,))

    def check_can_add_tokens(self, sequences: Sequence[GenerationRequest]) -> None:
        """``check_can_add_token`` for sequences that grow one after the other."""
        free = self._policy.get_num_free_blocks(PRIMARY_LEVEL), self._policy.get_num_free_blocks(PLACEHOLDER_LEVEL)
        states = placeholders = 0
        for sequence in sequences:
            num_states, num_placeholders = self._count_next(sequence)
            states += num_states
            placeholders += num_placeholders
            if free[0] < states or free[1] < placeholders:
                raise OutOfBlocksError(
                    f"the recurrent window has {free[0]} free blocks and {free[1]} placeholders, too few for the next "
                    f"token of request {sequence.request_id}; pause a sequence or enlarge the pool"
                )

    def _count_next(self, sequence: GenerationRequest) -> tuple[int, int]:
        """States and placeholders that the next token takes."""
        if sequence.num_tokens % self._settings.tokens_per_block:
            return 0, 0
        window, beam_width = sequence.get_window(self._settings.window_size), sequence.beam_width
        if not window.held or self._keeps_snapshot(sequence, window):
            return beam_width, 0
        return beam_width - 1 if self._is_shared(window.held[-beam_width:]) else 0, 1

    @staticmethod
    def _is_shared(last_blocks: Sequence[KVCacheBlock]) -> bool:
        """Whether several beams have one last block between them."""
        return len(last_blocks) > 1 and all(block is last_blocks[0] for block in last_blocks)

    def _add_position(self, sequence: GenerationRequest, window: SequenceWindow) -> None:
        """Grow by one position: a placeholder before the live block, or a new live block after a snapshot."""
        beam_width = sequence.beam_width
        if window.held and not self._keeps_snapshot(sequence, window):
            self._insert_placeholder(sequence, window)
        else:
            old = window.held[-beam_width:]
            self.allocate_block(sequence, window, share_among_beams=beam_width == 1)
            for source, target in zip(old, window.held[len(window.held) - len(old) :], strict=True):
                self._carry_state(source, target, sequence)
        self._write_grown_slots(sequence, window)

    def _insert_placeholder(self, sequence: GenerationRequest, window: SequenceWindow) -> None:
        """Put a placeholder before the last block of every beam. C++: tryAllocatePlaceholderForLinearAttention.

        The placeholder takes over key and full flag; with several beams it does so from each in turn.
        Hashes are set while the last block is out of the list, so its own still chains to its old predecessor.
        """
        beam_width = sequence.beam_width
        last_blocks = window.held[-beam_width:]
        taken = [self._claimer.get_free_block(want_placeholder=True)]
        try:
            if self._is_shared(last_blocks):
                for last in last_blocks[1:]:
                    taken.append(self.take_decode_block(sequence))
                    self._carry_state(last, taken[-1], sequence)
        except Exception:
            self._claimer.give_back(taken)
            raise
        placeholder, *live_blocks = taken
        del window.held[-beam_width:]
        for ids in window.block_ids:
            ids.pop()
        for beam_idx, last in enumerate(last_blocks):
            check(not last.is_placeholder, f"the live state of request {sequence.request_id} is a placeholder")
            key = placeholder.key
            placeholder.set_block_key(last.key, last.is_full)
            last.set_block_key(key, last.is_full)
            add_block_to_beam(placeholder, window, beam_idx, beam_width)
            placeholder.compute_hash()
            last.compute_hash()
            last.dec_ref_count()
        for beam_idx, last in enumerate(last_blocks):
            block = live_blocks[beam_idx - 1] if live_blocks and beam_idx else last
            add_block_to_beam(block, window, beam_idx, beam_width)

    def _carry_state(self, source: KVCacheBlock, target: KVCacheBlock, sequence: GenerationRequest) -> None:
        """A new live block goes on from the state before it."""
        self._copy_state(source, target, sequence)

    def _write_grown_slots(self, sequence: GenerationRequest, window: SequenceWindow) -> None:
        """Write the table entries of a position just added, and of the one before: a placeholder may stand there."""
        last = len(window.block_ids[0]) - 1
        if last:
            write_slot_at(window, sequence.beam_width, last - 1)
        write_slot_at(window, sequence.beam_width, last)

    def num_blocks_to_come(self, sequence: GenerationRequest, prompt_len: int, enable_reuse: bool) -> int:
        """Blocks with memory that a sequence will still take: new live blocks behind a prompt that ends a block.

        Exact for the next decode boundary. A sequence that is stored while it generates takes more, one per
        boundary at which it was stored. Placeholders are not counted.
        """
        window, beam_width = sequence.get_window(self._settings.window_size), sequence.beam_width
        if sequence.num_tokens % self._settings.tokens_per_block:
            return 0
        if window.held and self._keeps_snapshot(sequence, window):
            return beam_width
        if sequence.num_tokens > prompt_len:
            return 0
        return beam_width if enable_reuse else beam_width - 1

    # -- state copies -----------------------------------------------------------------------------

    def _copy_state(self, source: KVCacheBlock, target: KVCacheBlock, sequence: GenerationRequest) -> None:
        self._transfer_manager.onboard(
            source,
            target,
            self._pools,
            self._settings.tokens_per_block,
            sequence.transfer_mode,
            sequence.directory,
        )

    def copy_linear_attention_block(self, sequence: GenerationRequest, request: LlmRequest) -> bool:
        """Carry the state over a block boundary; whether a copy was issued. C++: copyLinearAttentionBlock.

        Call it before every forward step. In the context stage the state of the block just ended goes to the
        next block with memory; at the first generated token beam 0's goes to the other beams.
        """
        window = self.allocated_blocks_per_seq.get(request.request_id)
        if window is None:
            return False
        return self._copy_at_boundary(sequence, request, window)

    def _copy_at_boundary(self, sequence: GenerationRequest, request: LlmRequest, window: SequenceWindow) -> bool:
        position, prompt_len = request.context_current_position, request.prompt_len
        if not request.is_context_init_state or position >= prompt_len:
            # Beams of a prompt that ends a block got their state with their live blocks.
            is_first = request.get_num_tokens(0) == prompt_len + 1 and prompt_len % self._settings.tokens_per_block
            return bool(is_first) and self._copy_to_other_beams(sequence, window)
        self._step_starts.setdefault(request.request_id, set()).add(position)
        block_idx, inside = divmod(position, self._settings.tokens_per_block)
        return block_idx > 0 and not inside and self._copy_to_next_block(sequence, window, block_idx - 1)

    def _copy_to_other_beams(self, sequence: GenerationRequest, window: SequenceWindow) -> bool:
        last_blocks = window.held[-sequence.beam_width :]
        for block in last_blocks[1:]:
            self._copy_state(last_blocks[0], block, sequence)
        return len(last_blocks) > 1

    def _copy_to_next_block(self, sequence: GenerationRequest, window: SequenceWindow, prev_index: int) -> bool:
        beam_width = sequence.beam_width
        done: set[tuple[int, int]] = set()
        for beam_idx in range(beam_width):
            blocks = window.held[beam_idx::beam_width]
            if prev_index >= len(blocks):
                raise UnknownIdError(
                    f"request {sequence.request_id} has {len(blocks)} blocks, block {prev_index} was to be copied"
                )
            source = blocks[prev_index]
            if source.is_placeholder:
                continue
            behind = blocks[prev_index + 1 :]
            target = next((block for block in behind if not block.is_placeholder), behind[-1] if behind else None)
            if target is None:
                raise LogicError(f"request {sequence.request_id} has no block behind its state to copy to")
            pair = (source.block_id, target.block_id)
            if pair not in done:
                self._copy_state(source, target, sequence)
                done.add(pair)
        return bool(done)

    # -- what may be stored -----------------------------------------------------------------------

    def storable_blocks(self, sequence: GenerationRequest, request: LlmRequest) -> list[KVCacheBlock]:
        """Beam 0's blocks by position, with a stand-in at positions of the prompt where no step ended.

        Steps are known from the calls of ``copy_linear_attention_block``; without any, every block counts.
        """
        blocks = sequence.get_window(self._settings.window_size).held[:: sequence.beam_width]
        starts = self._step_starts.get(request.request_id)
        if not starts:
            return blocks
        tokens_per_block = self._settings.tokens_per_block
        first = min(starts)
        for index, block in enumerate(blocks):
            end = (index + 1) * tokens_per_block
            if first < end < request.prompt_len and end not in starts and not block.is_placeholder:
                blocks[index] = self._no_state
        return blocks

    def forget(self, request_id: RequestId) -> None:
        """Drop the record of a sequence, and what is known of its steps."""
        super().forget(request_id)
        self._step_starts.pop(request_id, None)

    # -- shrinking --------------------------------------------------------------------------------

    def drop_last_position(self, sequence: GenerationRequest) -> None:
        """Undo the allocation of the last position, for every beam."""
        self.release_last_block(sequence)

    def check_can_rewind(self, sequence: GenerationRequest, num_tokens: int) -> None:
        """Raise, before anything is changed, if cutting the last tokens would leave no state."""
        if self._num_blocks_of_last(sequence, num_tokens) >= len(self.get_window(sequence.request_id).held):
            raise InvalidInputError(
                f"rewinding request {sequence.request_id} by {num_tokens} tokens leaves no recurrent state; "
                "rewind by fewer, or remove the sequence"
            )

    def detach_rewound_block(self, sequence: GenerationRequest) -> None:
        """Nothing: a state is that of whole blocks."""

    def release_last_block(self, sequence: GenerationRequest) -> None:
        """The last block is the live state, so the one before it goes, also a snapshot."""
        window = self.get_window(sequence.request_id)
        check(len(window.held) >= 2, "a recurrent sequence of one block cannot be rewound")
        block = window.held[-2]
        block.dec_ref_count()
        if not block.ref_count:
            self._release_cut_off(block)
        del window.held[-2]
        del window.block_ids[0][-2]
        del window.slots[0][len(window.held) :]
        self._write_live_slot(window)

    def _write_live_slot(self, window: SequenceWindow) -> None:
        write_slot_at(window, 1, len(window.held) - 1)
