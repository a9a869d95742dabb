"""The engine's program in docs/nano.md prints what it should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "nano.md").read_text(encoding="utf-8")


def test_the_engine_of_the_page_runs() -> None:
    _, program = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    # Prompts of one step do not find each other; the second run finds five blocks of 8 for each of the first two.
    assert result.stdout == "True\nTrue 80 tokens found\n4 tokens drawn\n"
