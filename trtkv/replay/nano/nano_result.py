"""NanoResult: what a replay on nano-vllm's block manager counted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import fsum
from typing import TYPE_CHECKING, Any, Final

from trtkv.common import ceil_div
from trtkv.records.rate import Rate
from trtkv.replay import topics
from trtkv.replay.closed_loop.outcome import Outcome, describe_smallest
from trtkv.replay.closed_loop.result import MEAN_REQUEST_HIT_RATE, TOKEN_HIT_RATE, ZERO_HIT_SHARE
from trtkv.tables.table import Table, fact_table, rates_table
from trtkv.tables.wording import FULL, count, limit

if TYPE_CHECKING:
    from trtkv.replay.bounds.bounds import Bounds
    from trtkv.replay.closed_loop.closed_loop import PhaseSeconds
    from trtkv.traces.trace import RequestTrace

SYSTEM_NAME: Final = "nano"

BLOCK_HIT_RATE: Final = (
    "full prompt blocks found in the cache / prompt blocks, the last one never found; of all requests run"
)


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
    def missed_blocks(self) -> int:
        """Prompt blocks but those found."""
        return self.prompt_blocks - self.hit_blocks

    @property
    def rates(self) -> list[Rate]:
        """All rates, each with its definition."""
        return [
            Rate("block_hit_rate", BLOCK_HIT_RATE, self.hit_blocks, self.prompt_blocks),
            Rate("token_hit_rate", TOKEN_HIT_RATE, self.hit_tokens, self.prompt_tokens),
            Rate("mean_request_hit_rate", MEAN_REQUEST_HIT_RATE, fsum(self.token_hit_rates), self.requests),
            Rate("zero_hit_share", ZERO_HIT_SHARE, self.zero_hit_requests, self.requests),
        ]


@dataclass(frozen=True, slots=True, repr=False)
class NanoResult(Outcome):
    """Counts of a finished replay; nano-vllm has one tier, full attention and whole blocks."""

    trace: RequestTrace
    loop: str
    """``closed`` or ``scheduler``."""
    tokens_per_block: int
    capacity_tokens: int | None
    live: int
    counts: NanoCounts
    seconds: PhaseSeconds | None = None
    """Time of each kind of call, if there was a timer."""
    bounds: Bounds | None = None

    @property
    def num_run(self) -> int:
        """Requests run."""
        return self.counts.requests

    @property
    def num_never_run(self) -> int:
        """Requests that the pool cannot hold."""
        return self.counts.skipped_requests

    def why_never_run(self) -> str:
        """What the smallest request needs, and what there is."""
        reserves = self.loop == "closed"
        return describe_smallest(self.trace, self.tokens_per_block, self.capacity_tokens, reserves=reserves)

    @property
    def rates(self) -> list[Rate]:
        """All rates, each with its definition."""
        return self.counts.rates

    def to_json(self) -> dict[str, object]:
        """The columns of TensorRT-LLM's result, then what nano-vllm alone has, then rates and bounds."""
        trace, counts = self.trace, self.counts
        return {
            "trace": trace.name,
            "tokens_per_block": self.tokens_per_block,
            "capacity_tokens": "inf" if self.capacity_tokens is None else self.capacity_tokens,
            "host_tokens": 0,
            "live": self.live,
            "partial_reuse": False,
            "requests": counts.requests,
            "prompt_tokens": counts.prompt_tokens,
            "prompt_blocks": counts.prompt_blocks,
            "decode_calls": counts.decode_calls,
            "alloc_total": counts.alloc_total,
            "reused": counts.hit_blocks,
            "missed": counts.missed_blocks,
            "prepopulated_tokens": counts.hit_tokens,
            "system": SYSTEM_NAME,
            "format": trace.format,
            "block_size": trace.block_size,
            "trace_requests": len(trace.requests),
            **trace.sessions.to_json(),
            "skipped_requests": counts.skipped_requests,
            "malformed_rows": len(trace.faults),
            "zero_hit_requests": counts.zero_hit_requests,
            "attention_windows": [FULL],
            "loop": self.loop,
            "preemptions": counts.preemptions,
            "recomputed_tokens": counts.recomputed_tokens,
            "recovered_tokens": counts.recovered_tokens,
            "rates": [rate.to_json() for rate in self.rates],
            **({} if self.seconds is None else {"seconds": asdict(self.seconds)}),
            **({} if self.bounds is None else {"bounds": self.bounds.to_json()}),
        }

    def tables(self) -> list[Table]:
        """Settings and counts, rates, and bounds if there are any."""
        tables = [self._overview(), rates_table("Rates", self.rates, topic=topics.RATES)]
        if self.bounds is not None:
            tables.append(self.bounds.table(next(rate for rate in self.rates if rate.name == "token_hit_rate")))
        return tables

    def notes(self) -> list[str]:
        """Requests and rows left out."""
        skipped = self.counts.skipped_requests
        told = [f"{count(skipped)} requests do not fit into the pool and were never run; no count includes them."]
        return [*(told if skipped else []), *self.trace.notes()]

    def _overview(self) -> Table:
        counts = self.counts
        return fact_table(
            f"Replay of {self.trace.name} on nano-vllm",
            {
                "format": self.trace.format,
                "loop": self.loop,
                "tokens per block": self.tokens_per_block,
                "capacity, tokens": limit(self.capacity_tokens),
                "live requests, at most": self.live,
            },
            {
                "requests run": counts.requests,
                "requests never run": counts.skipped_requests,
                "malformed rows skipped": len(self.trace.faults),
                "prompt tokens": counts.prompt_tokens,
                "prompt tokens found in the cache": counts.hit_tokens,
                "prompt blocks": counts.prompt_blocks,
                "full blocks reused": counts.hit_blocks,
                "blocks missed": counts.missed_blocks,
                "blocks allocated": counts.alloc_total,
                "decoded tokens": counts.decode_calls,
                "preemptions": counts.preemptions,
                "tokens found again after a preemption": counts.recovered_tokens,
                "tokens computed again after a preemption": counts.recomputed_tokens,
            },
            topic=topics.RUN,
        )
