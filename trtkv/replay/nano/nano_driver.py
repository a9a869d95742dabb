"""Replays a trace on nano-vllm's block manager, in the closed loop, or on its scheduler, which preempts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import fsum
from typing import TYPE_CHECKING, Any, Final

from trtkv.checks import check_count, check_integer
from trtkv.common import ceil_div
from trtkv.errors import ConfigurationError, check
from trtkv.nano import BlockManager, SamplingParams, Scheduler, SchedulerConfig, Sequence
from trtkv.records.rate import Rate
from trtkv.replay.closed_loop import PhaseSeconds, Progress, Timer
from trtkv.replay.result import MEAN_REQUEST_HIT_RATE, TOKEN_HIT_RATE, ZERO_HIT_SHARE
from trtkv.replay.schedule import Admit, Decode, Release, Skip, closed_loop_events, num_pool_blocks
from trtkv.traces.outputs import generated_tokens

if TYPE_CHECKING:
    from trtkv.traces.trace import TraceRequest

SYSTEM_NAME: Final = "nano"
DEFAULT_BATCHED_TOKENS: Final = 16384

BLOCK_HIT_RATE: Final = (
    "full prompt blocks found in the cache / prompt blocks, the last one never found; of all requests run"
)

MakeManager = Callable[[int, int], Any]
"""Blocks and tokens per block -> block manager."""
MakeSequence = Callable[["TraceRequest", int], Any]
"""Request and tokens per block -> sequence."""


@dataclass(slots=True)
class NanoCounts:
    """What a replay counts; recomputation after a preemption is kept apart from prompts."""

    requests: int = 0
    skipped_requests: int = 0
    prompt_tokens: int = 0
    prompt_blocks: int = 0
    hit_tokens: int = 0
    hit_blocks: int = 0
    zero_hit_requests: int = 0
    decode_calls: int = 0
    alloc_total: int = 0
    """Blocks taken from the free queue as empty ones."""
    preemptions: int = 0
    recomputed_tokens: int = 0
    """Tokens of preempted sequences that had to be computed again."""
    recovered_tokens: int = 0
    """Tokens of preempted sequences that were found in the cache."""
    steps: int = 0
    token_hit_rates: list[float] = field(default_factory=list)

    def admit(self, seq: Any) -> None:
        """Count a prompt, right after it got its blocks."""
        num_tokens, num_found = seq.num_prompt_tokens, seq.num_cached_tokens
        num_found_blocks = num_found // seq.block_size
        self.requests += 1
        self.prompt_tokens += num_tokens
        self.prompt_blocks += ceil_div(num_tokens, seq.block_size)
        self.hit_tokens += num_found
        self.hit_blocks += num_found_blocks
        self.zero_hit_requests += num_found == 0
        self.token_hit_rates.append(num_found / num_tokens)
        self.alloc_total += len(seq.block_table) - num_found_blocks

    @property
    def rates(self) -> list[Rate]:
        """All rates, each with its definition."""
        return [
            Rate("block_hit_rate", BLOCK_HIT_RATE, self.hit_blocks, self.prompt_blocks),
            Rate("token_hit_rate", TOKEN_HIT_RATE, self.hit_tokens, self.prompt_tokens),
            Rate("mean_request_hit_rate", MEAN_REQUEST_HIT_RATE, fsum(self.token_hit_rates), self.requests),
            Rate("zero_hit_share", ZERO_HIT_SHARE, self.zero_hit_requests, self.requests),
        ]


def make_sequence(request: TraceRequest, tokens_per_block: int) -> Sequence:
    """The sequence of a trace request; its end is decided by its length alone."""
    params = SamplingParams(max_tokens=max(1, request.output_length), ignore_eos=True)
    return Sequence(request.tokens(), params, block_size=tokens_per_block, seq_id=request.index)


def run_nano(
    trace_requests: Iterable[TraceRequest],
    *,
    tokens_per_block: int,
    capacity_tokens: int | None,
    live: int,
    timer: Timer | None = None,
    progress: Progress | None = None,
    make_manager: MakeManager = BlockManager,
    make_sequence: MakeSequence = make_sequence,
) -> dict[str, object]:
    """Replay requests in the closed loop and return counts and rates in a fixed order.

    Prompts admitted together are allocated one after the other and registered after all of them, as in one prefill
    step. The first generated token comes out of prefill; each later one is computed in the round after it was made, so
    the last one is never stored. ``timer`` adds the seconds of each kind of call, ``progress`` is called with the
    number of requests done.
    """
    requests = list(trace_requests)
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
    result = _report(loop.counts, "closed", tokens_per_block, capacity_tokens, live)
    if timer is not None:
        seconds = loop.seconds
        result["seconds"] = {
            "add": seconds.add,
            "store": seconds.store,
            "decode": seconds.decode,
            "remove": seconds.remove,
        }
    return result


def run_nano_scheduler(
    trace_requests: Iterable[TraceRequest],
    *,
    tokens_per_block: int,
    capacity_tokens: int | None,
    live: int,
    max_num_batched_tokens: int = DEFAULT_BATCHED_TOKENS,
    progress: Progress | None = None,
) -> dict[str, object]:
    """Replay requests through nano-vllm's own scheduler, with at most ``live`` of them waiting or running.

    Nothing is reserved: sequences are preempted when blocks run out, and what is found or computed again after that is
    counted apart. Requests that the whole pool could not hold to their end are skipped.
    """
    requests = list(trace_requests)
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
    waiting = _fitting(requests, num_blocks * tokens_per_block, counts)
    loop = _SchedulerLoop(scheduler, counts)
    while loop.fill(waiting, live):
        loop.step()
        if progress is not None:
            progress(counts.requests + counts.skipped_requests - len(loop.tokens))
    return _report(counts, "scheduler", tokens_per_block, capacity_tokens, live)


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
            tokens = iter(generated_tokens(request.index, request.output_length).tolist())
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

    def __init__(self, scheduler: Scheduler, counts: NanoCounts) -> None:
        self.scheduler = scheduler
        self.counts = counts
        self.tokens: dict[int, Iterator[int]] = {}
        """Sequence id -> tokens it has still to generate."""
        self._admitted: set[int] = set()
        self._preempted: set[int] = set()

    def fill(self, waiting: Iterator[TraceRequest], live: int) -> bool:
        """Top up to ``live`` sequences; False when none is left."""
        while len(self.tokens) < live:
            request = next(waiting, None)
            if request is None:
                break
            self.tokens[request.index] = iter(generated_tokens(request.index, request.output_length).tolist())
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


def _fitting(requests: Iterable[TraceRequest], capacity: int, counts: NanoCounts) -> Iterator[TraceRequest]:
    """Requests that the pool can hold to their end; the last generated token needs no room."""
    for request in requests:
        if request.input_length + max(1, request.output_length) - 1 <= capacity:
            yield request
        else:
            counts.skipped_requests += 1


def _report(
    counts: NanoCounts, loop: str, tokens_per_block: int, capacity_tokens: int | None, live: int
) -> dict[str, object]:
    return {
        "system": SYSTEM_NAME,
        "loop": loop,
        "tokens_per_block": tokens_per_block,
        "capacity_tokens": "inf" if capacity_tokens is None else capacity_tokens,
        "live": live,
        "requests": counts.requests,
        "skipped_requests": counts.skipped_requests,
        "prompt_tokens": counts.prompt_tokens,
        "prompt_blocks": counts.prompt_blocks,
        "decode_calls": counts.decode_calls,
        "alloc_total": counts.alloc_total,
        "reused": counts.hit_blocks,
        "missed": counts.prompt_blocks - counts.hit_blocks,
        "prepopulated_tokens": counts.hit_tokens,
        "zero_hit_requests": counts.zero_hit_requests,
        "preemptions": counts.preemptions,
        "recomputed_tokens": counts.recomputed_tokens,
        "recovered_tokens": counts.recovered_tokens,
        "rates": [rate.to_json() for rate in counts.rates],
    }


def _num_blocks(requests: list[TraceRequest], tokens_per_block: int, capacity_tokens: int | None) -> int:
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
