"""The list of compiled modules: an interpreted class cannot derive from a compiled one."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def compiled_modules() -> set[str]:
    if sys.version_info < (3, 11):
        pytest.skip("tomllib is not in this Python")
    import tomllib

    hooks = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    return {entry.strip("/").removesuffix(".py").replace("/", ".") for entry in hooks["mypyc"]["include"]}


def bases_of(path: Path) -> Iterator[tuple[str, str]]:
    """(class, module of a base) for bases that are imported by name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    origin = {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                name = base.value if isinstance(base, ast.Subscript) else base
                if isinstance(name, ast.Name) and name.id in origin:
                    yield node.name, origin[name.id]


def test_listed_modules_exist() -> None:
    assert all((ROOT / f"{name.replace('.', '/')}.py").is_file() for name in compiled_modules())


def test_classes_that_derive_from_compiled_ones_are_compiled() -> None:
    compiled = compiled_modules()
    wrong = []
    for path in (ROOT / "trtkv").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if module not in compiled:
            wrong += [f"{module}.{name}" for name, base in bases_of(path) if base in compiled]
    assert wrong == []
