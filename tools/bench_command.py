"""Wall time and peak memory of ``trtkv replay`` beside ``kvcache-simulator run`` on the same file, in alternate runs.

Run: ``python tools/bench_command.py TRACE [--simulator COMMAND] [--repeat 3] [--json FILE]``.
COMMAND is the ``kvcache-simulator`` of tools/requirements-kvcache-simulator.txt (by default the one on the path);
without it only ``trtkv replay`` is measured. Times include the start of the interpreter. The simulator counts blocks by
their hash ids and has neither sequences nor tokens. ``--json FILE`` appends one line.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tools.arguments import at_least, command, existing_file, output_file, run_tool

ROOT: Final = Path(__file__).resolve().parent.parent


class CommandRun(NamedTuple):
    """One run of a command."""

    wall_seconds: float
    cpu_seconds: float
    peak_mb: float


def run_command(command: Sequence[str]) -> CommandRun:
    """Run to the end, output thrown away; peak memory is that of the largest process, in 10**6 bytes."""
    start = perf_counter()
    null = os.open(os.devnull, os.O_WRONLY)
    actions = [(os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = os.posix_spawnp(command[0], command, environment, file_actions=actions)
    os.close(null)
    _, status, usage = os.wait4(process, 0)
    if status:
        raise SystemExit(
            f"{' '.join(command)} ended with status {os.waitstatus_to_exitcode(status)}; run it to see why"
        )
    kilobytes = usage.ru_maxrss
    return CommandRun(perf_counter() - start, usage.ru_utime + usage.ru_stime, kilobytes * 1024 / 1e6)


def median_run(runs: Sequence[CommandRun]) -> CommandRun:
    """Medians of equal runs."""
    return CommandRun(*(median(column) for column in zip(*runs, strict=True)))


def to_table(results: dict[str, CommandRun], title: str) -> Table:
    """A row a command; ratios against the last one."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("command", no_wrap=True)
    for column in ("wall s", "CPU s", "peak MB", "wall ratio"):
        table.add_column(column, justify="right", no_wrap=True)
    base = list(results.values())[-1]
    for name, run in results.items():
        ratio = f"{run.wall_seconds / base.wall_seconds:.2f}"
        table.add_row(name, f"{run.wall_seconds:.2f}", f"{run.cpu_seconds:.2f}", f"{run.peak_mb:.0f}", ratio)
    return table


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=existing_file)
    parser.add_argument("--block-size", type=at_least(1), default=512, help="tokens of a hash id and of a block")
    parser.add_argument("--simulator", type=command, default=shutil.which("kvcache-simulator"), metavar="COMMAND")
    parser.add_argument("--model", default="llama-3.1-8b", help="a model the simulator knows; sets bytes a token")
    parser.add_argument("--repeat", type=at_least(1), default=3)
    parser.add_argument("--json", type=output_file, metavar="FILE", help="append the numbers as one line of JSON")
    return parser.parse_args(argv)


def commands(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """What is run."""
    trace, size = str(arguments.trace), str(arguments.block_size)
    replay = [sys.executable, "-m", "trtkv", "replay", trace, "--block-size", size, "--tokens-per-block", size]
    result = {"trtkv replay": replay}
    if arguments.simulator:
        options = ["--trace", trace, "--model", arguments.model, "--block-size", size, "--no-progress"]
        result["kvcache-simulator run"] = [arguments.simulator, "run", *options]
    else:
        print("left out: kvcache-simulator: not on the path; give --simulator COMMAND", file=sys.stderr)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    arguments = parse_arguments(argv)
    runs: dict[str, list[CommandRun]] = {name: [] for name in commands(arguments)}
    for _ in range(arguments.repeat):
        for name, words in commands(arguments).items():
            runs[name].append(run_command(words))
    results = {name: median_run(entries) for name, entries in runs.items()}
    title = f"{arguments.trace.name}, {arguments.block_size} tokens a block, median of {arguments.repeat}"
    Console().print(to_table(results, title))
    if arguments.json:
        record = {"trace": arguments.trace.name, "block_size": arguments.block_size, "repeat": arguments.repeat}
        record["commands"] = {name: run._asdict() for name, run in results.items()}
        with arguments.json.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    run_tool(main)
