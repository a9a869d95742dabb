"""Reading recorded programs: what is refused, and where the text says the fault is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.verify.rows import CONFIG, HEADER, write_lines
from trtkv.errors import TraceFormatError
from trtkv.verify.program import read_program

ROW: dict[str, Any] = {"op": "get_token_count", "args": {"id": 1}, "ret": 5}


def test_program_keeps_header_and_ops(tmp_path: Path) -> None:
    failed = {"op": "drop_request", "args": {"id": 2}, "error": "text", "error_type": "tllm", "obs": {"free": {}}}
    program = read_program(write_lines(tmp_path / "p.jsonl", HEADER, ROW, failed))
    assert (program.group, program.seed, program.config) == ("g", 7, CONFIG)
    first, second = program.ops
    assert (first.op_index, first.op, first.args, first.ret) == (1, "get_token_count", {"id": 1}, 5)
    assert (first.has_failed, first.obs) == (False, None)
    assert (second.op_index, second.has_failed, second.error_type, second.obs) == (2, True, "tllm", {"free": {}})


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({**HEADER, "format": "other"}, "format is 'other'"),
        ({**HEADER, "version": 2}, "version is 2"),
        ({**HEADER, "seed": "x"}, "seed is 'x'; an integer is needed"),
        ({**HEADER, "config": {**CONFIG, "dtype": "quarter"}}, "config.dtype is 'quarter'; use one of bf16"),
        ({**HEADER, "config": {**CONFIG, "tokens_per_blok": 4}}, "config.tokens_per_blok is not known here"),
        ({**HEADER, "config": {"tokens_per_block": 4}}, "config.num_kv_heads_per_layer is missing"),
        ("[1]", "a JSON object is needed, this is list"),
        ("{", "not JSON at column"),
    ],
)
def test_bad_header_is_refused_with_file_and_line(tmp_path: Path, header: object, reason: str) -> None:
    path = write_lines(tmp_path / "p.jsonl", header)
    with pytest.raises(TraceFormatError) as caught:
        read_program(path)
    assert str(caught.value).startswith(f"{path}:1: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**ROW, "op": "get_tokens"}, "op is 'get_tokens', which is not an operation of format"),
        ({"args": {}, "ret": None}, "op is None"),
        ({**ROW, "extra": 1}, "unknown fields ['extra']"),
        ({"op": "get_token_count", "args": {"id": 1}}, "either ret, or error together with error_type"),
        ({**ROW, "error": "x", "error_type": "tllm"}, "either ret, or error together with error_type"),
        ({"op": "get_token_count", "args": {"id": 1}, "error": "x"}, "either ret, or error together with error_type"),
        ({"op": "get_token_count", "args": {"id": 1}, "error": "x", "error_type": "y"}, "is 'y'; use one of"),
        ({**ROW, "args": {}}, "get_token_count: id is missing"),
        ({**ROW, "args": {"id": True}}, "get_token_count: id is True; an integer is needed"),
        ({**ROW, "args": {"id": 1, "window": 3}}, "get_token_count: window is not known here; the fields are id"),
        ({**ROW, "args": None}, "get_token_count: is None; an object is needed"),
        ({**ROW, "obs": []}, "get_token_count: obs is []"),
        ("", "not JSON at column 1"),
        ('{"op":"drop_request","args":{"id":1},"ret":NaN}', "NaN is not a JSON number"),
        ("[" * 100_000, "no value of this format"),
        (
            {"op": "add_sequence_batch", "args": {"requests": [[0, 1, 1], [0, 1]]}, "ret": None},
            "requests[1] is [0, 1]; a list of 3 entries is needed",
        ),
        ({"op": "new_request", "args": {"id": 1, "tokens": [1, "a"]}, "ret": None}, "tokens[1] is 'a'; an integer"),
        ({"op": "set_state", "args": {"id": 1, "state": "asleep"}, "ret": None}, "state is 'asleep'; use one of"),
        (
            {"op": "block_key_hash", "args": {"key": {"tokens": [1], "mm": [["ab", 0, None]]}, "parent_hash": "0"}},
            "either ret",
        ),
        (
            {
                "op": "block_key_hash",
                "args": {"key": {"tokens": [1], "mm": [["ab", 0, None]]}, "parent_hash": "0"},
                "ret": "0",
            },
            "key.mm[0][0] is 'ab'; 64 lower-case hex digits are needed",
        ),
        (
            {"op": "block_key_hash", "args": {"key": {"tokens": [1]}, "parent_hash": "0x1"}, "ret": "0"},
            "parent_hash is '0x1'; 1 to 16 lower-case hex digits are needed",
        ),
    ],
)
def test_bad_row_is_refused_with_its_line(tmp_path: Path, row: object, reason: str) -> None:
    path = write_lines(tmp_path / "p.jsonl", HEADER, ROW, row)
    with pytest.raises(TraceFormatError) as caught:
        read_program(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert reason in str(caught.value)


def test_text_that_is_not_ascii_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(json.dumps(HEADER).encode() + b'\n{"op":"\xe9"}\n')
    with pytest.raises(TraceFormatError, match=r"p\.jsonl:2: byte 8 is not ASCII"):
        read_program(path)


def test_empty_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="the file is empty"):
        read_program(write_lines(tmp_path / "p.jsonl"))
    with pytest.raises(TraceFormatError, match="cannot be read"):
        read_program(tmp_path / "missing.jsonl")
