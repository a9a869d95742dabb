"""What docs/trace_formats.md says about adding a format, done literally in a copy of the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the package in which both steps were done."""
    shutil.copytree(ROOT / "trtkv", tmp_path / "trtkv", ignore=shutil.ignore_patterns("__pycache__", "csrc", "*.so"))
    text = (ROOT / "docs" / "trace_formats.md").read_text(encoding="utf-8").split("## Adding a format")[1]
    folder, module = re.findall(r"module in `([^`]+)`, here `([^`]+)`", text)[0]
    (tmp_path / folder / module).write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], encoding="utf-8")
    line, names, registry = re.findall(r"name, `([^`]+)`, to `([^`]+)` in `([^`]+)`", text)[0]
    path = tmp_path / registry
    source = path.read_text(encoding="utf-8")
    assert f"{names}: Final = (\n" in source
    path.write_text(source.replace(f"{names}: Final = (\n", f"{names}: Final = (\n    {line}\n"), encoding="utf-8")
    return tmp_path


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "200"}
    command = [sys.executable, "-m", "trtkv", *arguments]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


def test_a_format_is_one_file_and_one_line(copied: Path) -> None:
    trace = copied / "t.jsonl"
    rows = [{"words": ["a", "b", "c"], "answer_words": 2}, {"words": ["a", "b", "d", "e"], "answer_words": 1}]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    described = run(copied, "trace", "info", str(trace), "--json", "-")
    assert described.stderr == "format: words (the first row has words, answer_words)\n"
    assert json.loads(described.stdout)["prompt_tokens"]["total"] == 7
    replayed = run(copied, "replay", str(trace), "--format", "words", "--tokens-per-block", "1", "--json", "-")
    assert json.loads(replayed.stdout)["prepopulated_tokens"] == 2, replayed.stderr
    assert "words, dynamo" in run(copied, "replay", "--help").stdout
    trace.write_text(json.dumps({"words": 3, "answer_words": 2}) + "\n")
    refused = run(copied, "replay", str(trace))
    assert (refused.returncode, refused.stderr) == (2, f"error: {trace}:1: words is 3, not a list\n")
