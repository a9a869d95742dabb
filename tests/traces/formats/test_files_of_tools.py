"""Small files as the tools that write them document them: what is read, and how faults are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trtkv.errors import InvalidInputError, TraceFormatError
from trtkv.traces.outputs import generated_tokens, output_tokens
from trtkv.traces.trace import RequestTrace, TraceRequest
from trtkv.traces.trace_reader import read_trace

pytest.importorskip("tokenizers", reason="the extra tokenizers is not installed")

DATA = Path(__file__).parents[2] / "data" / "traces"
WORDS = DATA / "words"
VOCABULARY = json.loads((WORDS / "tokenizer.json").read_text())["model"]["vocab"] | {
    "<|im_start|>": 11,
    "<|im_end|>": 12,
    "<s>": 13,
}


def ids(text: str) -> list[int]:
    return [VOCABULARY[word] for word in text.split()]


def chat(*messages: str) -> list[int]:
    """Tokens of messages, each a role and its words, up to where the answer starts."""
    return ids(" ".join([f"<|im_start|> {message} <|im_end|>" for message in messages] + ["<|im_start|> assistant"]))


def read(name: str, **settings: object) -> RequestTrace:
    return read_trace(DATA / name, tokenizer=WORDS, **settings)  # type: ignore[arg-type]


def prompts(trace: RequestTrace) -> list[list[int]]:
    return [request.tokens().tolist() for request in trace.requests]


def outputs(trace: RequestTrace) -> list[list[int] | None]:
    return [None if request.output is None else request.output.tokens().tolist() for request in trace.requests]


def lengths(trace: RequestTrace) -> list[int]:
    return [request.output_length for request in trace.requests]


def test_trtllm_bench() -> None:
    trace = read("trtllm_bench.jsonl")
    assert trace.detected == "trtllm-bench (the first row has task_id, output_tokens)"
    assert prompts(trace) == [[5, 6, 7, 8], [5, 6, 7, 9, 10], ids("hello there you"), [5, 6, 7, 8]]
    assert lengths(trace) == [3, 2, 4, 1]
    assert [request.constraints and request.constraints.lora_task_id for request in trace.requests] == [None] * 3 + [7]
    assert not any(request.is_timed for request in trace.requests)
    assert read("guidellm.jsonl").seconds_per_unit is None


def test_ids_need_no_tokenizer_and_text_says_its_line(tmp_path: Path) -> None:
    lines = (DATA / "trtllm_bench.jsonl").read_text().splitlines(keepends=True)
    path = tmp_path / "t.jsonl"
    path.write_text("".join(lines[:2]))
    assert len(read_trace(path).requests) == 2
    path.write_text("".join(lines))
    with pytest.raises(InvalidInputError, match=r"t\.jsonl:3: the row holds text: name a local tokenizer file"):
        read_trace(path)


def test_vllm_custom_rows_may_lack_the_output_length() -> None:
    with pytest.raises(TraceFormatError, match=r"vllm_custom\.jsonl:1: nothing tells .* with --output-length"):
        read("vllm_custom.jsonl")
    trace = read("vllm_custom.jsonl", output_length=7)
    assert trace.detected == "openai (the first row has prompt)"
    assert prompts(trace) == [ids("hello there you"), ids("hello there"), [3, 4, 5]]
    assert lengths(trace) == [7, 5, 2]
    with pytest.raises(InvalidInputError, match="output length is -1; give 0 or more"):
        read("vllm_custom.jsonl", output_length=-1)


def test_vllm_engine_outputs() -> None:
    trace = read("vllm_outputs.jsonl")
    assert prompts(trace) == [[3, 4], [3, 4, 7, 9]]
    assert (lengths(trace), outputs(trace)) == ([2, 0], [[7, 8], None])


def test_guidellm() -> None:
    trace = read("guidellm.jsonl")
    assert (prompts(trace), lengths(trace)) == ([ids("hello there you"), ids("hello there")], [6, 1])


def test_sglang_requests_are_in_the_order_in_which_they_came_in() -> None:
    trace = read("sglang.jsonl")
    assert trace.detected == "sglang (the first row has rid, event request.received)"
    assert prompts(trace) == [ids("hello there"), [1, 2, 3]]
    assert outputs(trace) == [ids("bye you"), [9, 9, 8]]
    assert [request.timestamp - trace.requests[0].timestamp for request in trace.requests] == [0.0, 0.5]
    assert trace.seconds_per_unit == 1.0


def test_lmsys_and_wildchat_conversations() -> None:
    trace = read("lmsys.jsonl")
    assert trace.detected == "sharegpt (the first row has conversation)"
    second = chat("user hello", "assistant hello there", "user bye")
    assert prompts(trace) == [chat("user hello"), second]
    assert outputs(trace) == [ids("hello there"), ids("bye you")]
    assert [(request.session, request.turn, request.predecessors) for request in trace.requests] == [
        ("c1", 0, ()),
        ("c1", 1, (0,)),
    ]
    same_name = read("wildchat.jsonl").requests
    assert [(request.session, request.predecessors) for request in same_name] == [("h1", ()), ("h1 #1", ())]


def test_lmcache_agents_tell_answers_by_the_next_input() -> None:
    trace = read("lmcache_agent.jsonl")
    assert trace.detected == "lmcache-agent (the first row has session_id, input)"
    assert prompts(trace)[0] == chat("system you are kind", "user hello")
    assert lengths(trace) == [2, 1, 3]
    assert outputs(trace) == [ids("hello there"), None, None]  # three words said, two generated
    assert [(request.predecessors, request.delay_seconds) for request in trace.requests] == [
        ((), 0.0),
        ((), 0.0),
        ((0,), 1.5),
    ]


def test_lmcache_rows_with_text() -> None:
    trace = read("lmcache_text.jsonl")
    assert (prompts(trace)[0], outputs(trace)) == (ids("hello there"), [ids("bye you"), ids("bye")])
    assert [(request.timestamp, request.predecessors) for request in trace.requests] == [(1.0, ()), (2.5, (0,))]


def test_aiperf_text_rows() -> None:
    trace = read("aiperf_mooncake.jsonl")
    assert trace.detected == "aiperf (the first row has text_input)"
    assert prompts(trace) == [ids("hello there"), ids("hello there you"), ids("bye")]
    assert [(r.session, r.predecessors, r.delay_seconds, r.is_timed) for r in trace.requests] == [
        ("s1", (), 0.0, True),
        ("s1", (0,), 0.25, False),
        (None, (), 0.0, True),
    ]


@pytest.mark.parametrize(
    ("name", "second", "delay"),
    [("aiperf_delta.jsonl", "user bye", 0.1), ("aiperf_multi_turn.jsonl", "user bye you", 1.0)],
)
def test_rows_that_hold_only_what_is_new(name: str, second: str, delay: float) -> None:
    trace = read(name)
    first, later = trace.requests[:2]
    whole = chat("user hello") + generated_tokens(0, 2).tolist() + chat(second)
    assert prompts(trace)[:2] == [chat("user hello"), whole]
    assert (later.input_length, later.is_delta, later.predecessors, later.delay_seconds) == (
        len(whole),
        True,
        (0,),
        delay,
    )
    assert (first.is_delta, lengths(trace)[:2]) == (False, [2, 1])


def test_openai_logs_with_dates_and_hidden_reasoning() -> None:
    trace = read("openai_log.jsonl")
    first, second = trace.requests
    assert (second.timestamp - first.timestamp, second.predecessors, second.delay_seconds) == (2.25, (0,), 0.5)
    assert (first.output_length, first.output and first.output.start) == (5, 2)
    made_up = generated_tokens(0, 5).tolist()
    assert output_tokens(first).tolist() == [*made_up[:2], *ids("hello there"), made_up[4]]


def test_mooncake_rows_that_name_what_they_wait_for() -> None:
    trace = read_trace(DATA / "mooncake_waits.jsonl", block_size=4)
    a, b, c, d = trace.requests
    assert [r.predecessors for r in (a, b, c, d)] == [(), (0,), (1, 3), ()]
    assert [r.num_missing for r in (a, b, c, d)] == [0, 1, 0, 0]
    assert (b.delay_seconds, b.timestamp, c.is_timed, d.timestamp) == (0.05, 5, False, 7)
    assert a.output is not None
    assert a.output.tokens().tolist() == [4 * 2 + 2, 4 * 2 + 3, 4 * 3 + 0]
    assert a.tokens().tolist() == [4, 5, 6, 7, 8, 9]


def mooncake(**fields: object) -> str:
    return json.dumps({"timestamp": 0, "input_length": 4, "output_length": 2, "hash_ids": [1], **fields}) + "\n"


def test_mooncake_delta_prompts_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        mooncake(session_id="s") + mooncake(session_id="s", hash_ids=[2], timestamp=None) + mooncake(session_id="x")
    )
    trace = read_trace(path, format_name="mooncake-delta", block_size=4)
    assert prompts(trace)[1] == [4, 5, 6, 7, *generated_tokens(0, 2).tolist(), 8, 9, 10, 11]
    assert [request.input_length for request in trace.requests] == [4, 10, 4]
    (note,) = read_trace(path, block_size=4).warnings
    assert note.endswith("give --format mooncake-delta")


def test_a_long_session_of_deltas_is_not_limited_by_nesting(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(mooncake(session_id="s", hash_ids=[i], output_length=0) for i in range(3000)))
    last = read_trace(path, format_name="mooncake-delta", block_size=4).requests[-1]
    assert last.input_length == len(last.tokens()) == 3000 * 5 - 1


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (mooncake(request_id="a", wait_for=["a"]), 1),
        (mooncake(request_id="a", wait_for=["b"]) + mooncake(request_id="b", wait_for=["a"]), 2),
        (
            mooncake(request_id="a", wait_for=["c"])
            + mooncake(request_id="b", wait_for=["a"])
            + mooncake(request_id="c", wait_for=["b"]),
            3,
        ),
    ],
)
def test_rows_that_wait_for_themselves(tmp_path: Path, rows: str, line: int) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(rows + mooncake(request_id="z"))
    with pytest.raises(TraceFormatError, match=rf"t\.jsonl:{line}: request_id '.' waits for itself"):
        read_trace(path, block_size=4)
    trace = read_trace(path, block_size=4, lenient=True)
    assert [fault.line_number for fault in trace.faults] == [line]
    assert len(trace.requests) == line


FAULTS = {
    "trtllm_bench.jsonl": [
        ({"task_id": 1, "output_tokens": -1, "input_ids": [1]}, "output_tokens is -1, less than 0"),
        ({"task_id": 1, "output_tokens": 1}, "the row has none of input_ids, logits, prompt"),
        ({"task_id": 1, "output_tokens": 1, "input_ids": [1, -2]}, r"input_ids\[1\] is -2, not an integer from 0"),
        ({"task_id": 1, "output_tokens": 1, "input_ids": []}, "the prompt has no token"),
        ({"task_id": [1], "output_tokens": 1, "input_ids": [1]}, r"task_id is \[1\], neither a string nor an integer"),
    ],
    "vllm_outputs.jsonl": [
        ({"prompt_token_ids": [1], "outputs": [{"token_ids": ["x"]}]}, r"outputs\[0\]\.token_ids\[0\] is 'x'"),
        ({"prompt": ["a", "b"], "max_tokens": 1}, r"prompt\[0\] is 'a', not an integer"),
        ({"prompt": 5, "max_tokens": 1}, "prompt is 5, not a string"),
        ({"prompt": [1], "max_tokens": 1, "timestamp": "noon"}, "timestamp is 'noon', neither seconds nor a date"),
    ],
    "sglang.jsonl": [
        ({"event": "x", "rid": "a"}, "event is 'x', neither request.received nor request.finished"),
        ({"event": "request.finished", "rid": 3}, "rid is 3, not a string"),
        ({"event": "request.finished", "rid": "c", "obj": {"text": None}, "out": {}}, "obj.text is None, not a string"),
        (
            {"event": "request.finished", "rid": "c", "obj": {"input_ids": [1]}, "out": {"meta_info": {}}},
            "out.meta_info.completion_tokens is missing",
        ),
    ],
    "lmsys.jsonl": [
        ({"conversation": [{"role": 5, "content": "x"}]}, r"conversation\[0\]\.role is 5, not a string"),
        ({"conversation": [{"role": "user", "content": "x"}]}, "the conversation has no answer to a question"),
    ],
    "lmcache_agent.jsonl": [
        ({"session_id": "s", "input": 5, "output_length": 1}, "input is 5, not a string"),
        ({"session_id": "s", "input": [5], "output_length": 1}, r"input\[0\] is 5, not an object"),
        ({"session_id": "s", "input": "hello", "output": 5}, "output is 5, not a string"),
        ({"session_id": {}, "input": "hello", "output": "x"}, "session_id is {}, neither a string nor an integer"),
    ],
    "aiperf_multi_turn.jsonl": [
        ({"turns": []}, "turns is empty"),
        ({"turns": [{"texts": ["a", 5], "output_length": 1}]}, r"turns\[0\]\.texts\[1\] is 5, not a string"),
        ({"turns": [{"text": "a", "image": "x", "output_length": 1}]}, r"turns\[0\]\.image is given: only text has"),
        ({"turns": [{"text": "hello", "delay": -1, "output_length": 1}]}, r"turns\[0\]\.delay is -1, less than 0"),
        ({"messages": [], "message_mode": "all"}, "message_mode is 'all', not one of history, delta"),
    ],
}


@pytest.mark.parametrize(("name", "row", "reason"), [(name, *case) for name, cases in FAULTS.items() for case in cases])
def test_faults_name_line_field_and_value(tmp_path: Path, name: str, row: dict, reason: str) -> None:
    good = (DATA / name).read_text()
    path = tmp_path / "t.jsonl"
    path.write_text(
        good + json.dumps(row) + "\n" + good.replace('"rid": "', '"rid": "2').replace('_id": "', '_id": "2')
    )
    number = good.count("\n") + 1
    with pytest.raises(TraceFormatError, match=rf"t\.jsonl:{number}: .*{reason}"):
        read_trace(path, tokenizer=WORDS)
    trace = read_trace(path, tokenizer=WORDS, lenient=True)
    assert [fault.line_number for fault in trace.faults] == [number]
    assert len(trace.requests) == 2 * len(read(name).requests)


def tiny_requests(shared_dir: Path, entry: dict) -> list[TraceRequest]:
    folder = shared_dir / "reference" / "tiny_traces"
    text = {"tokenizer": folder / "words.json", "chat_template": "chatml"} if entry["format"] == "sharegpt" else {}
    settings = {"format_name": entry["format"], "block_size": entry["block_size"], **text}
    return list(read_trace(folder / entry["file"], **settings).requests)


def test_predecessors_of_the_reference_traces(shared_dir: Path) -> None:
    entries = json.loads((shared_dir / "reference" / "tiny_traces" / "index.json").read_text())
    assert len(entries) >= 9
    for entry in entries:
        found = [list(request.predecessors) for request in tiny_requests(shared_dir, entry)]
        assert found == entry["predecessors"], entry["file"]
