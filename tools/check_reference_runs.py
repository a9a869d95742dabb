"""Replays the recorded reference runs and compares every count.

Needs the folder with reference runs and public traces: --shared, TRTKV_SHARED, or ``shared`` beside the repository.
Run: ``python tools/check_reference_runs.py [--jobs 2] [--select trace=sharegpt-llama tokens_per_block=16 ...]``.
Prints a line per run; exit code 0 if all are equal, 1 if one differs, 2 if there is nothing to compare.

Replays take equal partial matches in the order of the original's hash map; where else the plain mode differs from the
original, docs/decisions says. --mode auto replays in the plain mode first, and a run that differs once more in
compatibility mode; plain and compatibility compare one of them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.arguments import at_least, existing_folder, run_tool
from trtkv.replay.closed_loop.run import replay_trace
from trtkv.replay.config import ReplayConfig
from trtkv.traces.sessions.protocol import OLD_PROTOCOL, Outputs, SessionProtocol, Sessions
from trtkv.traces.trace import RequestTrace
from trtkv.traces.trace_reader import read_trace

Run = dict[str, Any]

RUN_FILES: Final = ("reference_runs.json", "reference_runs_windows.json", "session_runs.json")
SETTINGS: Final = (
    "trace",
    "window",
    "full_attention_too",
    "tokens_per_block",
    "capacity_tokens",
    "host_tokens",
    "live",
    "partial_reuse",
    "sessions",
    "outputs",
)
COUNTS: Final = (
    "requests",
    "prompt_tokens",
    "prompt_blocks",
    "decode_calls",
    "alloc_total",
    "reused",
    "missed",
    "prepopulated_tokens",
)


FACTS: Final = ("skipped_requests", "outputs_known")
"""What runs with sessions count besides."""


class TraceSource(NamedTuple):
    """Where the trace of a reference run lies and how it is read."""

    path: str
    block_size: int | None = None
    limit: int | None = None


SOURCES: Final = {
    "conversation": TraceSource("mooncake/conversation_trace.jsonl", block_size=512),
    "conversation-2000": TraceSource("mooncake/conversation_trace.jsonl", block_size=512, limit=2000),
    "synthetic": TraceSource("mooncake/synthetic_trace.jsonl", block_size=512),
    "synthetic-1000": TraceSource("mooncake/synthetic_trace.jsonl", block_size=512, limit=1000),
    "agentic": TraceSource("agentic"),
    "sharegpt-llama": TraceSource("sharegpt/sharegpt-llama-3.1-8b-300-sps10.jsonl"),
}


def source_of(name: str) -> TraceSource:
    """Where a trace lies: one of SOURCES, or ``agentic-N``, a session of the agentic folder."""
    folder, _, number = name.partition("-")
    if folder == "agentic" and number.isdigit():
        return TraceSource(f"agentic/trace_{number}.json")
    return SOURCES[name]


class Outcome(NamedTuple):
    """A compared run."""

    run: Run
    counts: dict[str, int]
    seconds: float
    compatibility: bool

    @property
    def differences(self) -> list[str]:
        """Counts that differ, as text."""
        return [
            f"{name} expected {self.run[name]} got {self.counts[name]}"
            for name in self.counts
            if self.run[name] != self.counts[name]
        ]


def load_runs(shared: Path, selection: Sequence[str] = ()) -> list[Run]:
    """Reference runs whose settings equal every ``name=value`` of the selection (window=None: full attention)."""
    runs = [run for name in RUN_FILES for run in json.loads((shared / "reference" / name).read_text())]
    for item in selection:
        name, _, text = item.partition("=")
        if name not in SETTINGS:
            raise SystemExit(f"--select {item}: no such setting; known are {', '.join(SETTINGS)}")
        runs = [run for run in runs if str(run.get(name)).lower() == text.lower()]
    return runs


@lru_cache(maxsize=2)
def load_trace(shared: Path, name: str, protocol: SessionProtocol = OLD_PROTOCOL) -> RequestTrace:
    """The trace of that name; each process reads it once, as runs of a trace follow each other."""
    source = source_of(name)
    return read_trace(
        shared / "traces" / source.path, block_size=source.block_size, limit=source.limit, **protocol.options
    )


def protocol_of(run: Run) -> SessionProtocol:
    """Sessions and outputs of a reference run; runs that do not say ignore both."""
    return SessionProtocol(Sessions(run["sessions"]), Outputs(run["outputs"])) if "sessions" in run else OLD_PROTOCOL


def config_of(run: Run, compatibility: bool) -> ReplayConfig:
    """Settings of a reference run."""
    windows: tuple[int | None, ...] = (None,)
    if "window" in run:
        windows = (run["window"], None) if run["full_attention_too"] else (run["window"],)
    names = ("tokens_per_block", "capacity_tokens", "host_tokens", "live", "partial_reuse")
    settings = {name: run[name] for name in names}
    if settings["capacity_tokens"] == "inf":
        settings["capacity_tokens"] = None
    return ReplayConfig(**settings, windows=windows, compatibility=compatibility)


def compare(run: Run, shared: Path, compatibility: bool) -> Outcome:
    """Replay one run in one mode."""
    trace = load_trace(shared, run["trace"], protocol_of(run))
    start = perf_counter()
    report = replay_trace(trace, config_of(run, compatibility))[0].to_json()
    counts = {name: int(str(report[name])) for name in (*COUNTS, *FACTS) if name in run}
    seconds = perf_counter() - start
    gc.collect()  # the manager of this run is a cycle
    return Outcome(run, counts, seconds, compatibility)


def outcomes_of(run: Run, shared: Path, mode: str) -> list[Outcome]:
    """What was compared for one run; the last entry decides."""
    outcomes = [compare(run, shared, compatibility=mode == "compatibility")]
    if mode == "auto" and outcomes[0].differences:
        outcomes.append(compare(run, shared, compatibility=True))
    return outcomes


def compare_all(runs: Iterable[Run], shared: Path, jobs: int, mode: str) -> Iterator[list[Outcome]]:
    """Outcomes of each run, in the order of the runs."""
    work = partial(outcomes_of, shared=shared, mode=mode)
    if jobs == 1:
        yield from map(work, runs)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(work, runs)


def describe(outcomes: Sequence[Outcome]) -> str:
    """One line: settings, then for each mode seconds and what differs."""
    run = outcomes[0].run
    parts = [" ".join(f"{name}={run[name]}" for name in SETTINGS if name in run)]
    for outcome in outcomes:
        mode = "compatibility" if outcome.compatibility else "plain"
        parts.append(f"{mode} {outcome.seconds:.1f} s: {'; '.join(outcome.differences) or 'equal'}")
    return "  ".join(parts)


def main() -> int:
    """Parse arguments, compare, print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=existing_folder, help="folder with reference/ and traces/")
    parser.add_argument("--jobs", type=at_least(1), default=1, help="processes")
    parser.add_argument("--select", nargs="*", default=[], metavar="NAME=VALUE", help="only runs with these settings")
    parser.add_argument("--mode", choices=("auto", "plain", "compatibility"), default="auto")
    arguments = parser.parse_args()
    default = Path(__file__).resolve().parent.parent.parent / "shared"
    shared = (arguments.shared or Path(os.environ.get("TRTKV_SHARED") or default)).resolve()
    if not shared.is_dir():
        parser.error(f"no folder {shared}; name it with --shared")
    runs = load_runs(shared, arguments.select)
    if not runs:
        parser.error("the selection leaves no run")
    gc.disable()  # as trtkv replay does: there is nothing for it to find, and it would walk all cached blocks
    num_different = num_compatibility = 0
    for outcomes in compare_all(runs, shared, arguments.jobs, arguments.mode):
        print(describe(outcomes), flush=True)
        num_different += bool(outcomes[-1].differences)
        num_compatibility += len(outcomes) > 1
    num_sessions = sum("sessions" in run for run in runs)
    compared = f"{len(runs)} runs, {num_sessions} of them with sessions"
    print(f"{compared}: {num_different} different, {num_compatibility} compared in compatibility mode as well")
    return 1 if num_different else 0


if __name__ == "__main__":
    run_tool(main)
