"""Checks that imports inside trtkv/ go one way: from higher layers to lower ones.

LAYERS is the order, bottom-up. A module may import modules of lower layers and of earlier lines of its own layer.
An entry ``name.*`` stands for the package ``name`` and everything in it; inside one entry modules may import each
other as long as there is no cycle. Imports under ``TYPE_CHECKING`` follow the same order, except those of
TYPE_EXCEPTIONS, each with its reason. Imports inside functions count like imports at the top.

Run: ``python tools/check_layers.py [ROOT]``; exit code 1 if there is a violation.
docs/architecture.md explains the layers.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

PACKAGE: Final = "trtkv"
ROOT_MODULE: Final = "(trtkv)"
"""Stands for trtkv/__init__.py, which collects public names and which no other module may import."""

LAYERS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("words", ("_lazy", "_moved", "_version", "common", "errors", "checks")),
    ("records", ("records.*", "tables.*")),
    ("structures", ("keys.*", "blocks.*", "pools.*", "kernels.*")),
    ("mechanisms", ("events.*", "transfers.*", "eviction.*")),
    ("one window", ("window_block_manager.*",)),
    ("the manager", ("manager.*",)),
    ("around a manager", ("inspection.*", "exporters.*", "nano.*")),
    (
        "users of a manager",
        (
            "scheduler.*",
            "resource_manager.*",
            "executor.*",
            "nano_engine.*",
            "transformers_cache.*",
            "sizing.*",
            "bindings.*",
        ),
    ),
    (
        "traces",
        (
            "traces",
            "traces.sessions",
            "traces.sessions.protocol",
            "traces.trace",
            "traces.trace_stream",
            "traces.rows",
            "traces.options",
            "traces.document_rows",
            "traces.parquet_rows",
            "traces.row_sources",
            "traces.outputs",
            "traces.continued_tokens",
            "traces.fields",
            "traces.arrivals",
            "traces.trace_format",
            "traces.block_names",
            "traces.hash_id_numbers",
            "traces.length_columns",
            "traces.text_tokenizer",
            "traces.prompts",
            "traces.prefixes.*",
            "traces.formats.*",
            "traces.sessions.*",
            "traces.trace_reader",
            "traces.conversion",
            "traces.read_requests",
            "traces.info.*",
            "traces.generate.*",
        ),
    ),
    (
        "replays",
        (
            "replay",
            "replay.retention_rules",
            "replay.config",
            "replay.eligible_requests",
            "replay.schedule",
            "replay.model_capacity",
            "replay.topics",
            "replay.utilisation",
            "replay.causes.*",
            "replay.bounds.*",
            "replay.closed_loop.*",
            "replay.scheduler_loop.*",
            "replay.nano.*",
            "replay.report.*",
            "replay.sweep.*",
            "replay.lab.*",
            "verify.*",
        ),
    ),
    ("fleets", ("fleet.*",)),
    ("comparisons", ("compare.*",)),
    ("commands", ("commands.*",)),
    ("program", ("cli", "__main__", ROOT_MODULE)),
)

TYPE_EXCEPTIONS: Final[Mapping[tuple[str, str], str]] = {}
"""(importer, imported) -> reason, for imports under TYPE_CHECKING that point upwards."""

TOP_LEVEL_ALLOWED: Final[Mapping[str, tuple[str, ...]]] = {
    "cupy": (),
    "matplotlib": (),
    "msgspec": (),
    "numba": (),
    "prometheus_client": (),
    "pyarrow": (),
    "pydantic": ("records.config",),
    "ray": (),
    "tokenizers": (),
    "torch": (
        "transfers.torch_copy_engine",
        "transfers.file_copy_engine",
        "executor.*",
        "nano_engine.*",
        "transformers_cache.*",
    ),
    "transformers": ("transformers_cache.paged_cache",),
    "typer": ("commands.*", "cli"),
    "zmq": (),
    "zstandard": (),
}
"""Outside package -> modules that may import it while being imported themselves; all others import it in a function."""


class Rules(NamedTuple):
    """What to check against."""

    layers: Sequence[tuple[str, Sequence[str]]] = LAYERS
    type_exceptions: Mapping[tuple[str, str], str] = TYPE_EXCEPTIONS
    top_level_allowed: Mapping[str, Sequence[str]] = TOP_LEVEL_ALLOWED

    def find(self, module: str) -> tuple[int, int] | None:
        """(layer, line) of a module, or None if the table does not have it."""
        for layer, (_, entries) in enumerate(self.layers):
            for line, entry in enumerate(entries):
                if matches(entry, module):
                    return layer, line
        return None


class Import(NamedTuple):
    """One import statement, resolved to what it names."""

    target: str
    """Module inside the package, or the top-level name of an outside package."""
    line: int
    is_inside: bool
    for_types: bool
    """Stands under ``if TYPE_CHECKING``, so it never runs."""
    at_top: bool
    """Runs when the importing module is imported."""


def matches(entry: str, module: str) -> bool:
    """Whether an entry of a table stands for this module."""
    if entry.endswith(".*"):
        return module == entry[:-2] or module.startswith(entry[:-1])
    return module == entry


def find_modules(package_dir: Path) -> dict[str, Path]:
    """Module name without the package prefix -> file. A package counts under its own name."""
    modules = {}
    for path in sorted(package_dir.rglob("*.py")):
        parts = path.relative_to(package_dir).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        modules[".".join(parts) or ROOT_MODULE] = path
    return modules


def read_imports(path: Path, known: Collection[str]) -> list[Import]:
    """All imports of one file, wherever they stand in it; ``known`` are the modules of the package."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return list(_walk(tree.body, known, for_types=False, at_top=True))


def _walk(body: Iterable[ast.AST], known: Collection[str], *, for_types: bool, at_top: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in _named_modules(node):
                yield _resolve(name, node.lineno, known, for_types, at_top)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from _walk(node.body, known, for_types=True, at_top=at_top)
            yield from _walk(node.orelse, known, for_types=for_types, at_top=at_top)
        else:
            inner_top = at_top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _walk(ast.iter_child_nodes(node), known, for_types=for_types, at_top=inner_top)


def _named_modules(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Full dotted names; ``from a import b`` gives ``a.b``, which may be a module or a name inside ``a``."""
    base = ""
    if isinstance(node, ast.ImportFrom):
        base = "." * node.level + (f"{node.module}." if node.module else "")
    yield from (base + alias.name for alias in node.names)


def _resolve(name: str, line: int, known: Collection[str], for_types: bool, at_top: bool) -> Import:
    head, _, rest = name.partition(".")
    if head != PACKAGE:
        return Import(head or name, line, False, for_types, at_top)
    if rest not in known and "." not in rest:
        return Import(ROOT_MODULE, line, True, for_types, at_top)
    parts = rest.split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    target = next((prefix for prefix in prefixes if prefix in known), prefixes[-1])
    return Import(target, line, True, for_types, at_top)


def check(package_dir: Path, rules: Rules) -> list[str]:
    """All violations in the package, one line each; reads files, changes nothing."""
    modules = find_modules(package_dir)
    imports = {module: read_imports(path, modules) for module, path in modules.items()}
    problems: list[str] = []
    for module, found in imports.items():
        where = modules[module].relative_to(package_dir.parent)
        if rules.find(module) is None:
            problems.append(f"{where}: {module} is not in the layer table; give it a line in tools/check_layers.py")
        else:
            judged = ((item.line, judge(module, item, rules)) for item in found)
            problems.extend(f"{where}:{line}: {text}" for line, text in judged if text)
    problems.extend(_find_stale_exceptions(imports, rules))
    problems.extend(f"import cycle: {' -> '.join(cycle)}" for cycle in _find_cycles(imports, rules))
    return problems


def judge(module: str, item: Import, rules: Rules) -> str | None:
    """What is wrong with one import of a module that the table has, or None."""
    if item.target.startswith("."):
        return f"{module} imports {item.target}: write the full name, {PACKAGE}.…"
    if not item.is_inside:
        allowed = rules.top_level_allowed.get(item.target)
        if allowed is None or item.for_types or not item.at_top or any(matches(a, module) for a in allowed):
            return None
        return f"{module} imports {item.target} at its top; import it inside the function that uses it"
    own, other = rules.find(module), rules.find(item.target)
    if own is None or other is None or other < own or (other == own and item.target != ROOT_MODULE):
        return None
    if item.for_types and (module, item.target) in rules.type_exceptions:
        return None
    purpose = " for types" if item.for_types else ""
    names = rules.layers[own[0]][0], rules.layers[other[0]][0]
    return f"{module} ({names[0]}) imports {item.target} ({names[1]}){purpose}, against the order of layers"


def _find_stale_exceptions(imports: Mapping[str, Sequence[Import]], rules: Rules) -> Iterator[str]:
    for importer, imported in rules.type_exceptions:
        both_exist = importer in imports and imported in imports
        if both_exist and not any(i.for_types and i.target == imported for i in imports[importer]):
            yield f"exception {importer} -> {imported} is not needed any more; remove it"


def _find_cycles(imports: Mapping[str, Sequence[Import]], rules: Rules) -> list[list[str]]:
    """Import cycles, those for types included; one depth-first walk, so at least one if there is any."""
    done: set[str] = set()
    path: list[str] = []

    def is_exception(module: str, item: Import) -> bool:
        return item.for_types and (module, item.target) in rules.type_exceptions

    cycles: list[list[str]] = []

    def visit(module: str) -> None:
        if module in path:
            cycles.append([*path[path.index(module) :], module])
        elif module not in done:
            path.append(module)
            targets = {i.target for i in imports.get(module, ()) if i.is_inside and not is_exception(module, i)}
            for target in sorted(targets - {module}):
                visit(target)
            path.pop()
            done.add(module)

    for module in imports:
        visit(module)
    return cycles


def main(arguments: Sequence[str]) -> int:
    """Print the violations; 0 if there is none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = Path(__file__).resolve().parent.parent
    parser.add_argument("root", type=Path, nargs="?", default=default, help=f"folder that contains {PACKAGE}/")
    root = parser.parse_args(arguments).root
    package_dir = root / PACKAGE
    if not package_dir.is_dir():
        print(f"error: {package_dir} does not exist; give the folder that contains {PACKAGE}/", file=sys.stderr)
        return 2
    problems = check(package_dir, Rules())
    for problem in problems:
        print(problem)
    if not problems:
        print(f"layers: {len(find_modules(package_dir))} modules, imports go one way")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
