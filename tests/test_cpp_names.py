"""Each C++ method has its Python name by rule, or a reason why not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from tools import cpp_names
from tools.cpp_classes import CLASSES, CppClass
from tools.cpp_names import find_problems, must_be_property, python_names, render_page, snake_case


@pytest.mark.parametrize(
    ("cpp", "python"),
    [
        ("rewindKVCache", "rewind_kv_cache"),
        ("schedulingReleaseBlocks", "scheduling_release_blocks"),
        ("isVariableGQA", "is_variable_gqa"),
        ("getIndexerKCacheUseFp4", "get_indexer_k_cache_use_fp4"),
        ("updateCacheBlockOffsetsAtIdx", "update_cache_block_offsets_at_idx"),
        ("pause", "pause"),
    ],
)
def test_run_of_capitals_is_one_word(cpp: str, python: str) -> None:
    assert snake_case(cpp) == python


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("getBlockId()", ("block_id", "get_block_id")),
        ("getFreeBlock(..)", ("get_free_block",)),
        ("isCrossKv()", ("cross_kv",)),
        ("isEnablePartialReuse()", ("enable_partial_reuse",)),
        ("hasRefs()", ("has_refs",)),
        ("operator(..)", ("__call__", "schedule")),
        ("copy_batch_block_offsets(..)", ("copy_batch_block_offsets",)),
    ],
)
def test_rule_gives_the_python_name(method: str, names: tuple[str, ...]) -> None:
    assert python_names(method) == names


def test_questions_without_parameters_are_properties() -> None:
    assert must_be_property("isLeaf()")
    assert must_be_property("hasRefs()")
    assert not must_be_property("hasFreeBlocks(..)")
    assert not must_be_property("issue()")


def test_every_cpp_method_is_accounted_for() -> None:
    problems = find_problems(CLASSES)
    assert not problems, f"{len(problems)} C++ names without a place:\n" + "\n".join(problems)


def test_map_of_names_is_up_to_date() -> None:
    written = cpp_names.PAGE.read_text(encoding="utf-8")
    assert written == render_page(CLASSES), "run: python -m tools.cpp_names --write"


class Sample:
    """Stands for a ported class."""

    annotated: int

    def __init__(self) -> None:
        self.set_by_constructor = 1

    @property
    def is_leaf(self) -> bool:
        return True

    def has_refs(self) -> bool:
        return True

    def _helper(self) -> None: ...


@pytest.fixture
def sample_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = ModuleType("trtkv.sample_for_names")
    monkeypatch.setattr(Sample, "__module__", module.__name__)
    module.Sample = Sample  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield
    cpp_names.owners.cache_clear()
    cpp_names.attributes.cache_clear()


def sample_class(methods: str, **entries: object) -> CppClass:
    return CppClass("Sample", "sample.h", "trtkv.sample_for_names:Sample", methods, **entries)  # type: ignore[arg-type]


@pytest.mark.usefixtures("sample_module")
def test_names_that_are_there_give_no_problem() -> None:
    cpp = sample_class(
        "isLeaf() getAnnotated() getSetByConstructor() renamedOne() leftOut()",
        private="helper()",
        renamed={"renamedOne()": ("is_leaf", "a reason")},
        not_ported={"leftOut()": "a reason"},
    )
    assert find_problems([cpp]) == []


@pytest.mark.usefixtures("sample_module")
@pytest.mark.parametrize(
    ("cpp", "expected"),
    [
        (sample_class("getLost()"), "Sample::getLost() has no lost or get_lost"),
        (sample_class("helper()"), "Sample::helper() has no helper"),
        (sample_class("hasRefs()"), "Sample::hasRefs() has_refs must be a property: it takes no arguments"),
        (
            sample_class("isLeaf()", not_ported={"isLeaf()": "a reason"}),
            "Sample::isLeaf() is said not to be ported, but Sample.is_leaf exists",
        ),
        (
            sample_class("old()", renamed={"old()": ("gone", "a reason")}),
            "Sample::old() is said to be gone, which does not exist",
        ),
        (
            sample_class("isLeaf()", renamed={"isLeaf()": ("has_refs", "a reason")}),
            "Sample::isLeaf() is said to be has_refs, but Sample.is_leaf exists",
        ),
        (sample_class("isLeaf()", not_ported={"typo()": "a reason"}), "Sample::typo() has a reason but no method"),
    ],
)
def test_gap_is_reported(cpp: CppClass, expected: str) -> None:
    assert any(expected in problem for problem in find_problems([cpp]))


def test_missing_class_is_reported_once() -> None:
    cpp = CppClass("Absent", "absent.h", "trtkv.no_such_module:Absent", "one() two()")
    assert find_problems([cpp]) == ["Absent: trtkv.no_such_module:Absent does not exist (2 methods)"]
