"""Imports go one way, and the checker that says so can tell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import check_layers
from tools.check_layers import ROOT_MODULE, Rules, check

ROOT = Path(check_layers.__file__).parent.parent

RULES = Rules(
    layers=(("low", ("words", "data")), ("mid", ("parts.*",)), ("high", ("manager", ROOT_MODULE))),
    type_exceptions={("data", "manager"): "a reason"},
    top_level_allowed={"torch": ("parts.*",)},
)

HEALTHY = {
    "__init__": "from trtkv.manager import Manager",
    "words": "import json",
    "data": "from typing import TYPE_CHECKING\nfrom trtkv.words import x\n"
    "if TYPE_CHECKING:\n    from trtkv.manager import Manager",
    "parts/__init__": "from trtkv.parts.front import f",
    "parts/front": "import torch\nfrom trtkv.parts.back import g\nfrom trtkv import data",
    "parts/back": "import trtkv.words",
    "manager": "from trtkv.parts import f\ndef late():\n    import torch\n    from trtkv.words import x",
}


def write_tree(root: Path, files: dict[str, str]) -> Path:
    package = root / "trtkv"
    for name, text in files.items():
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return package


def test_imports_of_the_package_go_one_way() -> None:
    assert check(ROOT / "trtkv", Rules()) == []


def test_healthy_tree_has_no_violation(tmp_path: Path) -> None:
    assert check(write_tree(tmp_path, HEALTHY), RULES) == []


@pytest.mark.parametrize(
    ("module", "text", "expected"),
    [
        ("words", "from trtkv.data import y", "words (low) imports data (low), against the order"),
        ("parts/back", "import trtkv.manager", "parts.back (mid) imports manager (high), against the order"),
        ("parts/back", "def f():\n    from trtkv.manager import M", "parts.back (mid) imports manager (high), against"),
        ("manager", "from trtkv import Manager", f"manager (high) imports {ROOT_MODULE} (high), against the order"),
        ("manager", "from . import words", "manager imports .words: write the full name"),
        ("words", "import torch", "words imports torch at its top"),
        ("words", "try:\n    import torch.nn\nexcept ImportError:\n    pass", "words imports torch at its top"),
        ("stray", "", "stray is not in the layer table"),
        ("parts/back", "from trtkv.parts.front import f", "import cycle: parts.front -> parts.back -> parts.front"),
        (
            "parts/back",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from trtkv.parts.front import f",
            "import cycle: parts.front -> parts.back -> parts.front",
        ),
        (
            "words",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from trtkv.data import y",
            "words (low) imports data (low) for types, against the order",
        ),
        ("data", "from trtkv.manager import M", "data (low) imports manager (high), against the order"),
        ("data", "", "exception data -> manager is not needed any more"),
    ],
)
def test_violation_is_reported(tmp_path: Path, module: str, text: str, expected: str) -> None:
    problems = check(write_tree(tmp_path, HEALTHY | {module: text}), RULES)
    assert any(expected in problem for problem in problems), problems


def test_program_exits_with_1_on_a_violation(tmp_path: Path) -> None:
    write_tree(tmp_path, {"__init__": "", "common": "import trtkv.cli", "cli": ""})
    result = subprocess.run(
        [sys.executable, check_layers.__file__, tmp_path], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "trtkv/common.py:1: common (words) imports cli (program), against the order of layers" in result.stdout


def test_every_entry_of_the_table_is_explained_in_the_architecture_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    entries = [entry for _, line in check_layers.LAYERS for entry in line if entry != ROOT_MODULE]
    assert [entry for entry in entries if f"`{entry.removesuffix('.*')}`" not in page] == []


def test_every_exception_has_a_reason() -> None:
    assert all(len(reason.split()) >= 3 for reason in check_layers.TYPE_EXCEPTIONS.values())


def test_importing_the_package_loads_no_heavy_package() -> None:
    heavy = ["cupy", "matplotlib", "numba", "pydantic", "ray", "rich", "torch", "typer", "zmq"]
    program = f"import sys, trtkv; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"
