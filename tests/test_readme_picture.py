"""The output shown in the README is what the demo prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_program(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "trtkv", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def test_readme_shows_the_measured_output_of_the_demo(tmp_path: Path) -> None:
    demo = (ROOT / "tools" / "demo.sh").read_text(encoding="utf-8")
    options = ["--block-size", "512", "--tokens-per-block", "64", "--capacity-tokens", "200000", "--live", "16"]
    for option in (
        "--kind chat --requests 300 --seed 1",
        *map(" ".join, zip(options[::2], options[1::2], strict=True)),
    ):
        assert option in " ".join(demo.split()), f"the demo no longer uses {option}; change this test with it"
    run_program(
        tmp_path, "trace", "generate", *["--kind", "chat", "--requests", "300", "--seed", "1", "--output", "chat.jsonl"]
    )
    shown = run_program(tmp_path, "replay", "chat.jsonl", "--format", "mooncake", *options, "--explain", "--bounds")
    lines = "\n".join(line.rstrip() for line in shown.splitlines())
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    picture = page.split("```text\n", 1)[1].split("\n...\n```", 1)[0]
    assert "found in the cache" in picture
    assert lines.startswith(picture)
