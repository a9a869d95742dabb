"""The programs of docs/own_executor.md and docs/executor_loop.md run as printed, each in a fresh process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def read_programs(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


PROGRAMS = read_programs("own_executor.md")
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
    assert run(program) == expected


def run(program: str) -> str:
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return result.stdout


LOOP = read_programs("executor_loop.md")[0]


def test_the_loop_pauses_and_cuts_prompts_and_every_token_is_right() -> None:
    counts, verdict = run(LOOP).splitlines()
    assert verdict == "every token equals that of the model without a cache"
    assert counts == "55 steps, 12 chunks, 3 pauses, 0 deferred"


def test_the_loop_needs_nothing_but_trtkv_and_torch() -> None:
    imports = re.findall(r"^(?:import|from) (\S+)", LOOP, re.MULTILINE)
    assert sorted(set(imports)) == ["math", "torch", "torch.nn.functional", "trtkv"]
    blocked = "import sys\nfor name in ('transformers', 'cupy', 'numba'):\n    sys.modules[name] = None\n"
    assert run(blocked + LOOP).endswith("every token equals that of the model without a cache\n")


LOOP_FAULTS = {
    "a chunk counts as the whole prompt": (
        "            if request.context_remaining_length:\n",
        "            if False:\n",
    ),
    "keys land one token too far": ("slots % TOKENS_PER_BLOCK] = states", "(slots + 1) % TOKENS_PER_BLOCK] = states"),
    "rows see their padding": ("key_positions < torch.tensor(lens", "key_positions < 999 + torch.tensor(lens"),
    "a chunk does not see its own token": ("mask = key_positions <= ", "mask = key_positions < "),
    "paused requests keep their blocks": (
        "        resources.free_resources(request)\n        request.pause",
        "        request.pause",
    ),
}
OWN_FAULTS = {
    "keys and values are mixed up": ("((0, k), (1, v))", "((0, v), (1, k))"),
    "the history lacks its last token": (".flatten(0, 1)[:end]", ".flatten(0, 1)[: end - 1]"),
}
FAULTS = [
    *(pytest.param(LOOP, *change, id=name) for name, change in LOOP_FAULTS.items()),
    *(pytest.param(PROGRAMS[0], *change, id=name) for name, change in OWN_FAULTS.items()),
]


@pytest.mark.parametrize(("program", "right", "wrong"), FAULTS)
def test_a_fault_in_the_program_is_noticed(program: str, right: str, wrong: str) -> None:
    assert program.count(right) == 1
    command = [sys.executable, "-c", program.replace(right, wrong)]
    assert subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT).returncode != 0


def test_the_example_stays_short() -> None:
    assert len(PROGRAMS[0].splitlines()) < 100
