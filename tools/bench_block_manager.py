"""The block manager beside vLLM's, SGLang's and nano-vllm's, on the same work, in one run and one table.

Run: ``python tools/bench_block_manager.py [--peers FOLDER] [--trace FILE] [--repeat 3] [--only GROUP] [--json FILE]``.

FOLDER (or the environment variable TRTKV_PEERS) is laid out as tools/requirements-peers.txt says; a system that is not
there is left out with a note. Every measurement is a process of its own with the interpreter of its system
(``--vllm-python`` and so on); systems take turns, and medians over ``--repeat`` turns are shown, in microseconds.
``ratio`` is this project's time divided by that of the row's system for the same work, for a manager with default
settings (``def``), one with preallocated block objects (``pre``) and one whose keys are digests (``dig``); in rows
about growth, the row divided by the first of its group. Bytes are those of a block at rest, of a cached token beyond
that, and of a cached token in a full pool, block objects included. ``--clock cpu`` (the default) counts CPU time, which
a busy machine disturbs less; ``wall`` the clock on the wall. ``--json FILE`` appends one line, so that a file holds a
history.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tools.arguments import at_least, existing_file, existing_folder, output_file, run_tool
from tools.bench_peers.tokens import read_rows

ROOT: Final = Path(__file__).resolve().parent.parent
WORKER: Final = Path(__file__).resolve().parent / "bench_peers" / "measure.py"
PHASES: Final = ("add", "store", "decode", "remove")
PROMPT_PHASES: Final = ("add", "store", "remove")
BYTES: Final = ("bytes_per_block", "bytes_per_cached_token", "bytes_per_token_of_full_pool")


class Subject(NamedTuple):
    """A system in one of its variants."""

    system: str
    variant: str

    @property
    def name(self) -> str:
        """As the table shows it."""
        return f"{self.system} {self.variant}"


DEFAULT: Final = Subject("trtkv", "default")
PREALLOCATED: Final = Subject("trtkv", "preallocated")
DIGESTS: Final = Subject("trtkv", "digests")
OURS: Final = (DEFAULT, PREALLOCATED)
EVENTS: Final = (Subject("trtkv", "events"), Subject("trtkv", "events-plain-hash"))
PEERS: Final = (
    Subject("vllm", "sha256"),
    Subject("vllm", "xxhash"),
    Subject("sglang", "radix"),
    Subject("sglang", "unified-rust"),
    Subject("nano", "original"),
    Subject("nano", "port"),
)
_SLOW_REQUESTS: Final = {("nano", "original"): 150}
"""Fewer rows for systems whose release is linear in the pool."""


class Group(NamedTuple):
    """One kind of work, done by several subjects or in several sizes."""

    name: str
    title: str
    subjects: Sequence[Subject]
    settings: Sequence[dict[str, Any]]
    """One measurement of each subject per entry; with several, ratios are growth against the first."""
    unit: str = "us"
    labels: Sequence[str] = ("",)


def groups(arguments: argparse.Namespace) -> list[Group]:
    """All work of this benchmark."""
    n, size = arguments.requests, arguments.operation_tokens
    everyone = (*OURS, DIGESTS, *PEERS)
    trace = {"case": "trace", "requests": n}
    few = {"case": "trace", "requests": max(1, min(n, 150))}
    pools = [{**few, "capacity_tokens": capacity} for capacity in (3_000_000, 30_000_000, 300_000_000)]
    trees = [{"case": "tree_size", "size": arguments.scale // step} for step in (100, 10, 1)]
    children = [{"case": "siblings", "size": count} for count in (10, arguments.scale // 2)]
    same_start = [{"case": "siblings_after_bos", "size": count} for count in (10, arguments.scale // 2)]
    lengths = [{"case": "new_prompt", "size": length} for length in (size // 32, size // 4, size, size * 4)]
    millions = ("3M pool", "30M pool", "300M pool")
    memory = {
        "case": "memory",
        "capacity_tokens": arguments.scale * 320,
        "size": max(arguments.scale * 10, 256 * arguments.tokens_per_block),
    }
    return [
        Group("trace-30M", f"trace, first {n:,}, pool 30M tokens", everyone, [trace]),
        Group("trace-3M", f"trace, first {n:,}, pool 3M tokens", everyone, [{**trace, "capacity_tokens": 3_000_000}]),
        Group("cached", f"{size:,} cached tokens, in and out", everyone, [{"case": "cached_prompt", "size": size}]),
        Group("new", f"{size:,} new tokens, in and out", everyone, [{"case": "new_prompt", "size": size}]),
        Group("decode", "decode step of 256 sequences", everyone, [{"case": "decode_step", "size": 256, "live": 256}]),
        Group("pool", "trace without eviction", OURS, pools, labels=millions),
        Group("tree", "8,192 cached tokens beside other blocks", OURS, trees, labels=_labels(trees)),
        Group("siblings", "new prompt, children of the root", OURS, children, labels=_labels(children)),
        Group("siblings-bos", "the same, one first token for all", OURS, same_start, labels=_labels(same_start)),
        Group("length", "new prompt, by tokens", OURS, lengths, labels=_labels(lengths)),
        Group("events", f"trace, first {few['requests']}, events", (DEFAULT, *EVENTS), [few]),
        Group("hash", "chain hash of 12,288 tokens", EVENTS, [{"case": "event_hash", "size": 12_288}]),
        Group("memory", "bytes: a block, a token, a token", everyone, [memory], unit="bytes"),
    ]


def _labels(settings: Iterable[dict[str, Any]]) -> list[str]:
    return [f"{entry['size']:,}" for entry in settings]


class Row(NamedTuple):
    """Medians of one subject at one kind of work."""

    group: str
    title: str
    label: str
    subject: str
    unit: str
    values: dict[str, float]
    """By phase, and ``prompt`` (add + store + remove) and ``total``; or bytes."""
    ratios: dict[str, float]
    ratio_of: str


class Bench:
    """Runs measurements; remembers what cannot be run here."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self.skipped: dict[str, str] = {}
        for subject in PEERS:
            reason = self._missing(subject)
            if reason:
                self.skipped[subject.name] = reason

    def _missing(self, subject: Subject) -> str:
        arguments = self._arguments
        folder = {"vllm": "vllm_src", "sglang": "sgl_src"}.get(subject.system)
        if arguments.systems and subject.system not in arguments.systems:
            return "not among --systems"
        if folder and (arguments.peers is None or not (arguments.peers / folder).is_dir()):
            return f"no folder {folder} below --peers; see tools/requirements-peers.txt"
        if subject == ("nano", "original") and not _nano_folder(arguments):
            return "no package nanovllm; give --nano-vllm FOLDER"
        return ""

    def run(self, group: Group) -> list[Row]:
        """All subjects in turn, as often as asked for."""
        arguments = self._arguments
        subjects = [subject for subject in group.subjects if subject.name not in self.skipped]
        if group.settings[0]["case"] == "trace" and arguments.trace is None:
            self.skipped[group.title] = "no trace; give --trace FILE"
            return []
        pairs = [(subject, index) for subject in subjects for index in range(len(group.settings))]
        answers: dict[tuple[Subject, int], list[dict[str, float]]] = {pair: [] for pair in pairs}
        for _ in range(arguments.repeat):
            for subject, index in pairs:
                if subject.name not in self.skipped:
                    self._measure(subject, group.settings[index], answers[subject, index])
        medians = {pair: _medians(runs) for pair, runs in answers.items() if runs}
        return _rows(group, medians)

    def _measure(self, subject: Subject, setting: dict[str, Any], answers: list[dict[str, float]]) -> None:
        arguments = self._arguments
        spec = {
            "system": subject.system,
            "variant": subject.variant,
            "clock": arguments.clock,
            "trace": str(arguments.trace),
            "tokens_per_block": arguments.tokens_per_block,
            "live": arguments.live,
            "operations": arguments.operations,
            "collect_garbage": not arguments.no_gc,
            "freeze": arguments.freeze,
            **setting,
        }
        if subject in _SLOW_REQUESTS and "requests" in spec:
            spec["requests"] = min(spec["requests"], _SLOW_REQUESTS[subject])
        if subject in _SLOW_REQUESTS:
            spec["operations"] = min(spec["operations"], 5)
        environment = os.environ | {
            "TRTKV_PEERS": str(arguments.peers),
            "TRTKV_NANO_VLLM": str(_nano_folder(arguments)),
            "PYTHONHASHSEED": "0",
        }
        command = [self._python(subject), str(WORKER), json.dumps(spec)]
        print(f"  {subject.name}: {spec['case']}", file=sys.stderr)
        result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        try:
            answers.append(json.loads(result.stdout.strip().splitlines()[-1]))
        except (IndexError, json.JSONDecodeError):
            lines = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
            if subject.system == "trtkv":
                raise SystemExit(f"{subject.name} failed at {spec['case']}: {lines[-1]}") from None
            self.skipped[subject.name] = f"failed at {spec['case']}: {lines[-1]}"

    def _python(self, subject: Subject) -> str:
        arguments = self._arguments
        given: Path | None = getattr(arguments, f"{subject.system}_python", None)
        if given is not None:
            return str(given)
        if subject.system in ("vllm", "sglang") or subject == ("nano", "original"):
            shared = arguments.peers and arguments.peers / "venv" / "bin" / "python"
            if shared and shared.exists():
                return str(shared)
        return sys.executable


def _nano_folder(arguments: argparse.Namespace) -> Path | None:
    candidates = [arguments.nano_vllm, arguments.peers and arguments.peers / "nano"]
    return next((folder for folder in candidates if folder and (folder / "nanovllm").is_dir()), None)


def _medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    values = {key: median(run[key] for run in runs) for key in runs[0]}
    if "add" in values:
        values["prompt"] = sum(values[phase] for phase in PROMPT_PHASES)
        values.setdefault("total", values["prompt"] + values["decode"])
    return values


def _rows(group: Group, medians: dict[tuple[Subject, int], dict[str, float]]) -> list[Row]:
    rows = []
    for (subject, index), values in medians.items():
        if len(group.settings) > 1:
            ratio_of = f"this / {group.labels[0]}"
            ratios = {"growth": values["total"] / (medians[subject, 0]["total"] or 1)}
        else:
            ratio_of, ratios = _ratios_to_ours(values, {key[0]: entry for key, entry in medians.items()})
        label = group.labels[index]
        rows.append(Row(group.name, group.title, label, subject.name, group.unit, values, ratios, ratio_of))
    return rows


def _ratios_to_ours(
    values: dict[str, float], by_subject: dict[Subject, dict[str, float]]
) -> tuple[str, dict[str, float]]:
    """Ours divided by this, for the prompt side and for everything, or by kind of bytes."""
    keys = [key for key in ("prompt", "total", *BYTES) if values.get(key)]
    ratios = {}
    for ours in (*OURS, DIGESTS):
        for key in keys:
            if ours in by_subject:
                ratios[f"{ours.variant} {key}"] = by_subject[ours][key] / values[key]
    return "trtkv / this", ratios


def to_table(rows: Sequence[Row], title: str) -> Table:
    """One table of everything."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("work", min_width=24, max_width=38)
    table.add_column("system", no_wrap=True)
    for column in (*PHASES, "prompt side", "all"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("ratio", no_wrap=True)
    last = ""
    for row in rows:
        if row.group != last:
            table.add_section()
        work = row.title if row.group != last else ""
        last = row.group
        name = f"{row.subject}, {row.label}" if row.label else row.subject
        table.add_row(work, name, *_cells(row), _ratio_text(row))
    return table


def _cells(row: Row) -> list[str]:
    if row.unit == "bytes":
        block, token, full = (row.values[key] for key in BYTES)
        return ["", "", "", f"{block:.0f} at rest", f"{token:.2f} cached", f"{full:.2f} if full"]
    return [f"{row.values[key]:,.1f}" if row.values.get(key) else "" for key in (*PHASES, "prompt", "total")]


def _ratio_text(row: Row) -> str:
    if "growth" in row.ratios:
        return f"{row.ratios['growth']:.2f} {row.ratio_of}"
    keys = BYTES if row.unit == "bytes" else ("prompt", "total")
    parts = []
    for variant in (subject.variant for subject in (*OURS, DIGESTS)):
        values = [row.ratios[f"{variant} {key}"] for key in keys if f"{variant} {key}" in row.ratios]
        if values:
            parts.append(f"{variant[:3]} " + "/".join(f"{value:.2f}" for value in values))
    return ", ".join(parts)


def describe_machine() -> dict[str, Any]:
    """What ran this."""
    model = platform.processor()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def default_trace(peers: Path | None) -> Path | None:
    """The conversation trace, where it can be found."""
    shared = Path(os.environ.get("TRTKV_SHARED", ROOT.parent / "shared"))
    candidates = [shared / "traces" / "mooncake" / "conversation_trace.jsonl"]
    if peers is not None:
        candidates.insert(0, peers / "conversation_trace.jsonl")
    return next((path for path in candidates if path.is_file()), None)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers = os.environ.get("TRTKV_PEERS")
    parser.add_argument("--peers", type=existing_folder, default=Path(peers) if peers else None, metavar="FOLDER")
    parser.add_argument(
        "--trace", type=existing_file, metavar="FILE", help="Mooncake trace with hash ids of 512 tokens"
    )
    parser.add_argument("--requests", type=at_least(1), default=2000, help="rows of the trace")
    parser.add_argument("--tokens-per-block", type=at_least(1), default=64)
    parser.add_argument("--live", type=at_least(1), default=64)
    parser.add_argument("--repeat", type=at_least(1), default=3, help="turns of each system")
    parser.add_argument("--operations", type=at_least(1), default=40, help="times a single operation is done in a turn")
    parser.add_argument("--operation-tokens", type=at_least(1), default=32_768, help="prompt of a single operation")
    parser.add_argument("--scale", type=at_least(1), default=200_000, help="blocks of the largest tree")
    parser.add_argument("--systems", nargs="*", default=[], help="systems beside this one; default: all")
    parser.add_argument("--only", nargs="*", default=[], help="groups to run; default: all")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument("--freeze", action="store_true", help="gc.freeze() before the first request, for all systems")
    parser.add_argument("--no-gc", action="store_true", help="switch Python's cycle collector off, for all systems")
    for system in ("vllm", "sglang", "nano"):
        parser.add_argument(
            f"--{system}-python", type=existing_file, metavar="PYTHON", help=f"interpreter that has {system}"
        )
    parser.add_argument(
        "--nano-vllm", type=existing_folder, metavar="FOLDER", help="folder that holds the package nanovllm"
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="append the numbers as one line of JSON")
    arguments = parser.parse_args(argv)
    arguments.trace = arguments.trace or default_trace(arguments.peers)
    systems = sorted({subject.system for subject in (*OURS, *PEERS)})
    if unknown := set(arguments.systems) - set(systems):
        parser.error(f"unknown systems {sorted(unknown)}; choose from {systems}")
    if arguments.trace is not None:
        try:
            read_rows(arguments.trace, 1)
        except (ValueError, OSError) as error:
            parser.error(f"argument --trace: {error}")
    names = [group.name for group in groups(arguments)]
    if unknown := set(arguments.only) - set(names):
        parser.error(f"unknown groups {sorted(unknown)}; choose from {names}")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    arguments = parse_arguments(argv)
    bench = Bench(arguments)
    rows: list[Row] = []
    for group in groups(arguments):
        if not arguments.only or group.name in arguments.only:
            rows += bench.run(group)
    machine = describe_machine()
    title = (
        f"{arguments.tokens_per_block} tokens a block, {arguments.live} live, median of {arguments.repeat}, "
        f"{arguments.clock} microseconds a request or operation; Python {machine['python']}, {machine['cpu']}, "
        f"load {machine['load']}"
    )
    Console(width=None if sys.stdout.isatty() else 190).print(to_table(rows, title))
    for name, reason in bench.skipped.items():
        print(f"left out: {name}: {reason}")
    if arguments.json:
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
        record = {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "machine": machine,
            "settings": settings,
            "rows": [row._asdict() for row in rows],
            "skipped": bench.skipped,
        }
        with arguments.json.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    run_tool(main)
