"""The map from C++ names to Python names: the naming rule, the C++ methods per class, and what departs from the rule.

The tables stand in tools/cpp_classes.py. A method has its Python name by rule, or stands in ``renamed`` or
``not_ported`` of its class with a reason.

Run from the root of the repository: ``python -m tools.cpp_names`` lists what is wrong, ``--check`` looks at
docs/cpp_map.md as well, ``--write`` writes that page anew. Exit code 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple

from tools.cpp_classes import CLASSES, SOURCE, CppClass

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "cpp_map.md"

BINDINGS: Final[Mapping[str, str]] = {
    "isCrossKv()": "cross_kv",
    "isEnableBlockReuse()": "enable_block_reuse",
}
"""Names that the original's own Python bindings chose; they go before the rule."""


class Found(NamedTuple):
    """What became of one C++ method."""

    method: str
    where: str
    """Python name, or empty."""
    note: str
    problem: str = ""


def snake_case(name: str) -> str:
    """``rewindKVCache`` -> ``rewind_kv_cache``: a run of capitals is one word."""
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def python_names(method: str) -> tuple[str, ...]:
    """Names that the rule gives a C++ method, the preferred one first.

    ``getX()`` is a property ``x`` when it returns a stored value, and ``get_x()`` when it computes or changes
    something; which of the two only the code can tell, so both are right.
    """
    if method in BINDINGS:
        return (BINDINGS[method],)
    name, _, arguments = method.partition("(")
    if name == "operator":
        return "__call__", "schedule"
    if name.startswith("isEnable"):
        return (snake_case(name[2:]),)
    if arguments == ")" and name.startswith("get"):
        return snake_case(name[3:]), snake_case(name)
    return (snake_case(name),)


def must_be_property(method: str) -> bool:
    """``isX()`` and ``hasX()`` without parameters: a forgotten ``()`` would always be true."""
    return re.match(r"(is|has)[A-Z]\w*\(\)$", method) is not None


def _modules(target: str) -> Iterator[ModuleType]:
    name = target.removesuffix(".*")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("trtkv"):
            raise
        return
    yield module
    if target.endswith(".*"):
        for info in pkgutil.iter_modules(getattr(module, "__path__", ())):
            yield importlib.import_module(f"{name}.{info.name}")


@cache
def owners(target: str) -> tuple[tuple[str, Any], ...]:
    """(label, class or module) for a place in a table; empty if it does not exist (yet)."""
    place, _, attribute = target.partition(":")
    found: dict[int, tuple[str, Any]] = {}
    for module in _modules(place):
        if attribute:
            candidates = [getattr(module, attribute, None)]
        else:
            candidates = [module, *(c for _, c in inspect.getmembers(module, inspect.isclass))]
            candidates = [c for c in candidates if c is module or c.__module__ == module.__name__]
        for candidate in candidates:
            if candidate is not None:
                found[id(candidate)] = (label_of(candidate), candidate)
    return tuple(sorted(found.values(), key=lambda entry: len(getattr(entry[1], "__mro__", ()))))  # bases first


def label_of(owner: Any) -> str:
    """Short name of a class or module for the page."""
    return owner.__name__.removeprefix("trtkv.") if isinstance(owner, ModuleType) else owner.__qualname__


@cache
def attributes(owner: Any) -> Mapping[str, Any]:
    """Names of a module, or of a class and its bases: methods, properties, annotated and constructor-set fields."""
    if isinstance(owner, ModuleType):
        own = owner.__name__
        return {name: value for name, value in vars(owner).items() if getattr(value, "__module__", own) == own}
    result: dict[str, Any] = {}
    for base in reversed(owner.__mro__[:-1]):
        if not base.__module__.startswith("trtkv"):
            continue
        result.update(dict.fromkeys(getattr(base, "__annotations__", {})))
        result.update(dict.fromkeys(_fields_set_by_constructor(base)))
        result.update(vars(base))
    return result


def _fields_set_by_constructor(cls: type) -> Iterator[str]:
    constructor = vars(cls).get("__init__")
    if not isinstance(constructor, FunctionType):
        return
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(constructor)))
    except OSError:  # generated by dataclass: its fields are annotated
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def exists(target: str, cpp: CppClass) -> bool:
    """Whether the target of a ``renamed`` entry is there."""
    if ":" not in target:
        return any(target in attributes(owner) for _, owner in owners(cpp.python))
    place, _, name = target.partition(":")
    head, _, rest = name.partition(".")
    if not rest:
        return any(name in attributes(module) for module in _modules(place))
    return any(rest in attributes(owner) for _, owner in owners(f"{place}:{head}"))


def look_up(cpp: CppClass, method: str) -> Found:
    """What became of a method: its Python name, or what is wrong."""
    places = (*owners(cpp.python), *(owner for also in cpp.also.split() for owner in owners(also)))
    names = python_names(method)
    if method in cpp.private.split():
        names = (*names, *(f"_{name}" for name in names))
    hit = next(((label, n, attributes(o)[n]) for label, o in places for n in names if n in attributes(o)), None)
    if method in cpp.renamed:
        target, reason = cpp.renamed[method]
        problem = "" if exists(target, cpp) else f"is said to be {target}, which does not exist"
        if hit:
            problem = f"is said to be {target}, but {hit[0]}.{hit[1]} exists"
        return Found(method, target.removeprefix("trtkv."), reason, problem)
    if method in cpp.not_ported:
        problem = f"is said not to be ported, but {hit[0]}.{hit[1]} exists" if hit else ""
        return Found(method, "", cpp.not_ported[method], problem)
    if hit is None:
        return Found(method, "", "", f"has no {' or '.join(names)}")
    label, name, value = hit
    shown = name if label == cpp.python.rpartition(":")[2] else f"{label}.{name}"
    if must_be_property(method) and isinstance(value, FunctionType):
        return Found(method, shown, "", f"{shown} must be a property: it takes no arguments")
    return Found(method, shown, "")


def find_all(cpp: CppClass) -> list[Found]:
    """One result per method of the class, in the order of the table."""
    return [look_up(cpp, method) for method in [*cpp.methods.split(), *cpp.private.split()]]


def find_problems(classes: Sequence[CppClass]) -> list[str]:
    """Everything that is wrong, one line each."""
    problems: list[str] = []
    for cpp in classes:
        known = {*cpp.methods.split(), *cpp.private.split()}
        strange = {*cpp.renamed, *cpp.not_ported} - known | (cpp.renamed.keys() & cpp.not_ported.keys())
        problems.extend(f"{cpp.name}::{m} has a reason but no method, or two reasons" for m in sorted(strange))
        if not owners(cpp.python):
            problems.append(f"{cpp.name}: {cpp.python} does not exist ({len(known)} methods)")
            continue
        problems.extend(f"{cpp.name}::{f.method} {f.problem}" for f in find_all(cpp) if f.problem)
    return problems


def render_page(classes: Sequence[CppClass]) -> str:
    """Text of docs/cpp_map.md."""
    lines = [
        "# C++ names and where they are in Python",
        "",
        "<!-- written by python -m tools.cpp_names --write from tools/cpp_classes.py; do not edit -->",
        "",
        SOURCE,
        "",
        "The rule: names of the original's Python bindings first; otherwise classes keep their name, methods become",
        "snake_case with a run of capitals as one word (`rewindKVCache` > `rewind_kv_cache`), `getX()` is a property",
        "`x` when it returns a stored value and `get_x()` when it computes or changes something, `isX()` and `hasX()`",
        "without parameters are properties, `isEnableX()` is `enable_x`, `operator()` is `__call__` or `schedule`.",
        "Below, a name that follows the rule stands alone; every other line gives its reason.",
    ]
    for cpp in classes:
        lines += ["", f"## {cpp.name}", "", f"`{cpp.header}` > `{cpp.python.removesuffix('.*')}`", ""]
        lines += ["| C++ | Python | why |", "| --- | --- | --- |"]
        for found in find_all(cpp):
            where = f"`{found.where}`" if found.where else ("not ported" if found.note else "**missing**")
            lines.append(f"| `{found.method}` | {where} | {found.note} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Print problems; 0 if there is none."""
    parser = argparse.ArgumentParser(prog="python -m tools.cpp_names", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write docs/cpp_map.md")
    parser.add_argument("--check", action="store_true", help="say if docs/cpp_map.md is out of date")
    options = parser.parse_args(arguments)
    problems = find_problems(CLASSES)
    if options.write:
        PAGE.write_text(render_page(CLASSES), encoding="utf-8")
    elif options.check and (not PAGE.exists() or PAGE.read_text(encoding="utf-8") != render_page(CLASSES)):
        problems.append("docs/cpp_map.md is out of date: run python -m tools.cpp_names --write")
    for problem in problems:
        print(problem)
    if not problems:
        print(
            f"C++ names: {sum(len(find_all(cpp)) for cpp in CLASSES)} methods of {len(CLASSES)} classes accounted for"
        )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
