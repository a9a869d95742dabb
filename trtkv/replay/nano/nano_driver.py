"""Replays a trace on nano-vllm's block manager, in the closed loop, or on its scheduler, which preempts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from trtkv.checks import check_count, check_integer
from trtkv.errors import ConfigurationError, InvalidInputError, check
from trtkv.nano import BlockManager, SamplingParams, Scheduler, SchedulerConfig, Sequence
from trtkv.replay.closed_loop.closed_loop import PhaseSeconds, Progress, Timer
from trtkv.replay.eligible_requests import EligibleRequests
from trtkv.replay.nano.nano_result import NanoCounts, NanoResult
from trtkv.replay.schedule import Admit, Decode, Release, Skip, closed_loop_events, num_pool_blocks
from trtkv.traces.outputs import output_tokens

if TYPE_CHECKING:
    from trtkv.traces.trace import RequestTrace, TraceRequest

DEFAULT_BATCHED_TOKENS: Final = 16384

MakeManager = Callable[[int, int], Any]
"""Blocks and tokens per block -> block manager."""
MakeSequence = Callable[["TraceRequest", int], Any]
"""Request and tokens per block -> sequence."""


def make_sequence(request: TraceRequest, tokens_per_block: int) -> Sequence:
    """The sequence of a trace request; its end is decided by its length alone."""
    params = SamplingParams(max_tokens=max(1, request.output_length), ignore_eos=True)
    return Sequence(request.tokens(), params, block_size=tokens_per_block, seq_id=request.index)


def run_nano(
    trace: RequestTrace,
    *,
    tokens_per_block: int,
    capacity_tokens: int | None,
    live: int,
    timer: Timer | None = None,
    progress: Progress | None = None,
    make_manager: MakeManager = BlockManager,
    make_sequence: MakeSequence = make_sequence,
) -> NanoResult:
    """Replay a trace in the closed loop.

    Prompts admitted together are allocated one after the other and registered after all of them, as in one prefill
    step. The first generated token comes out of prefill; each later one is computed in the round after it was made, so
    the last one is never stored. ``timer`` adds the seconds of each kind of call, ``progress`` is called with the
    number of requests done.
    """
    requests = trace.requests
    refuse_constraints(requests)
    num_blocks = _num_blocks(requests, tokens_per_block, capacity_tokens)
    loop = _ClosedLoop(make_manager(num_blocks, tokens_per_block), timer or _no_time)
    for event in closed_loop_events(requests, tokens_per_block=tokens_per_block, num_blocks=num_blocks, live=live):
        if isinstance(event, Admit):
            loop.admit([make_sequence(request, tokens_per_block) for request in event.requests], event.requests)
        elif isinstance(event, Decode):
            loop.decode(event.num_rounds)
        elif isinstance(event, Release):
            loop.release(event.requests)
        elif isinstance(event, Skip):
            loop.counts.skipped_requests += 1
        if progress is not None:
            progress(loop.counts.requests + loop.counts.skipped_requests - len(loop.live))
    seconds = None if timer is None else loop.seconds
    return NanoResult(trace, "closed", tokens_per_block, capacity_tokens, live, loop.counts, seconds)


def run_nano_scheduler(
    trace: RequestTrace,
    *,
    tokens_per_block: int,
    capacity_tokens: int | None,
    live: int,
    max_num_batched_tokens: int = DEFAULT_BATCHED_TOKENS,
    progress: Progress | None = None,
) -> NanoResult:
    """Replay a trace through nano-vllm's own scheduler, with at most ``live`` of them waiting or running.

    Nothing is reserved: sequences are preempted when blocks run out, and what is found or computed again after that is
    counted apart. Requests that the whole pool could not hold to their end are skipped.
    """
    requests = trace.requests
    refuse_constraints(requests)
    num_blocks = _num_blocks(requests, tokens_per_block, capacity_tokens)
    scheduler = Scheduler(
        SchedulerConfig(
            num_kvcache_blocks=num_blocks,
            kvcache_block_size=tokens_per_block,
            max_num_seqs=live,
            max_num_batched_tokens=max_num_batched_tokens,
        )
    )
    counts = NanoCounts()
    waiting = _Waiting(requests, num_blocks * tokens_per_block, counts)
    loop = _SchedulerLoop(scheduler, counts, waiting)
    while loop.fill(live):
        loop.step()
        if progress is not None:
            progress(counts.requests + counts.skipped_requests - len(loop.tokens))
    return NanoResult(trace, "scheduler", tokens_per_block, capacity_tokens, live, counts)


class _ClosedLoop:
    """Calls of the manager for each event, in the order of admission."""

    def __init__(self, manager: Any, timer: Timer) -> None:
        self.counts = NanoCounts()
        self.seconds = PhaseSeconds()
        self.live: dict[int, tuple[Any, Iterator[int]]] = {}
        """Request index -> sequence and the tokens it has still to generate, in order of admission."""
        self._manager = manager
        self._timer = timer

    def admit(self, sequences: list[Any], requests: list[TraceRequest]) -> None:
        manager, timer, seconds = self._manager, self._timer, self.seconds
        start = timer()
        for seq in sequences:
            num_cached_blocks = manager.can_allocate(seq)
            check(num_cached_blocks >= 0, "a request with reserved blocks does not fit")
            manager.allocate(seq, num_cached_blocks)
        middle = timer()
        seconds.add += middle - start
        for seq in sequences:
            self.counts.admit(seq)
        middle = timer()
        for seq in sequences:
            seq.num_scheduled_tokens = seq.num_tokens - seq.num_cached_tokens
            manager.hash_blocks(seq)
            seq.num_cached_tokens += seq.num_scheduled_tokens
            seq.num_scheduled_tokens = 0
        seconds.store += timer() - middle
        for seq, request in zip(sequences, requests, strict=True):
            tokens = iter(output_tokens(request).tolist())
            self.live[request.index] = (seq, tokens)

    def decode(self, num_rounds: int) -> None:
        manager, live = self._manager, list(self.live.values())
        num_blocks = sum(len(seq.block_table) for seq, _ in live)
        start = self._timer()
        for _ in range(num_rounds):
            for seq, tokens in live:
                if seq.num_cached_tokens < seq.num_tokens:
                    manager.may_append(seq)
                    seq.num_scheduled_tokens = 1
                    manager.hash_blocks(seq)
                    seq.num_cached_tokens += 1
                    seq.num_scheduled_tokens = 0
                seq.append_token(next(tokens))
        self.seconds.decode += self._timer() - start
        self.counts.decode_calls += num_rounds * len(live)
        self.counts.alloc_total += sum(len(seq.block_table) for seq, _ in live) - num_blocks

    def release(self, requests: list[TraceRequest]) -> None:
        start = self._timer()
        for request in requests:
            seq, _ = self.live.pop(request.index)
            self._manager.deallocate(seq)
        self.seconds.remove += self._timer() - start


class _SchedulerLoop:
    """Steps of the scheduler, with a look at each sequence between scheduling and accounting."""

    def __init__(self, scheduler: Scheduler, counts: NanoCounts, waiting: _Waiting) -> None:
        self.scheduler = scheduler
        self._waiting = waiting
        self.counts = counts
        self.tokens: dict[int, Iterator[int]] = {}
        """Sequence id -> tokens it has still to generate."""
        self._admitted: set[int] = set()
        self._preempted: set[int] = set()

    def fill(self, live: int) -> bool:
        """Top up to ``live`` sequences; False when none is left."""
        while len(self.tokens) < live:
            request = self._waiting.take()
            if request is None:
                break
            self.tokens[request.index] = iter(output_tokens(request).tolist())
            self.scheduler.add(make_sequence(request, self.scheduler.block_size))
        return bool(self.tokens)

    def step(self) -> None:
        running = {seq.seq_id for seq in self.scheduler.running}
        blocks_held = {seq.seq_id: len(seq.block_table) for seq in self.scheduler.running}
        seqs, is_prefill = self.scheduler.schedule()
        for seq in seqs if is_prefill else ():
            self._count_prefill(seq)
        if not is_prefill:
            self._count_decode(seqs, running, blocks_held)
        self.counts.steps += 1
        sampled = [0 if self._is_cut(seq, is_prefill) else next(self.tokens[seq.seq_id]) for seq in seqs]
        self.scheduler.postprocess(seqs, sampled, is_prefill)
        for seq in seqs:
            if seq.is_finished:
                del self.tokens[seq.seq_id]
                self._admitted.discard(seq.seq_id)
                self._waiting.set_over(seq.seq_id)

    def _count_prefill(self, seq: Sequence) -> None:
        if seq.seq_id not in self._admitted:
            self._admitted.add(seq.seq_id)
            self.counts.admit(seq)
        elif seq.seq_id in self._preempted:
            self._preempted.remove(seq.seq_id)
            num_found_blocks = seq.num_cached_tokens // seq.block_size
            self.counts.recovered_tokens += seq.num_cached_tokens
            self.counts.recomputed_tokens += seq.num_tokens - seq.num_cached_tokens
            self.counts.alloc_total += len(seq.block_table) - num_found_blocks

    def _count_decode(self, seqs: list[Sequence], running: set[int], blocks_held: dict[int, int]) -> None:
        self.counts.decode_calls += len(seqs)
        self.counts.alloc_total += sum(len(seq.block_table) - blocks_held[seq.seq_id] for seq in seqs)
        preempted = running - {seq.seq_id for seq in self.scheduler.running}
        self.counts.preemptions += len(preempted)
        self._preempted |= preempted

    @staticmethod
    def _is_cut(seq: Sequence, is_prefill: bool) -> bool:
        return is_prefill and seq.num_cached_tokens + seq.num_scheduled_tokens < seq.num_tokens


class _Waiting:
    """Requests that may start, but not those that the pool could not hold to their last token but one."""

    def __init__(self, requests: Iterable[TraceRequest], capacity: int, counts: NanoCounts) -> None:
        self._requests = {request.index: request for request in requests}
        self._eligible = EligibleRequests(self._requests.values())
        self._capacity = capacity
        self._counts = counts

    def take(self) -> TraceRequest | None:
        """The next request; None if none may start now."""
        while (request := self._eligible.head) is not None:
            self._eligible.take()
            if request.input_length + max(1, request.output_length) - 1 <= self._capacity:
                return request
            self._counts.skipped_requests += 1
            self._eligible.set_over(request)
        return None

    def set_over(self, index: int) -> None:
        """A request is done."""
        self._eligible.set_over(self._requests[index])


def refuse_constraints(requests: Iterable[TraceRequest]) -> None:
    """Raise InvalidInputError for a request with a salt or an adapter, which nano-vllm's hashes do not know."""
    for request in requests:
        if request.constraints is not None:
            constraints = request.constraints._asdict().items()
            given = ", ".join(f"{name} {value!r}" for name, value in constraints if value is not None)
            raise InvalidInputError(
                f"request {request.index} has {given}, which nano-vllm's keys do not hold: it would share blocks with "
                "others; replay the trace with --system tensorrt-llm"
            )


def _num_blocks(requests: Iterable[TraceRequest], tokens_per_block: int, capacity_tokens: int | None) -> int:
    check_count("tokens_per_block", tokens_per_block, 1, error=ConfigurationError)
    if capacity_tokens is not None:
        check_integer("capacity_tokens", capacity_tokens, error=ConfigurationError)
    num_blocks = num_pool_blocks(requests, tokens_per_block, capacity_tokens)
    if num_blocks < 1:
        raise ConfigurationError(
            f"a capacity of {capacity_tokens} tokens holds no block of {tokens_per_block} tokens: give room for one"
        )
    return num_blocks


def _no_time() -> float:
    return 0.0
