"""Runs a program under compute-sanitizer and judges what it says; a run that did not come to its end is not clean."""

from __future__ import annotations

import glob
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from enum import Enum

FINISHED = "sanitized program finished"
"""What the program prints at its end."""
ERROR_EXIT_CODE = 9
SUMMARIES = {"memcheck": "ERROR SUMMARY: 0 errors", "racecheck": "RACECHECK SUMMARY: 0 hazards"}
"""What each tool prints when it has found nothing."""


class Verdict(Enum):
    """Outcome of one tool."""

    CLEAN = "clean"
    ERRORS = "ERRORS"
    NOT_FINISHED = "NOT FINISHED"


def find_sanitizer() -> str | None:
    """The program, on the path or in a CUDA toolkit."""
    return shutil.which("compute-sanitizer") or next(iter(glob.glob("/usr/local/cuda*/bin/compute-sanitizer")), None)


def judge(tool: str, return_code: int | None, output: str) -> Verdict:
    """What a run means; a return code of None is a run that was stopped.

    Clean is only what ran to its end, exited with 0 and got the tool's own word that there was nothing: a program that
    found no GPU under the sanitizer, or a sanitizer that cannot work on this machine, checks nothing.
    """
    if return_code is None:
        return Verdict.NOT_FINISHED
    if return_code == ERROR_EXIT_CODE or (FINISHED in output and return_code != 0):
        return Verdict.ERRORS
    if FINISHED in output and SUMMARIES[tool] in output:
        return Verdict.CLEAN
    return Verdict.NOT_FINISHED


def run_to_end(command: Sequence[str], seconds: float) -> tuple[int | None, str]:
    """Return code and output; None if the time ran out, and then all its processes are ended."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the program is a child of the sanitizer
            return None, process.communicate()[0]
        return process.returncode, output


def run_sanitizer(
    command: Sequence[str],
    seconds: float,
    program: str | None = None,
    run: Callable[[Sequence[str], float], tuple[int | None, str]] = run_to_end,
) -> list[str]:
    """Run a command under each tool, printing the verdicts; returns what was not clean. Nothing where not installed."""
    program = program or find_sanitizer()
    if program is None:
        print("compute-sanitizer is not installed: left out")
        return []
    not_clean = []
    for tool in SUMMARIES:
        options = [f"--tool={tool}", f"--error-exitcode={ERROR_EXIT_CODE}"]
        return_code, output = run([program, *options, *command], seconds)
        verdict = judge(tool, return_code, output)
        reason = f" in {seconds:.0f} s" if return_code is None else ""
        print(f"compute-sanitizer {tool}: {verdict.value}{reason}", flush=True)
        if verdict is not Verdict.CLEAN:
            print(output[-4000:])
            not_clean.append(f"compute-sanitizer {tool} ({verdict.value.lower()})")
    return not_clean
