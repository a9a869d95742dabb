"""Names that users import: from ``trtkv`` itself, lazily; under their old modules, with a warning."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import trtkv
import trtkv.events
from trtkv._moved import MOVED, PARTS
from trtkv.traces import options
from trtkv.traces.read_requests import read_requests

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CONTRACTS = ("trtkv.bindings", "trtkv.events", "trtkv.nano")
"""Packages that documents may import from beside trtkv itself."""

OF_NEW_MODULES = {"trace_formats.md": "trtkv.traces."}
"""Page that shows a module to add to the package -> where that module may import from."""

PACKAGES = [trtkv, trtkv.events]
IMPORT = re.compile(r"^\s*(?:from|import) (trtkv[\w.]*)", re.MULTILINE)

OLD_IMPORTS = """
from trtkv.copy_engine import RecordingCopyEngine
from trtkv.kv_cache_event_consumer import KVCacheEventConsumer
from trtkv.kv_cache_event_manager import KVCacheEventManager
from trtkv.kv_cache_manager import KVCacheManager
from trtkv.linear_attention import LinearAttentionMetadata
from trtkv.llm_request import LlmRequest, LlmRequestState
from trtkv.page_tables import export_block_table, export_flashinfer, export_flex, export_slot_mapping
from trtkv.picture import draw
from trtkv.replay.bounds import compute_bounds
from trtkv.replay.causes import Cause
from trtkv.replay.formats import read_trace
from trtkv.replay.loop_config import LoopConfig
from trtkv.replay.loop_result import replay_with_scheduler
from trtkv.replay.readers.options import ReadOptions
from trtkv.replay.readers.registry import read_requests
from trtkv.replay.replay_config import ReplayConfig
from trtkv.replay.replay_result import replay_trace
from trtkv.torch_copy_engine import TorchCopyEngine
""".strip().splitlines()
"""What documents showed before the modules moved."""


def run(program: str, *options: str) -> str:
    command = [sys.executable, *options, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def imports_for_types(package: str, text: str) -> dict[str, list[str]]:
    """Module below the package -> names, of the imports under TYPE_CHECKING."""
    found: dict[str, list[str]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.If):
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                assert all(alias.asname == alias.name for alias in statement.names)
                module = str(statement.module).removeprefix(f"{package}.")
                found.setdefault(module, []).extend(alias.name for alias in statement.names)
    return found


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_the_table_and_the_imports_for_type_checkers_agree(package):
    text = Path(package.__file__).read_text(encoding="utf-8")
    expected = {module: sorted(names) for module, names in package.PUBLIC_NAMES.items()}
    assert {m: sorted(names) for m, names in imports_for_types(package.__name__, text).items()} == expected


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_that_of_its_module(package):
    names = [name for defined in package.PUBLIC_NAMES.values() for name in defined]
    assert len(set(names)) == len(names)
    assert package.__all__ == sorted(names)
    assert set(names) <= set(dir(package))
    for module, defined in package.PUBLIC_NAMES.items():
        home = importlib.import_module(f"{package.__name__}.{module}")
        assert [name for name in defined if getattr(package, name) is not getattr(home, name)] == []
        assert [name for name in defined if name not in vars(package)] == []  # kept for the next look-up


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="module 'trtkv' has no attribute 'KvCacheManager'"):
        _ = trtkv.KvCacheManager
    with pytest.raises(ImportError, match="cannot import name 'KvCacheManager' from 'trtkv'"):
        exec("from trtkv import KvCacheManager")


def test_importing_the_package_loads_no_other_module_of_it():
    program = "import sys, trtkv; print(*sorted(name for name in sys.modules if name.startswith('trtkv')))"
    assert run(program).split() == ["trtkv", "trtkv._lazy", "trtkv._moved", "trtkv._version"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documents_import_from_the_package_itself(page):
    text = page.read_text(encoding="utf-8") if page.name != "changelog.md" else ""
    inside = OF_NEW_MODULES.get(page.name)
    deeper = set(IMPORT.findall(text)) - {"trtkv", *CONTRACTS}
    assert {module for module in deeper if inside is None or not f"{module}.".startswith(inside)} == set()


def test_old_names_of_modules_are_those_of_no_file():
    package = Path(trtkv.__file__).parent
    paths = [package / old.replace(".", "/") for old in MOVED]
    assert [path for path in paths if path.with_suffix(".py").exists() or (path / "__init__.py").exists()] == []


@pytest.mark.parametrize("old", [old for old, new in MOVED.items() if new and old not in PARTS])
def test_an_old_module_is_the_new_one(old, monkeypatch):
    monkeypatch.delitem(sys.modules, f"trtkv.{old}", raising=False)
    new = importlib.import_module(f"trtkv.{MOVED[old]}")
    spec = new.__spec__
    with pytest.warns(DeprecationWarning, match=re.escape(f"trtkv.{old} is now trtkv.{MOVED[old]}; ")) as caught:
        assert importlib.import_module(f"trtkv.{old}") is new
    assert new.__spec__ is spec
    assert len(caught) == 1


@pytest.mark.parametrize("old", PARTS)
def test_a_module_that_was_cut_has_the_names_of_its_parts(old, monkeypatch):
    monkeypatch.delitem(sys.modules, f"trtkv.{old}", raising=False)
    parts = [importlib.import_module(f"trtkv.{name}") for name in (MOVED[old], *PARTS[old])]
    before = [dict(vars(part)) for part in parts]
    with pytest.warns(DeprecationWarning, match=re.escape(f"trtkv.{old} is now trtkv.{MOVED[old]}; ")):
        module = importlib.import_module(f"trtkv.{old}")
    for part in parts:
        own = {name: value for name, value in vars(part).items() if getattr(value, "__module__", "") == part.__name__}
        assert own
        assert own.items() <= vars(module).items()
    assert [dict(vars(part)) for part in parts] == before


@pytest.mark.parametrize("line", OLD_IMPORTS)
def test_imports_that_documents_showed_still_work(line, monkeypatch):
    module = line.split()[1]
    monkeypatch.delitem(sys.modules, module, raising=False) if module.removeprefix("trtkv.") in MOVED else None
    found: dict[str, object] = {}
    with pytest.warns(DeprecationWarning, match=re.escape(f"{module} is now trtkv.")) as caught:
        exec(line, found)
    names = [name.strip() for name in line.partition(" import ")[2].split(",")]
    renamed = {"ReadOptions": options.ReadOptions, "read_requests": read_requests}
    assert [name for name in names if found[name] is not (renamed.get(name) or getattr(trtkv, name))] == []
    assert caught[0].filename == "<string>"  # the import statement


def test_the_old_call_for_reading_gives_what_the_new_one_does(repository_root):
    path = repository_root / "tests" / "data" / "chat_120.jsonl"
    with pytest.warns(DeprecationWarning, match=r"read_requests is now trtkv\.read_trace"):
        trace, detected = read_requests(path, options.ReadOptions(block_size=64), limit=3)
    expected = trtkv.read_trace(path, block_size=64, limit=3)
    assert (detected, len(trace.requests)) == (expected.detected, 3)
    assert [request.tokens().tolist() for request in trace.requests] == [
        request.tokens().tolist() for request in expected.requests
    ]


def test_a_package_named_like_an_old_module_knows_only_the_names_of_both():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ImportError):
            exec("from trtkv.replay.causes import no_such_name")
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("trtkv.replay.readers.no_such_reader")


def test_the_changelog_lists_every_move():
    text = (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8")
    missing = [f"| `{old}` | `{new}` |" for old, new in MOVED.items() if new and f"| `{old}` | `{new}` |" not in text]
    assert missing == []
