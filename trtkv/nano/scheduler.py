"""Which sequences are computed in the next step: prefill first, then one token for each running sequence."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Protocol

from trtkv.errors import InvalidInputError, OutOfBlocksError, check
from trtkv.nano.block_manager import BlockManager
from trtkv.nano.hashing import pack_tokens
from trtkv.nano.sequence import Sequence, SequenceStatus


class SchedulerSettings(Protocol):
    """What a scheduler reads from its config; SchedulerConfig describes and has it."""

    @property
    def num_kvcache_blocks(self) -> int:
        """Blocks in the pool."""

    @property
    def kvcache_block_size(self) -> int:
        """Tokens in a block."""

    @property
    def max_num_seqs(self) -> int:
        """Sequences in one step at most."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Prompt tokens in one prefill step at most."""

    @property
    def eos(self) -> int:
        """Token that ends a sequence."""


def _set_status(seq: Sequence, status: SequenceStatus) -> None:
    """Sequences of nano-vllm's own class have a status of their own, with the same names."""
    seq.status = type(seq.status)[status.name]


class Scheduler:
    """Two queues over one BlockManager, for sequences of this package or of nano-vllm's own class.

    A prefill step takes waiting sequences in order while they fit the token budget and the pool; only its first
    sequence may be cut to the budget. Without one, a decode step takes running sequences in order and preempts from
    the end of the queue when blocks run out; a preempted sequence waits at the front, its content still matchable.
    """

    def __init__(self, config: SchedulerSettings) -> None:
        self.max_num_seqs = config.max_num_seqs
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self.eos = config.eos
        self.block_size = config.kvcache_block_size
        self.block_manager = BlockManager(config.num_kvcache_blocks, config.kvcache_block_size)
        self.waiting: deque[Sequence] = deque()
        self.running: deque[Sequence] = deque()

    def is_finished(self) -> bool:
        """Whether no sequence is left."""
        return not self.waiting and not self.running

    def add(self, seq: Sequence) -> None:
        """Queue a sequence. Raises InvalidInputError if the whole pool could not hold it, or for another block size."""
        if seq.block_size != self.block_size:
            raise InvalidInputError(
                f"sequence {seq.seq_id} has blocks of {seq.block_size} tokens, the scheduler of {self.block_size}"
            )
        if seq.status.name != SequenceStatus.WAITING.name or seq.block_table:
            raise InvalidInputError(f"sequence {seq.seq_id} is {seq.status.name}; add each sequence once")
        num_blocks = len(self.block_manager.blocks)
        if seq.num_blocks > num_blocks:
            raise InvalidInputError(
                f"sequence {seq.seq_id} of {seq.num_tokens} tokens needs {seq.num_blocks} blocks, the pool has "
                f"{num_blocks}: raise num_kvcache_blocks or shorten it"
            )
        self.waiting.append(seq)

    def schedule(self) -> tuple[list[Sequence], bool]:
        """Sequences of the next step and whether it is prefill; gives them blocks and sets their scheduled tokens.

        Raises InvalidInputError if no sequence is left, OutOfBlocksError if the first one cannot go on even with all
        others preempted; nothing is changed then.
        """
        if self.is_finished():
            raise InvalidInputError("no sequence to schedule: add one first")
        scheduled = self._schedule_prefill()
        if scheduled:
            return scheduled, True
        return self._schedule_decode(), False

    def preempt(self, seq: Sequence) -> None:
        """Take its blocks and put it in front of the waiting ones; the caller has taken it out of the running ones."""
        self.block_manager.deallocate(seq)
        _set_status(seq, SequenceStatus.WAITING)
        seq.is_prefill = True
        self.waiting.appendleft(seq)

    def postprocess(self, seqs: list[Sequence], token_ids: list[int], is_prefill: bool) -> None:
        """Account for a computed step: register full blocks, append one token each, release finished sequences.

        ``token_ids[i]`` is the token sampled for ``seqs[i]``, ignored where the prompt is not complete yet. Raises
        InvalidInputError for sequences that were not scheduled and for bad tokens; nothing is changed then.
        """
        if len(seqs) != len(token_ids):
            raise InvalidInputError(f"{len(seqs)} sequences but {len(token_ids)} tokens")
        pack_tokens(token_ids)
        for seq in seqs:
            if seq.num_scheduled_tokens < 1:
                raise InvalidInputError(f"sequence {seq.seq_id} was not scheduled in this step")
        for seq, token_id in zip(seqs, token_ids, strict=True):
            self.block_manager.hash_blocks(seq)
            seq.num_cached_tokens += seq.num_scheduled_tokens
            seq.num_scheduled_tokens = 0
            if is_prefill and seq.num_cached_tokens < seq.num_tokens:
                continue
            seq.append_token(token_id)
            if (not seq.ignore_eos and token_id == self.eos) or seq.num_completion_tokens == seq.max_tokens:
                _set_status(seq, SequenceStatus.FINISHED)
                self.block_manager.deallocate(seq)
                self.running.remove(seq)

    def _schedule_prefill(self) -> list[Sequence]:
        scheduled: list[Sequence] = []
        budget = self.max_num_batched_tokens
        while self.waiting and budget and len(scheduled) < self.max_num_seqs:
            seq = self.waiting[0]
            num_tokens = self._admit(seq, budget if scheduled else None)
            if num_tokens is None:
                break
            seq.num_scheduled_tokens = min(num_tokens, budget)
            budget -= seq.num_scheduled_tokens
            if seq.num_cached_tokens + seq.num_scheduled_tokens == seq.num_tokens:
                _set_status(seq, SequenceStatus.RUNNING)
                self.running.append(self.waiting.popleft())
            scheduled.append(seq)
        return scheduled

    def _admit(self, seq: Sequence, limit: int | None) -> int | None:
        """Tokens left to compute, after giving blocks to a sequence without any; None if it has to wait."""
        if seq.block_table:
            num_tokens = seq.num_tokens - seq.num_cached_tokens
            return None if limit is not None and num_tokens > limit else num_tokens
        num_cached_blocks = self.block_manager.can_allocate(seq)
        if num_cached_blocks == -1:
            return None
        num_tokens = seq.num_tokens - num_cached_blocks * self.block_size
        if limit is not None and num_tokens > limit:
            return None
        self.block_manager.allocate(seq, num_cached_blocks)
        return num_tokens

    def _schedule_decode(self) -> list[Sequence]:
        self._check_progress()
        scheduled: list[Sequence] = []
        while self.running and len(scheduled) < self.max_num_seqs:
            seq = self.running.popleft()
            if not self._make_room(seq):
                break
            seq.num_scheduled_tokens = 1
            seq.is_prefill = False
            self.block_manager.may_append(seq)
            scheduled.append(seq)
        check(scheduled, "a decode step without a sequence")
        self.running.extendleft(reversed(scheduled))
        return scheduled

    def _make_room(self, seq: Sequence) -> bool:
        """Preempt from the end until ``seq`` can grow; False if it had to be preempted itself."""
        while not self.block_manager.can_append(seq):
            if not self.running:
                self.preempt(seq)
                return False
            self.preempt(self.running.pop())
        return True

    def _check_progress(self) -> None:
        """Raise OutOfBlocksError unless the first running sequence can grow, with all others preempted if need be."""
        if not self.running:
            seq = self.waiting[0]
            raise OutOfBlocksError(
                f"sequence {seq.seq_id} needs {seq.num_blocks} blocks and nothing runs that could give some back"
            )
        first = self.running[0]
        if self.block_manager.can_append(first):
            return
        if self._frees_a_block(seq for seq in reversed(self.running) if seq is not first):
            return
        raise OutOfBlocksError(
            f"sequence {first.seq_id} of {first.num_tokens} tokens needs one more block than the pool's "
            f"{len(self.block_manager.blocks)}: raise num_kvcache_blocks or shorten it"
        )

    def _frees_a_block(self, seqs: Iterable[Sequence]) -> bool:
        """Whether some block is held by these sequences alone."""
        blocks = self.block_manager.blocks
        holders: Counter[int] = Counter()
        for seq in seqs:
            # Deepest first: the last block is hardly ever shared, so this ends at the first look.
            for block_id in reversed(seq.block_table):
                holders[block_id] += 1
                if holders[block_id] == blocks[block_id].ref_count:
                    return True
        return False
