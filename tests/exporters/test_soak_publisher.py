"""tools/soak_publisher.py in small: readers get everything beside subscribers that never read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("zmq", reason="pyzmq is not installed; it carries the messages")

TOOL = Path(__file__).resolve().parents[2] / "tools" / "soak_publisher.py"


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "--seconds", "1", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_readers_lose_nothing() -> None:
    result = run("--subscribers", "6", "--silent", "2", "--high-water-mark", "20", "--payload-bytes", "50000")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "lost by readers 0, readers without the end 0" in result.stdout
    overflows = int(result.stdout.split("found too far behind: ")[1].split("\n")[0])
    assert overflows >= 2


def test_somebody_has_to_read() -> None:
    result = run("--subscribers", "2", "--silent", "2")
    assert result.returncode == 2
    assert "let at least one read" in result.stderr
