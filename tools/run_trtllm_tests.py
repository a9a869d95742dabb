"""Unit tests of TensorRT-LLM's executor that need no GPU, run over ``trtkv.bindings``: passed, failed, not runnable.

    python tools/run_trtllm_tests.py FOLDER [--tests FILE ...] [--json FILE]

FOLDER is a checkout of TensorRT-LLM, or a part of it with ``tensorrt_llm/`` and ``tests/unittest/`` (Python files only;
nothing has to be built). Each test file runs in a process of its own, in which torch says that there is a GPU, as many
tests ask for one without using it. What does use one, or the compiled library, or a part of TensorRT-LLM outside of the
KV cache, is not runnable, with the reason. Needs torch and pytest. Exit code 1 if a test failed, 2 if the folder has
none of the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.arguments import BAD_INPUT, existing_folder, output_file

UNIT_TESTS = Path("tests", "unittest")
PATTERNS = (
    "_torch/executor/test_prefix_reuse_analysis.py",
    "_torch/executor/test_admission_gap.py",
    "_torch/executor/test_resource_manager.py",
    "_torch/executor/test_py_scheduler.py",
    "_torch/executor/test_cpp_scheduler.py",
    "_torch/executor/test_cpp_config.py",
    "_torch/executor/test_async_transfer_manager.py",
    "_torch/executor/**/test_kv_cache_connector*.py",
    "bindings/test_bindings_ut.py",
    "bindings/test_executor_bindings.py",
    "**/test_datatype_parity.py",
)
SECONDS_PER_FILE = 300
KNOWN_FAILURES = {
    "test_decode_boundary_burst_does_not_overflow_pool": (
        "a reproducer that fails over the C++ manager as well: it adds tokens without removing the paused requests"
    ),
}
"""Tests that fail over the original too."""

_NO_GPU = (
    r"Found no NVIDIA driver|Torch not compiled with CUDA|CUDA error|No CUDA GPUs|Cannot access accelerator device"
)
NOT_RUNNABLE = (
    (r"NotImplementedError: (?P<why>.+)", "outside of the KV cache: {why}"),
    (r"(?P<why>trtkv\.bindings has no .+)", "{why}"),
    (r"ModuleNotFoundError: (?P<why>\S+ is not in .+)", "{why}"),
    (r"ModuleNotFoundError: No module named '(?P<why>[^']+)'", "needs the package {why}"),
    (
        r"cannot import name '(?P<why>[^']+)' from '(?P<where>tensorrt_llm[^']*)' \(unknown location\)",
        "the stand-in for {where} has no {why}",
    ),
    (r"module '(?P<where>tensorrt_llm[^']*)' has no attribute '(?P<why>[^']+)'", "{where} has no {why} here"),
    (rf"(?P<why>{_NO_GPU}|cudaGetDevice\w*)", "needs a GPU: {why}"),
    (r"fixture '(?P<why>\w+)' not found", "needs the fixture {why} of its conftest"),
)
"""Errors that say nothing about the bindings, and how they are told."""


class Outcome(NamedTuple):
    """One test, or one file that could not be collected."""

    test: str
    result: str
    """``passed``, ``failed`` or ``not runnable``."""
    reason: str = ""


def judge(test: str, outcome: str, text: str) -> Outcome:
    """What pytest's outcome means here. ``text``: the error with its type, or the reason of a skip."""
    if outcome == "passed":
        return Outcome(test, "passed")
    if outcome == "skipped":
        return Outcome(test, "not runnable", f"skips itself: {text}")
    for pattern, reason in NOT_RUNNABLE:
        if match := re.search(pattern, text):
            return Outcome(test, "not runnable", reason.format(**match.groupdict()))
    name = test.rsplit("::", 1)[-1].split("[")[0]
    if name in KNOWN_FAILURES:
        return Outcome(test, "not runnable", KNOWN_FAILURES[name])
    return Outcome(test, "failed", text)


class Collector:
    """A plugin of pytest that keeps the outcome of each test."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.outcomes: list[Outcome] = []

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be imported, or skips itself whole."""
        if report.outcome != "passed":
            self.outcomes.append(judge(str(self._file), report.outcome, read_reason(report)))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test ran, or its preparation failed."""
        if report.when == "call" or report.outcome != "passed":
            test = f"{self._file}::{report.nodeid.partition('::')[2]}"
            self.outcomes.append(judge(test, report.outcome, read_reason(report)))


def read_reason(report: Any) -> str:
    """The last error of a report in one line, or why it was skipped."""
    if report.outcome == "passed":
        return ""
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = [line[1:].strip() for line in str(report.longrepr).splitlines() if line.startswith("E ")]
    if crash is not None:
        return " ".join(str(crash.message).split())[:600]
    return " ".join(lines)[:600] or str(report.longrepr).strip().splitlines()[-1]


def run_here(folder: Path, file: Path) -> list[Outcome]:
    """Run one file in this process."""
    import pytest

    from tools.trtllm_stubs import install_stubs

    install_stubs(folder)
    sys.path.insert(0, str(folder / UNIT_TESTS))
    collector = Collector(file)
    # Their configuration and conftest start MPI and look for GPUs.
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--noconftest", "--import-mode=importlib"]
    pytest.main([*options, "--rootdir", str(folder), str(folder / file)], plugins=[collector])
    return collector.outcomes


def run_file(folder: Path, file: Path, seconds: float = SECONDS_PER_FILE) -> list[Outcome]:
    """Run one file in a process of its own; one that ends early is not runnable, and says how it ended."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "outcomes.json"
        command = [sys.executable, __file__, str(folder), "--only", str(file), "--json", str(report)]
        try:
            result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
        except subprocess.TimeoutExpired:
            return [Outcome(str(file), "failed", f"not finished in {seconds:.0f} s")]
        if not report.exists():
            last = (result.stderr.strip() or result.stdout.strip() or "nothing was printed").splitlines()[-1]
            return [Outcome(str(file), "failed", f"its process ended with {result.returncode}: {last}")]
        return [Outcome(*entry) for entry in json.loads(report.read_text(encoding="utf-8"))]


def find_tests(folder: Path, wanted: Sequence[str] = ()) -> list[Path]:
    """Test files relative to the folder: those wanted, or all known ones that are there."""
    if wanted:
        paths = [Path(name) if Path(name).is_absolute() else folder / name for name in wanted]
        return [path.resolve().relative_to(folder) for path in paths]
    found = {path for pattern in PATTERNS for path in (folder / UNIT_TESTS).glob(pattern)}
    return sorted(path.relative_to(folder) for path in found)


def show(outcomes: Sequence[Outcome]) -> None:
    """Every test with its result, then the counts."""
    for outcome in outcomes:
        print(f"{outcome.result:13} {outcome.test}{': ' if outcome.reason else ''}{outcome.reason}")
    counts = [
        f"{sum(o.result == result for o in outcomes)} {result}" for result in ("passed", "failed", "not runnable")
    ]
    print(", ".join(counts))


def main() -> int:
    """Run the tests and list them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=existing_folder, help="checkout with tensorrt_llm/ and tests/unittest/")
    parser.add_argument("--tests", nargs="+", default=[], metavar="FILE", help="these files instead of the known ones")
    parser.add_argument("--json", type=output_file, help="write the outcomes to this file")
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if arguments.only is not None:
        outcomes = run_here(folder, arguments.only)
    else:
        files = find_tests(folder, arguments.tests)
        if not (folder / "tensorrt_llm").is_dir() or not files:
            print(f"error: {folder} has no tensorrt_llm/ or none of the tests", file=sys.stderr)
            return BAD_INPUT
        outcomes = [outcome for file in files for outcome in run_file(folder, file)]
        show(outcomes)
    if arguments.json:
        arguments.json.write_text(json.dumps(outcomes, indent=1), encoding="utf-8")
    return int(any(outcome.result == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
