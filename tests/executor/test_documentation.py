"""The programs of docs/own_executor.md run as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "own_executor.md").read_text(encoding="utf-8"), re.DOTALL
)
EXPECTED = [
    "request 0: 0 of 32 tokens cached\nrequest 1: 30 of 31 tokens cached\nrequest 2: 21 of 23 tokens cached\n"
    "every token equals that of the model without a cache\n",
    "0 8 tokens\n1 8 tokens\n",
    "16 blocks for 1,000 tokens\n",
    "{8192: (2048, 256)} blocks on the device and on the host\nFalse\n",
]


@pytest.mark.parametrize(
    ("program", "expected"), list(zip(PROGRAMS, EXPECTED, strict=True)), ids=["own", "supplied", "memory", "settings"]
)
def test_program_prints_what_it_promises(program: str, expected: str) -> None:
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert result.stdout == expected


def test_the_example_stays_short() -> None:
    assert len(PROGRAMS[0].splitlines()) < 100
