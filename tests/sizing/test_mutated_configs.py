"""Changed configs are sized right or refused in one line; a second, independent reading says what is right."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.sizing.config_mutations import Mutation, mutate
from tests.sizing.second_reading import read
from trtkv import cli
from trtkv.sizing.known_models import load_known_models

LONGEST = 2**31 - 1
"""Longest sequence in tokens; every window of a real model is narrower."""

NUM_MUTATIONS = int(os.environ.get("TRTKV_MUTATIONS", "150"))
"""Per run of the suite; 1,000 and more by hand."""

KNOWN = {name: dict(model.config) for name, model in load_known_models().models.items()}


def size(config: dict[str, Any], folder: Path) -> tuple[dict[str, Any] | None, str]:
    """The report of the command, or its complaint."""
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    arguments = ("size", "--model", str(path), "--memory", "1000000TiB", "--max-seq-len", str(LONGEST))
    result = CliRunner().invoke(cli.app, [*arguments, "--kv-dtype", "bf16", "--json", "-"])
    if result.exit_code == 0:
        return json.loads(result.stdout), ""
    assert result.exit_code == 2, (result.exit_code, result.exception)
    assert isinstance(result.exception, SystemExit)
    lines = result.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    lines[0].encode("utf-8")
    return None, lines[0]


def elements(report: dict[str, Any]) -> dict[str, int]:
    """What the report says, in the terms of the second reading."""
    found: dict[str, int] = {}
    for window in report["windows"]:
        if window["kind"] != "states":
            key = "full" if window["kind"] == "full" else str(window["window_size"])
            found[key] = window["bytes_per_token"] // 2
    index = report["index_bytes_per_token"]
    if index:
        found = {"full": (report["bytes_per_token"] - index) // 2, "index": index}
    return found


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_both_readings_agree_on_known_models(name: str, tmp_path: Path) -> None:
    right = read(KNOWN[name])
    report, complaint = size(KNOWN[name], tmp_path)
    assert report is not None, complaint
    if right is None:
        assert KNOWN[name]["model_type"] == "minimax_m3"  # whose index keys are not part of the second reading
    else:
        assert elements(report) == right


def allowed(original: dict[str, Any], mutation: Mutation) -> list[dict[str, int]]:
    """Right answers beside a refusal."""
    answers = [read(original)]
    if not mutation.keeps_facts and mutation.path[-1] != "model_type":
        answers = [read(mutation.config), *(answers if mutation.kind == "removed" else [])]
    return [_cut(answer) for answer in answers if answer is not None]


def _cut(answer: dict[str, int]) -> dict[str, int]:
    """A window as wide as the longest sequence is full attention."""
    cut = dict(answer)
    wide = cut.pop(str(LONGEST), 0)
    return {**cut, "full": cut.get("full", 0) + wide} if wide else cut


def test_mutated_configs_are_sized_right_or_refused(tmp_path: Path) -> None:
    chance = random.Random(int(os.environ.get("TRTKV_SEED", "20261201")))
    names = [name for name in sorted(KNOWN) if read(KNOWN[name]) is not None]
    counts = {"sized": 0, "refused": 0}
    for number in range(NUM_MUTATIONS):
        name = names[number % len(names)] if number < len(names) else chance.choice(names)
        mutation = mutate(KNOWN[name], chance)
        report, _ = size(mutation.config, tmp_path)
        counts["refused" if report is None else "sized"] += 1
        if report is not None:
            answers = allowed(KNOWN[name], mutation)
            assert elements(report) in answers, (number, name, mutation.kind, mutation.path, elements(report), answers)
    assert min(counts.values()) > NUM_MUTATIONS // 10, counts
