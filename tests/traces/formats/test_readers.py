"""Readers of further trace formats: what they make of good rows, and how they refuse bad ones."""

from __future__ import annotations

import gzip
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from trtkv.errors import InvalidInputError, TraceFormatError
from trtkv.traces.formats.registry import FORMAT_NAMES, all_formats
from trtkv.traces.trace import RequestTrace, TraceRequest
from trtkv.traces.trace_reader import read_trace

KVSIM = {"block_size": 4, "input_length": 10, "hash_ids": [7, 8, 9], "output_length": 2}
BAILIAN = {
    "chat_id": 3,
    "parent_chat_id": -1,
    "timestamp": 61.114,
    "input_length": 33,
    "output_length": 5,
    "type": "text",
    "turn": 1,
    "hash_ids": [10, 11, 12],
}
SESSION = {
    "id": "s",
    "block_size": 4,
    "hash_id_scope": "local",
    "requests": [
        {"t": 0.0, "type": "n", "in": 9, "out": 1, "hash_ids": [1, 2]},
        {
            "t": 10.0,
            "type": "subagent",
            "requests": [
                {"t": 0.0, "type": "s", "in": 8, "out": 1, "hash_ids": [1, 5]},
                {"t": 25.0, "type": "s", "in": 12, "out": 1, "hash_ids": [1, 5, 6]},
            ],
        },
        {"t": 20.0, "type": "n", "in": 13, "out": 0, "hash_ids": [1, 2, 3]},
    ],
}
DYNAMO = {
    "schema": "dynamo.request.trace.v1",
    "event_type": "request_end",
    "event_time_unix_ms": 2000,
    "request": {
        "request_id": "a",
        "request_received_ms": 1500,
        "output_tokens": 3,
        "replay": {"trace_block_size": 4, "input_length": 7, "input_sequence_hashes": [2**64 - 1, 2**63]},
    },
}
AZURE_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens"


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def changed(row: dict, **fields: object) -> dict:
    """A deep copy with other fields; ``None`` takes one out, dots lead inwards."""
    copy = json.loads(json.dumps(row))
    for path, value in fields.items():
        *outer, last = path.split("__")
        inner = copy
        for key in outer:
            inner = inner[int(key)] if isinstance(inner, list) else inner[key]
        if value is None:
            del inner[last]
        else:
            inner[last] = value
    return copy


def read(path: Path, **settings: object) -> RequestTrace:
    return read_trace(path, **settings)  # type: ignore[arg-type]


def common_prefix(a: TraceRequest, b: TraceRequest) -> int:
    pairs = zip(a.tokens().tolist(), b.tokens().tolist(), strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(a.input_length, b.input_length))


# kvcache-simulator


def test_kvcache_simulator_rows_share_the_blocks_they_name(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", KVSIM, changed(KVSIM, hash_ids=[7, 8, 5], input_length=12), changed(KVSIM))
    loaded = read(path)
    assert loaded.detected == "kvcache-simulator (the first row has block_size, input_length, hash_ids)"
    assert (loaded.format, loaded.block_size, loaded.name) == ("kvcache-simulator", 4, "t.jsonl")
    first, second, third = loaded.requests
    assert (first.input_length, first.output_length, first.index, third.index) == (10, 2, 0, 2)
    assert common_prefix(first, second) == 8
    assert common_prefix(first, third) == 10
    assert first.tokens().dtype == np.int32


def test_ids_of_full_blocks_leave_the_rest_without_identity(tmp_path: Path) -> None:
    row = changed(KVSIM, hash_ids=[7, 8])
    first, second = read(write(tmp_path / "t.jsonl", row, row)).requests
    assert len(first.tokens()) == 10
    assert common_prefix(first, second) == 8


def test_decimal_text_and_number_name_the_same_block(tmp_path: Path) -> None:
    rows = [changed(KVSIM, hash_ids=ids) for ids in ([7, 8, 9], ["7", "08", 9])]
    first, second = read(write(tmp_path / "t.jsonl", *rows)).requests
    assert common_prefix(first, second) == 4


def test_blocks_with_lengths_of_their_own(tmp_path: Path) -> None:
    long = changed(KVSIM, block_tokens=[4, 2, 3])
    short = changed(KVSIM, block_tokens=[4, 1], hash_ids=[7, 8], input_length=5)
    other = changed(KVSIM, block_tokens=[3, 2], hash_ids=[7, 8], input_length=5)
    a, b, c = read(write(tmp_path / "t.jsonl", long, short, other)).requests
    assert [len(request.tokens()) for request in (a, b, c)] == [10, 5, 5]
    assert (common_prefix(a, b), common_prefix(a, c)) == (5, 3)
    assert a.tokens().tolist()[:9] == [0, 1, 2, 3, 4, 5, 8, 9, 10]
    assert a.tokens()[9] not in (*b.tokens(), *c.tokens())


def test_block_size_option_stands_in_but_may_not_contradict(tmp_path: Path) -> None:
    bare = write(tmp_path / "bare.jsonl", changed(KVSIM, block_size=None))
    with pytest.raises(InvalidInputError, match="--block-size"):
        read(bare, format_name="kvcache-simulator")
    loaded = read(bare, block_size=4, format_name="kvcache-simulator")
    assert loaded.block_size == 4
    with pytest.raises(TraceFormatError, match=r"t.jsonl:1: block_size is 4, but --block-size says 16"):
        read(write(tmp_path / "t.jsonl", KVSIM), block_size=16)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"hash_ids": [7]}, "hash_ids holds 1 ids, but 10 prompt tokens in blocks of 4 need 2 or 3"),
        ({"hash_ids": [7, 8, 9, 1]}, "hash_ids holds 4 ids"),
        ({"hash_ids": [7, 8, True]}, "hash_ids[2] is True, neither an integer nor a string"),
        ({"hash_ids": [7, 8, 2**64]}, "does not fit 64 bits"),
        ({"hash_ids": "7"}, "hash_ids is '7', not a list"),
        ({"input_length": 0}, "input_length is 0, less than 1"),
        ({"input_length": 10.0}, "input_length is 10.0, not an integer"),
        ({"block_size": 0}, "block_size is 0, less than 1"),
        ({"block_size": 5, "hash_ids": [1, 2]}, "block size is 5, but it was 4 in rows before"),
        ({"block_tokens": [4, 4]}, "block_tokens holds 2 numbers for 3 hash_ids"),
        ({"block_tokens": [4, 4, 5]}, "block_tokens[2] is 5, not an integer from 1 to 4"),
        ({"block_tokens": [4, 4, 4]}, "block_tokens add up to 12, more than input_length 10"),
        ({"output_length": -1}, "output_length is -1, less than 0"),
        ({"timestamp": "now"}, "timestamp is 'now', not a number"),
        ({"output_length": 2**31}, "do not fit 32 bits"),
    ],
)
def test_faulty_kvcache_simulator_rows(tmp_path: Path, fields: dict, reason: str) -> None:
    path = write(tmp_path / "t.jsonl", KVSIM, changed(KVSIM, **fields), KVSIM)
    with pytest.raises(TraceFormatError) as caught:
        read(path)
    assert f"t.jsonl:2: {reason}" in str(caught.value) or (
        "t.jsonl:2:" in str(caught.value) and reason in str(caught.value)
    )
    loaded = read(path, lenient=True)
    assert [request.index for request in loaded.requests] == [0, 1]
    assert [fault.line_number for fault in loaded.faults] == [2]
    first, last = loaded.requests
    assert common_prefix(first, last) == 10  # the refused row left nothing behind


# Bailian


def test_bailian_rows_are_sorted_by_time_with_blocks_of_16(tmp_path: Path) -> None:
    early = changed(BAILIAN, timestamp=1, hash_ids=[10, 11], input_length=32)
    tie = changed(BAILIAN, hash_ids=[99, 11, 12])
    loaded = read(write(tmp_path / "t.jsonl", BAILIAN, tie, early))
    assert (loaded.format, loaded.block_size) == ("bailian", 16)
    assert [request.timestamp for request in loaded.requests] == [1, 61.114, 61.114]
    assert common_prefix(loaded.requests[0], loaded.requests[1]) == 32
    assert common_prefix(loaded.requests[1], loaded.requests[2]) == 0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"hash_ids": [1]}, "need 2 or 3"),
        ({"hash_ids": None}, "hash_ids is missing"),
        ({"chat_id": -1}, "chat_id is -1, less than 0"),
        ({"parent_chat_id": -2}, "parent_chat_id is -2, less than -1"),
        ({"turn": 0}, "turn is 0, less than 1"),
        ({"type": 3}, "type is 3, not a string"),
        ({"timestamp": None}, "timestamp is missing"),
    ],
)
def test_faulty_bailian_rows(tmp_path: Path, fields: dict, reason: str) -> None:
    with pytest.raises(TraceFormatError, match=f"t.jsonl:2: .*{reason}"):
        read(write(tmp_path / "t.jsonl", BAILIAN, changed(BAILIAN, **fields)))


def test_bailian_with_another_block_size(tmp_path: Path) -> None:
    loaded = read(write(tmp_path / "t.jsonl", changed(BAILIAN, hash_ids=[1, 2])), block_size=32)
    assert loaded.block_size == 32


# agent sessions


def test_session_is_flattened_by_time_with_sub_agents(tmp_path: Path) -> None:
    loaded = read(write(tmp_path / "t.json", SESSION))
    assert (loaded.format, loaded.block_size) == ("agentic", 4)
    requests = loaded.requests
    assert [(request.timestamp, request.input_length) for request in requests] == [(0, 9), (10, 8), (20, 13), (35, 12)]
    main, sub, main_again, sub_again = requests
    assert common_prefix(main, sub) == 4  # local: an id means the same for sub-agents of the session
    assert common_prefix(main, main_again) == 9  # the 9th token has no name, but the next turn goes on from it
    assert common_prefix(sub, sub_again) == 8


@pytest.mark.parametrize(
    ("scope", "with_sub_agent", "with_other_session"), [("local", 4, 0), ("global", 4, 8), ("per_context", 0, 0)]
)
def test_scope_says_where_an_id_means_the_same(
    tmp_path: Path, scope: str, with_sub_agent: int, with_other_session: int
) -> None:
    session = changed(SESSION, hash_id_scope=scope)
    requests = read(write(tmp_path / "t.jsonl", session, session)).requests
    assert common_prefix(requests[0], requests[1]) == with_sub_agent
    assert common_prefix(requests[0], requests[4]) == with_other_session


def test_sessions_of_a_folder_follow_each_other_by_name(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write(tmp_path / f"{name}.json", changed(SESSION, requests__0__in=9 if name == "a" else 10))
    (tmp_path / ".hidden.json").write_text("broken")
    (tmp_path / "README.md").write_text("no trace")
    loaded = read(tmp_path)
    assert [request.input_length for request in loaded.requests] == [9, 8, 13, 12, 10, 8, 13, 12]
    assert loaded.name == tmp_path.name


def test_pretty_printed_session_is_one_row(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(SESSION, indent=1))
    assert len(read(path).requests) == 4


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"requests__0__hash_ids": [1]},
            r"requests\[0\]\.hash_ids holds 1 ids, but 9 prompt tokens fill 2 blocks of 4",
        ),
        ({"requests__1__requests__1__in": "x"}, r"requests\[1\]\.requests\[1\]\.in is 'x', not an integer"),
        ({"requests__1__t": -1}, r"requests\[1\]\.t is -1, less than 0"),
        ({"requests__1__requests": 5}, r"requests\[1\]\.requests is 5, not a list"),
        ({"requests": []}, "the session has no request"),
        ({"requests__0": 5}, "__0"),
        ({"hash_id_scope": "galactic"}, "hash_id_scope is 'galactic', not one of local, global, per_context"),
    ],
)
def test_faulty_sessions(tmp_path: Path, fields: dict, reason: str) -> None:
    if "requests__0" in fields:
        session, reason = changed(SESSION), r"requests\[0\] is 5, not an object"
        session["requests"][0] = 5
    else:
        session = changed(SESSION, **fields)
    path = write(tmp_path / "t.jsonl", SESSION, session, SESSION)
    with pytest.raises(TraceFormatError, match=f"t.jsonl:2: .*{reason}"):
        read(path)
    assert len(read(path, lenient=True).requests) == 8


def test_public_sessions_have_the_known_shared_blocks(shared_dir: Path) -> None:
    expected = {"0504": (343, 525), "0187": (338, 558), "0103": (483, 771), "0012": (9121, 10140)}
    for number, counts in expected.items():
        loaded = read(shared_dir / "traces" / "agentic" / f"trace_{number}.json")
        seen: set[tuple[int, ...]] = set()
        hits = total = 0
        for request in loaded.requests:
            tokens = request.tokens()
            firsts = tuple(tokens[: request.input_length // 64 * 64 : 64].tolist())
            total += len(firsts)
            hits += sum(firsts[: i + 1] in seen for i in range(len(firsts)))
            seen.update(firsts[: i + 1] for i in range(len(firsts)))
        assert (hits, total) == counts


# Dynamo


def test_dynamo_records_of_several_shards_in_order_of_reception(tmp_path: Path) -> None:
    def record(name: str, received: int, hashes: list[int]) -> dict:
        return changed(
            DYNAMO,
            request__request_id=name,
            request__request_received_ms=received,
            request__replay__input_sequence_hashes=hashes,
        )

    tool = {"schema": DYNAMO["schema"], "event_type": "tool_end", "tool": {}}
    folder = tmp_path / "shards"
    folder.mkdir()
    with gzip.open(folder / "t.000000.jsonl.gz", "wt") as stream:
        stream.write(json.dumps(record("a", 300, [1, 2])) + "\n" + json.dumps(tool) + "\n")
    write(folder / "t.000001.jsonl", {"timestamp": 1, "event": record("b", 100, [1, 3])}, record("c", 300, [1, 2]))
    loaded = read(folder)
    assert loaded.detected == "dynamo (the first row has schema dynamo.request.trace.v1)"
    b, a, c = loaded.requests
    assert (b.timestamp, a.timestamp, b.output_length, loaded.block_size) == (100, 300, 3, 4)
    assert (common_prefix(a, c), common_prefix(a, b)) == (7, 4)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"request__request_id": "a"}, "request_id 'a' was used before"),
        ({"request__replay": None}, "request.replay is missing"),
        ({"request__request_received_ms": None}, "request.request_received_ms is missing"),
        ({"request__output_tokens": None}, "request.output_tokens is missing"),
        ({"request__replay__trace_block_size": 0}, "request.replay.trace_block_size is 0, less than 1"),
        (
            {"request__replay__trace_block_size": 8, "request__replay__input_sequence_hashes": [1]},
            "block size is 8, but",
        ),
        (
            {"request__replay__input_sequence_hashes": [1]},
            "input_sequence_hashes holds 1 ids, but 7 prompt tokens .* need 2",
        ),
        ({"schema": "dynamo.request.trace.v2"}, "schema is 'dynamo.request.trace.v2', not dynamo"),
        ({"event_type": "request_start"}, "event_type is 'request_start', which"),
    ],
)
def test_faulty_dynamo_records(tmp_path: Path, fields: dict, reason: str) -> None:
    bad = changed(DYNAMO, **{"request__request_id": "b", **fields})
    path = write(tmp_path / "t.jsonl", DYNAMO, bad, changed(DYNAMO, request__request_id="b"))
    with pytest.raises(TraceFormatError, match=f"t.jsonl:2: .*{reason}"):
        read(path)
    assert len(read(path, lenient=True).requests) == 2


def test_block_size_that_contradicts_the_records_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="trace_block_size is 4, but --block-size says 16"):
        read(write(tmp_path / "t.jsonl", DYNAMO), block_size=16)
    with pytest.raises(InvalidInputError, match="block_size is 4, but --block-size says 16"):
        read(write(tmp_path / "s.jsonl", SESSION), block_size=16)


# lengths only


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("azure", f"{AZURE_HEAD}\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:45.5,396,109\n"),
        ("azure", f"{AZURE_HEAD}\n2024-05-12 00:00:01+00:00,374,44\n2024-05-12 00:00:00Z,396,109\n"),
        (
            "burstgpt",
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,x,374,44,8,y\n4.5,x,396,109,1,y\n",
        ),
        ("burstgpt", "Timestamp,Session ID,Request tokens,Response tokens\n5,x,374,44\n4.5,,396,109\n"),
        ("vidur", ",arrived_at,num_prefill_tokens,num_decode_tokens\n0,2.5,374,44\n1,1,396,109\n"),
    ],
)
def test_lengths_only_are_refused_for_hit_rates_and_read_for_sizes(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=rf"t.csv \({name}\) holds lengths only: .* would be 0 by construction"):
        read(path)
    loaded = read(path, allow_lengths_only=True)
    assert loaded.format == name
    assert [(request.input_length, request.output_length) for request in loaded.requests] == [
        (396, 109),
        (374, 44),
    ]
    assert loaded.requests[0].timestamp < loaded.requests[1].timestamp
    with pytest.raises(InvalidInputError, match="lengths only"):
        loaded.requests[0].tokens()


def test_azure_times_are_seconds_utc(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{AZURE_HEAD}\n1970-01-01 00:00:02.2500000,1,0\n1970-01-01 01:00:03+01:00,1,0\n")
    requests = read(path, allow_lengths_only=True).requests
    assert [request.timestamp for request in requests] == [2.25, 3.0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2023-11-16 18:15:46,0,44", "ContextTokens is 0, less than 1"),
        ("2023-11-16 18:15:46,x,44", "ContextTokens is 'x', not an integer"),
        ("2023-11-16 18:15:46,3,-4", "GeneratedTokens is '-4', not an integer"),
        ("yesterday,3,4", "TIMESTAMP is 'yesterday', neither seconds nor a date and time"),
        ("nan,3,4", "TIMESTAMP is 'nan', neither"),
        ("2023-11-16 18:15:46,3", "the row has 2 cells, the header 3"),
    ],
)
def test_faulty_csv_rows(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{AZURE_HEAD}\n2023-11-16 18:15:46,3,4\n\n{line}\n2023-11-16 18:15:47,3,4\n")
    with pytest.raises(TraceFormatError, match=f"t.csv:4: {reason}"):
        read(path, allow_lengths_only=True)
    loaded = read(path, allow_lengths_only=True, lenient=True)
    assert len(loaded.requests) == 2
    assert [fault.line_number for fault in loaded.faults] == [4]


# files, folders, detection


def test_basic_formats_are_read_by_the_same_call(tmp_path: Path) -> None:
    mooncake = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}
    loaded = read(write(tmp_path / "m.jsonl", mooncake), block_size=512)
    assert (loaded.detected, loaded.block_size) == ("mooncake (the first row has input_length, hash_ids)", 512)
    tokens = {"input_toks": 2, "output_toks": 0, "arrival_time_ns": 1, "input_tok_ids": [3, 4]}
    loaded = read(write(tmp_path / "t.jsonl", tokens))
    assert (loaded.format, loaded.block_size) == ("tokens", None)
    assert loaded.requests[0].tokens().tolist() == [3, 4]


def test_array_of_rows_keeps_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(
        "\n[\n" + json.dumps(KVSIM) + ",\n" + json.dumps(KVSIM, indent=1) + ",\n5,\n" + json.dumps(KVSIM) + "\n]\n"
    )
    with pytest.raises(TraceFormatError, match=r"t.json:14: the element is 5, not an object"):
        read(path)
    assert len(read(path, lenient=True).requests) == 3
    assert len(read(path, limit=2).requests) == 2


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("[\n{}\n{}]", 3, "no comma after an element"),
        ('[\n{"a": 1},\n', 3, "the array is not closed"),
        ('[\n{"a": 1}\n]\nx', 4, "something follows the document"),
        ('[\n{"a": }]', 2, "Expecting value at column 7"),
        ('[\n\n{"a": NaN}]', 3, "NaN is not a number"),
        ("[\n" + "[" * 200_000, 2, "nested too deeply"),
    ],
)
def test_broken_documents(tmp_path: Path, text: str, line: int, reason: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(TraceFormatError, match=f"t.json:{line}: bad JSON: {reason}"):
        read(path, lenient=True, format_name="tokens")


def test_broken_first_line_of_many_is_a_faulty_row(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"block_size": 4,\n' + json.dumps(KVSIM) + "\n")
    with pytest.raises(TraceFormatError, match=r"t.jsonl:1: bad JSON"):
        read(path)
    assert len(read(path, lenient=True).requests) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1}\n', "the row's keys (a) belong to no known format (dynamo, agentic,"),
        ('{"input_length": 1}\n', "nearest is bailian, which has chat_id, input_length, hash_ids"),
        ("a,b\n1,2\n", "t:1: the columns (a, b) belong to no known format, and the line is not a JSON object: azure"),
        ("\na,b\n", "t:2: the columns (a, b) belong to no known format"),
        ("TIMESTAMP;ContextTokens;GeneratedTokens\n1;2;3\n", "columns are separated by commas"),
        ('TIMESTAMP,"ContextTokens,GeneratedTokens\n1,2,3\n', "t:1: bad CSV: a quotation mark is not closed"),
        ("", "t: holds no request: the file is empty"),
        ("\n\n", "t: holds no request: the file is empty"),
        ("\ufeff", "t: holds no request: the file is empty"),
        ("[]", "t: holds no request: the file is empty"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "t: holds no request: the file is empty"),
    ],
)
def test_unknown_files(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    for data in (text.encode(), gzip.compress(text.encode())):
        path.write_bytes(data)
        with pytest.raises(TraceFormatError) as caught:
            read(path, allow_lengths_only=True)
        assert reason in str(caught.value)


KVSIM_LINE = json.dumps(KVSIM)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ("hello world", "bad JSON: a row starts with {, not with 'hello world'"),
        ("# exported today", "bad JSON: a row starts with {, not with '# exported today'"),
        (KVSIM_LINE[1:], "bad JSON: a row starts with {, not with"),
        (KVSIM_LINE[:-1], "bad JSON: Expecting ',' delimiter at column"),
        (KVSIM_LINE[:12], "bad JSON: Unterminated string starting at column"),
        (KVSIM_LINE + ",", "bad JSON: something follows the object at column"),
        (KVSIM_LINE + KVSIM_LINE, "bad JSON: something follows the object at column"),
        ("42", "the row is a JSON number, not an object"),
        ("null", "the row is a JSON null, not an object"),
    ],
)
@pytest.mark.parametrize("format_name", [None, "kvcache-simulator", "mooncake", "azure"])
def test_broken_first_line_is_a_faulty_row_whatever_it_is(
    tmp_path: Path, first: str, reason: str, format_name: str | None
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f"\n{first}\n{KVSIM_LINE}\n")
    with pytest.raises(TraceFormatError) as caught:
        read(path, format_name=format_name, allow_lengths_only=True)
    assert f"t.jsonl:2: {reason}" in str(caught.value)
    if format_name in (None, "kvcache-simulator"):
        loaded = read(path, format_name=format_name, lenient=True)
        assert (len(loaded.requests), loaded.faults[0].line_number) == (1, 2)


def test_file_with_nothing_but_broken_rows_names_the_first(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("{'a': 1}\n{'a': 2}\n")
    for format_name in (None, "tokens"):
        with pytest.raises(TraceFormatError, match=r"1: bad JSON: Expecting property name"):
            read(path, format_name=format_name, lenient=True)
    with pytest.raises(TraceFormatError, match=r"t.jsonl: none of its 2 rows can be used; the first is line 1: bad"):
        read(path, format_name="tokens", lenient=True)


def test_broken_file_of_a_folder_is_not_left_out_in_silence(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", KVSIM)
    (tmp_path / "b.jsonl").write_text(KVSIM_LINE[1:] + "\n")
    for format_name in (None, "kvcache-simulator"):
        with pytest.raises(TraceFormatError, match=r"b.jsonl:1: bad JSON: a row starts with"):
            read(tmp_path, format_name=format_name)
        assert [fault.line_number for fault in read(tmp_path, lenient=True).faults] == [1]


def test_limit_of_no_rows_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", KVSIM)
    for format_name in (None, "kvcache-simulator"):
        with pytest.raises(TraceFormatError, match=r"t.jsonl: the limit is 0, so no row was read"):
            read(path, format_name=format_name, limit=0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xfd7zXZ\x00...", "compressed with xz; unpack it"),
        (b"BZh91AY", "compressed with bzip2; unpack it"),
        (b"PK\x03\x04...", "a zip archive; unpack it"),
        (KVSIM_LINE.encode("utf-16"), "UTF-16 text; convert it to UTF-8"),
        (KVSIM_LINE.encode("utf-16-le"), "1: a byte is 0: the file is binary or UTF-16"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n", "fetch the trace with git lfs pull"),
    ],
)
def test_files_that_are_no_text_are_named_for_what_they_are(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(data)
    for format_name in (None, "mooncake", "azure"):
        with pytest.raises(TraceFormatError, match=re.escape(reason)):
            read(path, format_name=format_name)


CONTENTS = {
    "tokens": json.dumps(
        {"input_toks": 1, "output_toks": 1, "arrival_time_ns": 0, "input_tok_ids": [1], "output_tok_ids": [2]}
    ),
    "sharegpt": json.dumps({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}),
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3",
    "burstgpt": "Timestamp,Request tokens,Response tokens\n1,2,3",
}


@pytest.mark.parametrize("named", FORMAT_NAMES)
@pytest.mark.parametrize("content", list(CONTENTS))
def test_wrong_format_for_the_content_names_line_and_right_format(tmp_path: Path, named: str, content: str) -> None:
    path = tmp_path / "t"
    path.write_text(CONTENTS[content] + "\n")
    if named == content:
        return
    with pytest.raises(InvalidInputError) as caught:
        read(path, format_name=named)
    assert str(caught.value).startswith(f"{path}:1: ")
    assert f"it looks like {content}: leave --format {named} out, or give {content}" in str(caught.value)


def test_unknown_format_name_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="unknown trace format 'x'; known are dynamo, agentic"):
        read(write(tmp_path / "t.jsonl", KVSIM), format_name="x")
    with pytest.raises(InvalidInputError, match="cannot open trace"):
        read(tmp_path / "nothing.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInputError, match="empty: no trace file was found in the folder"):
        read(tmp_path / "empty")


def test_folder_of_different_formats_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.json", SESSION)
    write(tmp_path / "b.jsonl", KVSIM)
    with pytest.raises(InvalidInputError, match=r"the folder mixes formats: a.json and b.jsonl differ"):
        read(tmp_path)


def test_faults_and_limit_of_a_folder_count_over_files(tmp_path: Path) -> None:
    bad = changed(KVSIM, input_length=0)
    write(tmp_path / "a.jsonl", KVSIM, bad)
    write(tmp_path / "b.jsonl", bad, KVSIM, KVSIM)
    with pytest.raises(TraceFormatError, match=r"a.jsonl:2: input_length is 0"):
        read(tmp_path)
    loaded = read(tmp_path, lenient=True)
    assert [request.index for request in loaded.requests] == [0, 1, 2]
    assert [(fault.line_number, fault.reason[:8]) for fault in loaded.faults] == [
        (2, "a.jsonl:"),
        (1, "b.jsonl:"),
    ]
    assert len(read(tmp_path, lenient=True, limit=4).requests) == 2
    assert len(read(tmp_path, lenient=True, limit=1).requests) == 1
    with pytest.raises(InvalidInputError, match="limit is -1"):
        read(tmp_path, limit=-1)


def test_gzip_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = gzip.compress((json.dumps(KVSIM) + "\n").encode())
    (tmp_path / "t.jsonl").write_bytes(data)
    assert len(read(tmp_path / "t.jsonl").requests) == 1

    class Stdin:
        buffer = io.BufferedReader(io.BytesIO(b"\xef\xbb\xbf" + json.dumps(KVSIM).encode()))  # type: ignore[arg-type]

    monkeypatch.setattr("sys.stdin", Stdin)
    loaded = read(Path("-"))
    assert (len(loaded.requests), loaded.name) == (1, "-")


def test_broken_gzip_names_file_and_line(tmp_path: Path) -> None:
    data = gzip.compress((json.dumps(KVSIM) + "\n").encode() * 5000)
    for length in (12, len(data) // 2):
        (tmp_path / "t.jsonl").write_bytes(data[:length])
        with pytest.raises(TraceFormatError, match=r"t.jsonl:\d+: cannot read on"):
            read(tmp_path / "t.jsonl")


def test_too_many_blocks_for_32_bits(tmp_path: Path) -> None:
    huge = {"block_size": 2**30, "input_length": 1, "hash_ids": ["x"]}
    rows = [changed(huge, hash_ids=[str(i) + "x"]) for i in range(3)]
    assert len(read(write(tmp_path / "ok.jsonl", *rows[:2])).requests) == 2
    with pytest.raises(TraceFormatError, match="more than 2 different blocks"):
        read(write(tmp_path / "t.jsonl", *rows))


def test_every_format_has_a_summary_and_a_name_of_its_own() -> None:
    assert [(found.name, bool(found.summary)) for found in all_formats()] == [(name, True) for name in FORMAT_NAMES]
    assert set(FORMAT_NAMES) >= {
        "mooncake",
        "tokens",
        "kvcache-simulator",
        "bailian",
        "agentic",
        "dynamo",
        "openai",
        "sharegpt",
    }


def test_a_tokenizer_for_a_trace_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [1]}\n')
    with pytest.raises(InvalidInputError, match=r"trace\.jsonl \(mooncake\) is not a text format; --tokenizer"):
        read_trace(path, block_size=512, tokenizer=tmp_path)
    with pytest.raises(InvalidInputError, match="--chat-template chatml"):
        read_trace(path, block_size=512, chat_template="chatml")
