"""Runs a trace through the scheduler loop under each policy and checks the runs.

For every policy: (1) the whole trace; every request must finish or be refused, and all blocks must be free at the end;
(2) the first --checked requests, with every invariant of the manager checked after each step; (3) the first --recorded
requests once more as a recorded program, which must give the same report and verify without a mismatch.
Run: ``python tools/check_scheduler_runs.py conversation_trace.jsonl --block-size 512``. A number of 0 leaves a part
out. Prints a line per part; exit code 0 if all is well, 1 if not.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.arguments import at_least, run_tool
from trtkv.errors import TrtkvError
from trtkv.inspection.invariants import check_invariants
from trtkv.replay.config import ReplayConfig
from trtkv.replay.scheduler_loop.arrival_queue import ArrivalMode
from trtkv.replay.scheduler_loop.loop_config import LoopConfig
from trtkv.replay.scheduler_loop.loop_result import LoopResult
from trtkv.replay.scheduler_loop.run import replay_with_scheduler
from trtkv.replay.scheduler_loop.scheduler_loop import SchedulerLoop
from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy, ChunkingPolicy, ContextChunkingConfig
from trtkv.traces.sessions.protocol import OLD_PROTOCOL
from trtkv.traces.trace import RequestTrace
from trtkv.traces.trace_reader import read_trace
from trtkv.verify.recorded_loop import RecordingBackend
from trtkv.verify.runner import verify_program


class Outcome(NamedTuple):
    """What a part of the check found: figures for the line, and complaints."""

    text: str
    complaints: list[str]


class Checker:
    """Runs of one trace; ``make_config`` gives the settings of a policy."""

    def __init__(self, trace: RequestTrace, make_config: Callable[[CapacitySchedulerPolicy], LoopConfig]) -> None:
        self._trace = trace
        self._make_config = make_config
        self._seconds_per_unit = trace.seconds_per_unit

    def run_whole(self, policy: CapacitySchedulerPolicy, num_requests: int) -> Outcome:
        """The first requests, and what became of them."""
        trace = self._first(num_requests)
        start = perf_counter()
        result = replay_with_scheduler(trace, self._make_config(policy), seconds_per_unit=self._seconds_per_unit)
        return Outcome(f"{describe(result)}, {perf_counter() - start:.0f} s", find_complaints(result))

    def run_checked(self, policy: CapacitySchedulerPolicy, num_requests: int) -> Outcome:
        """The first requests, with the invariants checked after each step."""
        trace = self._first(num_requests)
        num_checks = 0

        def check(loop: SchedulerLoop) -> None:
            nonlocal num_checks
            num_checks += 1
            check_invariants(loop.manager, {request.request_id: request for request in loop.active_requests})

        config = self._make_config(policy)
        result = replay_with_scheduler(trace, config, seconds_per_unit=self._seconds_per_unit, after_step=check)
        return Outcome(f"{describe(result)}, invariants checked {num_checks} times", find_complaints(result))

    def run_recorded(self, policy: CapacitySchedulerPolicy, num_requests: int) -> Outcome:
        """The first requests, plain and recorded, and the recording verified."""
        trace, config = self._first(num_requests), self._make_config(policy)
        plain = replay_with_scheduler(trace, config, seconds_per_unit=self._seconds_per_unit)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.jsonl"
            with path.open("w", encoding="ascii") as stream:
                backend = RecordingBackend(config, trace.requests, stream)
                recorded = replay_with_scheduler(
                    trace, config, seconds_per_unit=self._seconds_per_unit, backend=backend
                )
            size = path.stat().st_size
            verified = verify_program(path)
        complaints = find_complaints(recorded)
        if plain.to_json() != recorded.to_json():
            complaints.append("the recorded run differs from the plain one")
        if verified.num_mismatches or verified.num_unsupported:
            complaints.append(f"{verified.num_mismatches} mismatches, {verified.num_unsupported} unsupported")
        text = (
            f"{describe(recorded)}, {verified.num_ops} ops in {size / 1e6:.0f} MB, {verified.num_mismatches} mismatches"
        )
        return Outcome(text, complaints)

    def _first(self, num_requests: int) -> RequestTrace:
        return replace(self._trace, requests=self._trace.requests[:num_requests])


def describe(result: LoopResult) -> str:
    """The figures of a run in one line."""
    counts = result.counts
    rates = {rate.name: rate.value or 0.0 for rate in result.rates}
    return (
        f"{counts.finished_requests} finished, {len(counts.refusals)} refused, {counts.steps} steps, "
        f"{counts.end_ns / 1e9:.1f} virtual s, {counts.generated_tokens} tokens, {counts.pauses} pauses, "
        f"{counts.deferrals} deferrals, {counts.withdrawals} withdrawals, "
        f"token hit rate {100 * rates['token_hit_rate']:.3f} %, "
        f"found again {counts.recompute.found_tokens} of {counts.recompute.prompt_tokens} tokens, "
        f"block utilisation {100 * rates['block_utilisation']:.1f} %"
    )


def find_complaints(result: LoopResult) -> list[str]:
    """Requests without an end, tokens that are missing, blocks that stay in use."""
    counts = result.counts
    complaints = [
        f"request {record.request_id} has generated {record.generated_tokens} of {record.output_tokens} tokens"
        for record in result.records
        if record.finished_ns is None or record.generated_tokens != record.output_tokens
    ]
    if counts.finished_requests + len(counts.refusals) != len(result.trace.requests):
        complaints.append(f"{len(result.trace.requests)} requests in the trace, others finished or were refused")
    if result.stats.used_num_blocks:
        complaints.append(f"{result.stats.used_num_blocks} blocks are in use at the end")
    return complaints


def run_parts(checker: Checker, options: argparse.Namespace, num_requests: int) -> Iterator[tuple[str, Outcome]]:
    """Every part of every policy; an error of the program is a complaint."""
    parts = (
        ("whole", checker.run_whole, num_requests if options.whole is None else options.whole),
        ("recorded", checker.run_recorded, options.recorded),
        ("checked", checker.run_checked, options.checked),
    )
    for name, run, count in parts:
        for policy in options.policy if count else ():
            try:
                outcome = run(CapacitySchedulerPolicy(policy), min(count, num_requests))
            except TrtkvError as error:
                outcome = Outcome("stopped", [f"{type(error).__name__}: {error}"])
            yield f"{policy} {name}", outcome


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("--block-size", type=at_least(1))
    parser.add_argument("--tokens-per-block", type=at_least(1), default=64)
    parser.add_argument("--capacity-tokens", type=at_least(1), default=3_000_000)
    parser.add_argument("--max-batch-size", type=at_least(1), default=256)
    parser.add_argument("--max-num-tokens", type=at_least(1), default=8192)
    parser.add_argument("--arrivals", choices=[mode.value for mode in ArrivalMode], default="asap")
    policies = [policy.value for policy in CapacitySchedulerPolicy]
    parser.add_argument("--policy", nargs="*", choices=policies, default=policies)
    parser.add_argument("--whole", type=at_least(0), metavar="N", help="requests of part 1 (default: all)")
    parser.add_argument(
        "--checked", type=at_least(0), metavar="N", default=500, help="requests of part 2 (default: 500)"
    )
    parser.add_argument(
        "--recorded", type=at_least(0), metavar="N", default=60, help="requests of part 3 (default: 60)"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts; the exit code."""
    options = parse_options(arguments)
    trace = read_trace(options.trace, block_size=options.block_size, **OLD_PROTOCOL.options)
    gc.disable()  # there is no cyclic garbage, and a collection would walk all cached blocks

    def make_config(policy: CapacitySchedulerPolicy) -> LoopConfig:
        return LoopConfig(
            ReplayConfig(options.tokens_per_block, options.capacity_tokens),
            policy,
            options.max_batch_size,
            options.max_num_tokens,
            ContextChunkingConfig(ChunkingPolicy.FIRST_COME_FIRST_SERVED, options.tokens_per_block),
            ArrivalMode(options.arrivals),
        )

    has_failed = False
    for name, outcome in run_parts(Checker(trace, make_config), options, len(trace.requests)):
        print(f"{name}: {outcome.text}", flush=True)
        for complaint in outcome.complaints:
            print(f"  FAILED: {complaint}", flush=True)
        has_failed |= bool(outcome.complaints)
    return int(has_failed)


if __name__ == "__main__":
    run_tool(main)
