from __future__ import annotations

import gzip
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

from trtkv.commands.trace_options import format_or_none
from trtkv.errors import InvalidInputError, TraceFormatError
from trtkv.traces import rows as rows_module
from trtkv.traces.formats.registry import FORMAT_NAMES
from trtkv.traces.trace import RequestTrace
from trtkv.traces.trace_reader import read_trace

GOOD = {"timestamp": 5, "input_length": 10, "output_length": 3, "hash_ids": [0, 1, 2]}
GOOD_TOKENS = {
    "input_toks": 3,
    "output_toks": 2,
    "arrival_time_ns": 7,
    "input_tok_ids": [5, 6, 7],
    "output_tok_ids": [8, 9],
}


@pytest.fixture(params=["standard library", "orjson"])
def parser(request, monkeypatch):
    """Every reading test runs with both parsers; the fast one is played by a stand-in where it is not installed."""
    if request.param == "standard library":
        monkeypatch.setattr(rows_module, "_quick_parse", lambda: rows_module.parse_row)
        return
    try:
        import orjson  # noqa: F401
    except ImportError:
        monkeypatch.setattr(rows_module, "_quick_parse", lambda: strange_parse)


def strange_parse(line: bytes) -> dict[str, object]:
    """Differs from the standard library as orjson does: no lone surrogates, floats for integers beyond 64 bits."""
    if b"\\ud800" in line or b"NaN" in line:
        raise ValueError("strict")
    try:
        row = json.loads(line, parse_int=lambda text: int(text) if -(2**63) <= int(text) < 2**64 else float(text))
    except RecursionError:
        raise ValueError("nested") from None
    if not isinstance(row, dict):
        raise ValueError("not an object")
    return row


def write(path: Path, *rows: object) -> Path:
    """Rows as lines; bytes and strings as they are, anything else as JSON."""
    lines = [
        row if isinstance(row, bytes) else (row if isinstance(row, str) else json.dumps(row)).encode() for row in rows
    ]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def changed(row: dict, **fields: object) -> dict:
    return {key: value for key, value in {**row, **fields}.items() if value is not ...}


def prompts(trace: RequestTrace) -> list[list[int]]:
    return [request.tokens().tolist() for request in trace.requests]


MOONCAKE_FAULTS = [
    ("{", "bad JSON: Expecting property name"),
    ('{"timestamp": 1,', "bad JSON"),
    (b"\xff\xfe{}", "bad JSON: .*UTF-8|bad JSON"),
    ("[" * 100_000, "bad JSON: nested too deeply"),
    ('{"timestamp": ' + "9" * 5000 + "}", "bad JSON: Exceeds the limit"),
    ('{"timestamp": NaN, "input_length": 1, "output_length": 1, "hash_ids": [1]}', "bad JSON: NaN is not a number"),
    ("[1, 2]", "the row is a JSON array, not an object"),
    ("null", "the row is a JSON null"),
    ("3", "the row is a JSON number"),
    ('"x"', "the row is a JSON string"),
    ("true", "the row is a JSON true or false"),
    (changed(GOOD, timestamp=...), "timestamp is missing"),
    (changed(GOOD, timestamp="0"), "timestamp is '0', not a number"),
    (changed(GOOD, timestamp=True), "timestamp is True, not a number"),
    (changed(GOOD, timestamp=-1), "timestamp is -1, less than 0"),
    (changed(GOOD, input_length=...), "input_length is missing"),
    (changed(GOOD, input_length=-10), "input_length is -10, less than 1"),
    (changed(GOOD, input_length=0, hash_ids=[]), "input_length is 0, less than 1"),
    (changed(GOOD, input_length=10.0), "input_length is 10.0, not an integer"),
    (changed(GOOD, input_length="10"), "input_length is '10', not an integer"),
    (changed(GOOD, input_length=True, hash_ids=[1]), "input_length is True, not an integer"),
    (changed(GOOD, input_length=None), "input_length is None, not an integer"),
    (changed(GOOD, input_length=2**31, hash_ids=[1]), "2147483648 prompt and 3 output tokens do not fit 32 bits"),
    (changed(GOOD, output_length=...), "output_length is missing"),
    (changed(GOOD, output_length=-1), "output_length is -1, less than 0"),
    (changed(GOOD, output_length=1.5), "output_length is 1.5, not an integer"),
    (changed(GOOD, output_length=2**31), "do not fit 32 bits"),
    (changed(GOOD, hash_ids=...), "hash_ids is missing"),
    (changed(GOOD, hash_ids={"0": 1}), "hash_ids is .*, not a list"),
    (changed(GOOD, hash_ids=[0, 1]), "hash_ids holds 2 ids, but input_length 10 at block size 4 needs 3"),
    (changed(GOOD, hash_ids=[0, 1, 2, 3]), "hash_ids holds 4 ids, but input_length 10 at block size 4 needs 3"),
    (changed(GOOD, input_length=12, hash_ids=[0, 1, 2, 3]), "holds 4 ids, but input_length 12 .* needs 3"),
    (changed(GOOD, hash_ids=[0, 1.0, 2]), r"hash_ids\[1\] is 1.0, neither an integer nor a string"),
    (changed(GOOD, hash_ids=[0, True, 2]), r"hash_ids\[1\] is True, neither"),
    (changed(GOOD, hash_ids=[0, None, 2]), r"hash_ids\[1\] is None, neither"),
    (changed(GOOD, hash_ids=[0, [1], 2]), r"hash_ids\[1\] is \[1\], neither"),
    (changed(GOOD, hash_ids=[0, 1, 2**64]), r"hash_ids\[2\] is 18446744073709551616, which does not fit 64 bits"),
    (changed(GOOD, hash_ids=[-(2**63) - 1, 1, 2]), r"hash_ids\[0\] is -9223372036854775809, which does not fit 64"),
]

TOKEN_FAULTS = [
    (changed(GOOD_TOKENS, arrival_time_ns=...), "arrival_time_ns is missing"),
    (changed(GOOD_TOKENS, arrival_time_ns=-5), "arrival_time_ns is -5, less than 0"),
    (changed(GOOD_TOKENS, input_toks=...), "input_toks is missing"),
    (changed(GOOD_TOKENS, input_toks=4), "input_tok_ids holds 3 tokens, but input_toks is 4"),
    (changed(GOOD_TOKENS, output_toks=1), "output_tok_ids holds 2 tokens, but output_toks is 1"),
    (changed(GOOD_TOKENS, output_toks=-2), "output_toks is -2, less than 0"),
    (changed(GOOD_TOKENS, input_tok_ids=...), "input_tok_ids is missing"),
    (changed(GOOD_TOKENS, input_tok_ids="567"), "input_tok_ids is '567', not a list"),
    (changed(GOOD_TOKENS, input_tok_ids=[5, -6, 7]), r"input_tok_ids\[1\] is -6, not an integer from 0"),
    (changed(GOOD_TOKENS, input_tok_ids=[5, 6, 2**31]), r"input_tok_ids\[2\] is 2147483648, not an integer from 0"),
    (changed(GOOD_TOKENS, input_tok_ids=[5, 6.0, 7]), r"input_tok_ids\[1\] is 6.0, not an integer"),
    (changed(GOOD_TOKENS, input_tok_ids=[True, 6, 7]), r"input_tok_ids\[0\] is True, not an integer"),
    (changed(GOOD_TOKENS, output_tok_ids=[8, "9"]), r"output_tok_ids\[1\] is '9', not an integer"),
]


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("format_name", "good", "bad", "reason"),
    [("mooncake", GOOD, *case) for case in MOONCAKE_FAULTS] + [("tokens", GOOD_TOKENS, *case) for case in TOKEN_FAULTS],
)
class TestFaultyRows:
    def test_stop_with_file_line_and_reason(self, tmp_path, format_name, good, bad, reason):
        path = write(tmp_path / "t.jsonl", good, "", bad, good)
        with pytest.raises(TraceFormatError) as caught:
            read_trace(path, format_name=format_name, block_size=4)
        assert str(caught.value).startswith(f"{path}:3: ")
        assert re.search(reason, str(caught.value)), str(caught.value)

    def test_are_counted_and_skipped_when_lenient(self, tmp_path, format_name, good, bad, reason):
        path = write(tmp_path / "t.jsonl", good, bad, "", bad, good)
        trace = read_trace(path, format_name=format_name, block_size=4, lenient=True)
        assert [request.index for request in trace.requests] == [0, 1]
        assert [fault.line_number for fault in trace.faults] == [2, 4]
        assert re.search(reason, trace.faults[1].reason)


@pytest.mark.usefixtures("parser")
class TestHashIds:
    def test_plain_ids_follow_the_rule_and_are_cut_to_the_prompt(self, tmp_path):
        path = write(tmp_path / "t", changed(GOOD, hash_ids=[0, 7, 3]))
        assert prompts(read_trace(path, block_size=4)) == [[0, 1, 2, 3, 28, 29, 30, 31, 12, 13]]

    def test_largest_plain_id(self, tmp_path):
        path = write(tmp_path / "t", changed(GOOD, input_length=512, hash_ids=[2**22 - 1]))
        tokens = read_trace(path, block_size=512).requests[0].tokens()
        assert tokens.dtype == np.int32
        assert (tokens[0], tokens[-1]) == (2**31 - 512, 2**31 - 1)

    @pytest.mark.parametrize("odd", [2**22, -1, -(2**63), 2**64 - 1, "0", "", "seven", "\ud800"])
    def test_one_odd_id_makes_all_ids_dense_in_order_of_first_appearance(self, tmp_path, odd):
        before = changed(GOOD, input_length=1024, hash_ids=[9, 4])
        after = changed(GOOD, input_length=1025, hash_ids=[9, odd, 4])
        path = write(tmp_path / "t", before, after, before)
        trace = read_trace(path, block_size=512)
        firsts = [tokens[::512] for tokens in prompts(trace)]
        assert firsts == [[0, 512], [0, 1024, 512], [0, 512]]

    def test_numbers_and_strings_are_different_ids(self, tmp_path):
        path = write(tmp_path / "t", changed(GOOD, hash_ids=["1", 1, "01"]))
        assert [tokens[::4] for tokens in prompts(read_trace(path, block_size=4))] == [[0, 4, 8]]

    def test_a_refused_row_leaves_no_ids_behind(self, tmp_path):
        path = write(tmp_path / "t", changed(GOOD, hash_ids=["a", 5, 2.5]), changed(GOOD, hash_ids=[8, "b", 9]))
        trace = read_trace(path, block_size=4, lenient=True)
        assert [tokens[::4] for tokens in prompts(trace)] == [[0, 4, 8]]

    def test_too_many_ids_for_32_bits(self, tmp_path):
        half = 2**30
        row = changed(GOOD, input_length=half + 1, hash_ids=["a", "b"])
        path = write(tmp_path / "t", row, changed(row, hash_ids=["a", "c"]))
        with pytest.raises(TraceFormatError, match="more than 2 different hash ids"):
            read_trace(path, block_size=half)

    def test_equal_ids_are_equal_tokens_under_both_rules(self, tmp_path):
        rows = [changed(GOOD, hash_ids=ids) for ids in ([3, 1, 2], [3, 1, 5], [2, 3, 1])]
        plain = read_trace(write(tmp_path / "p", *rows), block_size=4)
        dense = read_trace(write(tmp_path / "d", *rows, changed(GOOD, hash_ids=["x", 1, 2])), block_size=4)
        for one, other in zip(
            [t[i : i + 4] for t in prompts(plain) for i in (0, 4)],
            [t[i : i + 4] for t in prompts(dense)[:3] for i in (0, 4)],
            strict=True,
        ):
            assert (one[0] // 4 == 3) == (other[0] // 4 == 0)
            assert [token - one[0] for token in one] == [token - other[0] for token in other] == [0, 1, 2, 3]


@pytest.mark.usefixtures("parser")
class TestReading:
    def test_mooncake_rows_keep_file_order_whatever_their_times(self, tmp_path):
        path = write(
            tmp_path / "t", *(changed(GOOD, timestamp=t, hash_ids=[i, 8, 9]) for i, t in enumerate([9, 3, 3, 5]))
        )
        assert [tokens[0] // 4 for tokens in prompts(read_trace(path, block_size=4))] == [0, 1, 2, 3]

    def test_token_rows_are_sorted_by_arrival_and_equal_times_keep_file_order(self, tmp_path):
        times = [30, 10, 20, 10, 30, 10]
        path = write(
            tmp_path / "t",
            *(changed(GOOD_TOKENS, arrival_time_ns=t, input_tok_ids=[i, 0, 0]) for i, t in enumerate(times)),
        )
        trace = read_trace(path)
        assert [tokens[0] for tokens in prompts(trace)] == [1, 3, 5, 2, 0, 4]
        assert [request.index for request in trace.requests] == [0, 1, 2, 3, 4, 5]

    def test_output_ids_may_be_absent(self, tmp_path):
        path = write(tmp_path / "t", changed(GOOD_TOKENS, output_tok_ids=...))
        assert prompts(read_trace(path)) == [[5, 6, 7]]

    @pytest.mark.parametrize(("row", "name", "block_size"), [(GOOD, "mooncake", 4), (GOOD_TOKENS, "tokens", None)])
    def test_the_first_row_tells_the_format(self, tmp_path, row, name, block_size):
        trace = read_trace(write(tmp_path / "t", "", row, row), block_size=4)
        assert (trace.format, trace.block_size, len(trace.requests)) == (name, block_size, 2)

    def test_an_unknown_first_row_names_its_keys(self, tmp_path):
        path = write(tmp_path / "t", {"question": "x", "model": "y"})
        with pytest.raises(TraceFormatError, match=r":1: the row's keys \(question, model\) belong to no known format"):
            read_trace(path, block_size=4)

    def test_lenient_detection_passes_over_faulty_rows_and_counts_them(self, tmp_path):
        path = write(tmp_path / "t", "oops", {"x": 1}, GOOD)
        trace = read_trace(path, block_size=4, lenient=True)
        assert (trace.format, [fault.line_number for fault in trace.faults]) == ("mooncake", [1, 2])

    @pytest.mark.parametrize("lenient", [False, True])
    def test_a_file_without_requests_is_refused(self, tmp_path, lenient):
        for rows in ([], ["", "  "]):
            with pytest.raises(TraceFormatError):
                read_trace(write(tmp_path / "t", *rows), block_size=4, lenient=lenient)
            with pytest.raises(TraceFormatError, match="no request"):
                read_trace(write(tmp_path / "t", *rows), format_name="mooncake", block_size=4, lenient=lenient)

    def test_block_size_is_required_for_mooncake(self, tmp_path):
        path = write(tmp_path / "t", GOOD)
        with pytest.raises(InvalidInputError, match="give it with --block-size"):
            read_trace(path)
        with pytest.raises(InvalidInputError, match="block size is 0"):
            read_trace(path, block_size=0)

    @pytest.mark.parametrize(
        ("limit", "indices", "faults"), [(0, None, None), (1, 1, 0), (2, 1, 1), (3, 2, 1), (9, 2, 1)]
    )
    def test_limit_counts_rows_of_the_file(self, tmp_path, limit, indices, faults):
        path = write(tmp_path / "t", "", GOOD, "", "oops", GOOD)
        if indices is None:
            with pytest.raises(TraceFormatError):
                read_trace(path, block_size=4, lenient=True, limit=limit)
            return
        trace = read_trace(path, block_size=4, lenient=True, limit=limit)
        assert (len(trace.requests), len(trace.faults)) == (indices, faults)

    def test_rows_behind_the_limit_are_not_checked(self, tmp_path):
        path = write(tmp_path / "t", GOOD, "oops")
        assert len(read_trace(path, block_size=4, limit=1).requests) == 1

    def test_negative_limit(self, tmp_path):
        with pytest.raises(InvalidInputError, match="limit is -1"):
            read_trace(write(tmp_path / "t", GOOD), block_size=4, limit=-1)

    def test_gzip_is_told_by_content(self, tmp_path):
        path = tmp_path / "no_suffix"
        path.write_bytes(gzip.compress((json.dumps(GOOD) + "\n").encode() * 3))
        assert len(read_trace(path, block_size=4).requests) == 3

    def test_a_plain_file_may_be_called_gz(self, tmp_path):
        assert len(read_trace(write(tmp_path / "t.gz", GOOD), block_size=4).requests) == 1

    @pytest.mark.parametrize("lenient", [False, True])
    def test_broken_gzip_stops_with_its_line(self, tmp_path, lenient):
        text = "".join(json.dumps(changed(GOOD, timestamp=i * 7919 % 1000)) + "\n" for i in range(2000)).encode()
        path = tmp_path / "t.gz"
        path.write_bytes(gzip.compress(text)[:-200])
        with pytest.raises(TraceFormatError, match=r"t\.gz:\d+: cannot read on"):
            read_trace(path, block_size=4, lenient=lenient)

    @pytest.mark.parametrize("pack", [bytes, gzip.compress])
    def test_standard_input(self, monkeypatch, pack):
        content = pack((json.dumps(GOOD) + "\n").encode() * 2)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
        trace = read_trace("-", block_size=4)
        assert (trace.name, len(trace.requests)) == ("-", 2)

    def test_byte_order_mark_carriage_returns_and_missing_last_line_end(self, tmp_path):
        path = tmp_path / "t"
        path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n" + json.dumps(GOOD).encode())
        assert len(read_trace(path, block_size=4).requests) == 2

    def test_missing_file(self, tmp_path):
        with pytest.raises(InvalidInputError, match=r"cannot open trace .*nothing"):
            read_trace(tmp_path / "nothing", block_size=4)

    def test_unknown_format_name(self, tmp_path):
        with pytest.raises(InvalidInputError, match="unknown trace format 'csv'; known are dynamo, agentic"):
            read_trace(write(tmp_path / "t", GOOD), format_name="csv", block_size=4)

    def test_the_name_has_no_folders(self, tmp_path):
        assert read_trace(write(tmp_path / "t.jsonl", GOOD), block_size=4).name == "t.jsonl"


def test_each_expansion_is_new_and_small_blocks_work(tmp_path):
    request = read_trace(write(tmp_path / "t", changed(GOOD, hash_ids=list(range(10)))), block_size=1).requests[0]
    first = request.tokens()
    assert first.tolist() == list(range(10))
    assert not np.shares_memory(first, request.tokens())


def test_the_command_offers_exactly_the_registered_formats():
    assert format_or_none(None) is None
    assert format_or_none("auto") is None
    assert [format_or_none(name) for name in FORMAT_NAMES] == list(FORMAT_NAMES)
    with pytest.raises(typer.BadParameter, match="'csv' is not one of auto, dynamo"):
        format_or_none("csv")


def test_facts_of_the_public_traces(shared_dir):
    """Facts that hit_rates.md states about the Mooncake files, through our reader."""
    trace = read_trace(shared_dir / "traces" / "mooncake" / "conversation_trace.jsonl", block_size=512)
    requests = trace.requests
    assert len(requests) == 12_031
    assert sum(request.input_length for request in requests) == 144_793_823
    assert sum(len(request.source.ids) for request in requests) == 288_500
    assert len({request.timestamp for request in requests}) == 1_180
    assert min(request.input_length for request in requests) == 891
    assert len({hash_id for request in requests for hash_id in request.source.ids}) == 182_790
