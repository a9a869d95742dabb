"""Request logs with text, through a tokenizer file made here: one token a word or special piece."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from trtkv.errors import InvalidInputError, MissingExtraError, TraceFormatError
from trtkv.traces.trace import RequestTrace
from trtkv.traces.trace_reader import read_trace

tokenizers = pytest.importorskip("tokenizers", reason="the extra tokenizers is not installed")
pytest.importorskip("jinja2", reason="chat templates need jinja2")

WORDS = ["[UNK]", "user", "assistant", "system", "hello", "there", "you", "are", "kind", "bye", "tool"]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<s>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'nobody' %}{{ raise_exception('who is that?') }}{% endif %}"
    "<|im_start|> {{ m.role }} {{ m.content }} <|im_end|> {% endfor %}"
    "{% if tools %}tool {% endif %}{% if add_generation_prompt %}<|im_start|> assistant{% endif %}"
)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder with a tokenizer and a chat template in its config."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(SPECIAL)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    made.enable_truncation(max_length=3)  # a setting that must not cut prompts
    made.save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def ids(text: str) -> list[int]:
    vocabulary = {word: i for i, word in enumerate([*WORDS, *SPECIAL])}
    return [vocabulary[word] for word in text.split()]


def read(
    tmp_path: Path, tokenizer: Path | None, *rows: object, template: str | None = None, **settings: Any
) -> RequestTrace:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_trace(path, tokenizer=tokenizer, chat_template=template, **settings)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_chat_is_templated_up_to_where_the_answer_starts(tmp_path: Path, tokenizer: Path) -> None:
    row = {"messages": [{"role": "system", "content": "you are kind"}, user("hello")], "max_tokens": 7}
    loaded = read(tmp_path, tokenizer, row)
    assert loaded.detected == "openai (the first row has messages)"
    (request,) = loaded.requests
    expected = (
        "<s> <|im_start|> system you are kind <|im_end|> <|im_start|> user hello <|im_end|> <|im_start|> assistant"
    )
    assert request.tokens().tolist() == ids(expected)
    assert (request.input_length, request.output_length) == (13, 7)
    assert loaded.block_size is None


@pytest.mark.parametrize(
    ("fields", "output_length"),
    [
        ({"usage": {"completion_tokens": 5}}, 5),
        ({"response": {"usage": {"completion_tokens": 6}}}, 6),
        ({"response": {"body": {"usage": {"completion_tokens": 4}}}}, 4),
        ({"choices": [{"message": {"role": "assistant", "content": "bye bye you"}}]}, 3),
        ({"response": {"choices": [{"text": "bye"}]}}, 1),
        ({"max_completion_tokens": 9, "max_tokens": 8}, 9),
        ({"max_tokens": 8}, 8),
    ],
)
def test_sources_of_the_output_length(tmp_path: Path, tokenizer: Path, fields: dict, output_length: int) -> None:
    loaded = read(tmp_path, tokenizer, {"messages": [user("hello")], **fields})
    assert loaded.requests[0].output_length == output_length


def test_usage_comes_before_the_answer_and_the_answer_before_the_limit(tmp_path: Path, tokenizer: Path) -> None:
    answered = {"messages": [user("hello"), {"role": "assistant", "content": "hello there"}], "max_tokens": 50}
    loaded = read(tmp_path, tokenizer, answered, {**answered, "usage": {"completion_tokens": 9}})
    first, second = loaded.requests
    assert (first.output_length, second.output_length) == (2, 9)
    assert first.tokens().tolist() == second.tokens().tolist()
    assert first.tokens().tolist()[-2:] == ids("<|im_start|> assistant")


@pytest.mark.parametrize(
    "wrap", [lambda body: {"custom_id": "1", "body": body}, lambda body: {"request": {"body": body}}]
)
def test_batch_and_log_rows_are_unwrapped(tmp_path: Path, tokenizer: Path, wrap: Any) -> None:
    loaded = read(tmp_path, tokenizer, wrap({"messages": [user("hello")], "max_tokens": 1}))
    assert loaded.requests[0].tokens().tolist()[1:4] == ids("<|im_start|> user hello")


def test_completion_prompts_get_the_tokens_that_the_tokenizer_adds(tmp_path: Path, tokenizer: Path) -> None:
    loaded = read(tmp_path, tokenizer, {"prompt": "hello there you are", "max_tokens": 1, "timestamp": 3.5})
    (request,) = loaded.requests
    assert request.tokens().tolist() == ids("<s> hello there you are")
    assert request.timestamp == 3.5


def test_content_parts_and_tools(tmp_path: Path, tokenizer: Path) -> None:
    parts = [{"type": "text", "text": "hello "}, {"type": "text", "text": "there"}]
    row = {"messages": [{"role": "user", "content": parts}], "tools": [{"name": "x"}], "max_tokens": 1}
    (request,) = read(tmp_path, tokenizer, row).requests
    assert request.tokens().tolist() == ids("<s> <|im_start|> user hello there <|im_end|> tool <|im_start|> assistant")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [user("hello")]}, "nothing tells the length of the output"),
        ({"messages": []}, "messages hold no question"),
        ({"messages": [{"content": "x"}]}, r"messages\[0\].role is missing"),
        ({"messages": [{"role": "user", "content": 5}]}, r"messages\[0\].content is 5, neither text nor a list"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, r"content\[0\] is of type 'image_url'"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, r"the chat template refuses the messages: who is that\?"),
        ({"messages": [user("x")], "usage": {"completion_tokens": -1}}, "usage.completion_tokens is -1, less than 0"),
        ({"prompt": 5}, "prompt is 5, not a string"),
    ],
)
def test_faulty_openai_rows(tmp_path: Path, tokenizer: Path, row: dict, reason: str) -> None:
    good = {"messages": [user("hello")], "max_tokens": 1}
    with pytest.raises(TraceFormatError, match=f"t.jsonl:2: .*{reason}"):
        read(tmp_path, tokenizer, good, row)
    assert len(read(tmp_path, tokenizer, good, row, lenient=True).requests) == 1


def test_sharegpt_conversation_gives_a_request_for_each_answer(tmp_path: Path, tokenizer: Path) -> None:
    turns = [
        ("gpt", "bye"),
        ("system", "you"),
        ("human", "hello"),
        ("gpt", "hello there"),
        ("human", "bye"),
        ("gpt", "bye"),
    ]
    row = {"id": "x", "conversations": [{"from": speaker, "value": text} for speaker, text in turns]}
    path = tmp_path / "t.json"
    path.write_text(json.dumps([row, row], indent=1))
    loaded = read_trace(path, tokenizer=tokenizer)
    assert loaded.format == "sharegpt"
    first, second, third, _ = loaded.requests
    start = "<s> <|im_start|> system you <|im_end|> <|im_start|> user hello <|im_end|> <|im_start|> assistant"
    assert first.tokens().tolist() == ids(start)
    assert second.tokens().tolist() == ids(
        f"{start} hello there <|im_end|> <|im_start|> user bye <|im_end|> <|im_start|> assistant"
    )
    assert third.tokens().tolist() == first.tokens().tolist()
    assert [request.output_length for request in loaded.requests] == [2, 1, 2, 1]


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([{"from": "human", "value": "x"}], "the conversation has no answer to a question"),
        ([{"from": "gpt", "value": "x"}], "the conversation has no answer to a question"),
        ([{"from": "cat", "value": "x"}], r"conversations\[0\].from is 'cat', not one of human"),
        ([{"from": "human"}], r"conversations\[0\].value is missing"),
        (5, "conversations is 5, not a list"),
    ],
)
def test_faulty_conversations(tmp_path: Path, tokenizer: Path, turns: object, reason: str) -> None:
    with pytest.raises(TraceFormatError, match=f"t.jsonl:1: .*{reason}"):
        read(tmp_path, tokenizer, {"conversations": turns})


def test_chatml_needs_no_template_of_the_tokenizer(tmp_path: Path, tokenizer: Path) -> None:
    (tokenizer / "tokenizer_config.json").unlink()
    row = {"messages": [user("hello")], "max_tokens": 1}
    with pytest.raises(InvalidInputError, match="comes without a chat template"):
        read(tmp_path, tokenizer, row)
    (request,) = read(tmp_path, tokenizer, row, template="chatml").requests
    assert request.tokens().tolist() == ids("<|im_start|> user hello <|im_end|> <|im_start|> assistant")


def test_template_comes_from_the_option_then_its_own_file_then_the_config(tmp_path: Path, tokenizer: Path) -> None:
    row = {"messages": [user("hello")], "max_tokens": 1}
    (tokenizer / "chat_template.jinja").write_text("{{ messages[0].content }} there")
    assert read(tmp_path, tokenizer, row).requests[0].tokens().tolist() == ids("hello there")
    named = tmp_path / "other.jinja"
    named.write_text("{{ messages[0].content }} bye")
    assert read(tmp_path, tokenizer, row, template=str(named)).requests[0].tokens().tolist() == ids("hello bye")
    (tokenizer / "chat_template.jinja").unlink()
    templates = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "you"}]
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert read(tmp_path, tokenizer / "tokenizer.json", row).requests[0].tokens().tolist() == ids("you")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% if %}", "the chat template cannot be used"),
        ("{{ strftime_now('%d') }}", "the chat template writes the current date"),
    ],
)
def test_templates_that_cannot_be_used(tmp_path: Path, tokenizer: Path, template: str, text: str) -> None:
    (tokenizer / "chat_template.jinja").write_text(template)
    with pytest.raises(InvalidInputError, match=text):
        read(tmp_path, tokenizer, {"messages": [user("hello")], "max_tokens": 1})


def test_templates_cannot_reach_into_the_program(tmp_path: Path, tokenizer: Path) -> None:
    (tokenizer / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(TraceFormatError, match="the chat template refuses the messages"):
        read(tmp_path, tokenizer, {"messages": [user("hello")], "max_tokens": 1})


def test_missing_and_broken_tokenizer_files(tmp_path: Path, tokenizer: Path) -> None:
    row = {"messages": [user("hello")], "max_tokens": 1}
    with pytest.raises(InvalidInputError, match="name a local tokenizer file with --tokenizer"):
        read(tmp_path, None, row)
    with pytest.raises(InvalidInputError, match="there is not a tokenizer file"):
        read(tmp_path, tmp_path / "nothing.json", row)
    with pytest.raises(InvalidInputError, match="there is no chat template file"):
        read(tmp_path, tokenizer, row, template=str(tmp_path / "nothing.jinja"))
    (tokenizer / "tokenizer_config.json").write_text("{")
    with pytest.raises(InvalidInputError, match="is not JSON"):
        read(tmp_path, tokenizer, row)
    (tokenizer / "tokenizer_config.json").unlink()
    (tokenizer / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidInputError, match="is not a tokenizer file"):
        read(tmp_path, tokenizer, row)


@pytest.mark.parametrize(("package", "text"), [("tokenizers", "need"), ("jinja2", "use --chat-template chatml")])
def test_missing_packages_are_named(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, package: str, text: str
) -> None:
    real_import = builtins.__import__

    def import_without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", import_without)
    with pytest.raises(MissingExtraError, match=r'pip install "trtkv\[tokenizers\]"') as caught:
        read(tmp_path, tokenizer, {"messages": [user("hello")], "max_tokens": 1})
    assert text in str(caught.value)


def test_reading_stays_lazy_about_packages(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    turns = [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "bye"}]
    path.write_text(json.dumps({"conversations": turns}) + "\n")
    with pytest.raises(InvalidInputError, match=r"t\.jsonl:1: the row holds text: name a local tokenizer file"):
        read_trace(path)
