"""Prompts: tokens of the prompts and answers of a row, which may be text, messages or token ids."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

from trtkv.traces import fields
from trtkv.traces.options import ReadOptions
from trtkv.traces.rows import Row, RowFaultError
from trtkv.traces.text_tokenizer import ASSISTANT, TextTokenizer, load_tokenizer

LENGTHS: Final = ("output_length", "output_tokens", "output_tokens_count", "max_completion_tokens", "max_tokens")
"""Fields for the number of tokens to generate: AIPerf's, vLLM's, GuideLLM's, and the limits of a request."""


class Prompts:
    """What the rows of one trace say, as tokens. The tokenizer is loaded at the first text, and only then needed."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @cached_property
    def _tokenizer(self) -> TextTokenizer:
        return load_tokenizer(self._options)

    def text_or_ids(self, row: Row, key: str, where: str = "") -> array[int]:
        """Tokens of a field that is a text or a list of token ids."""
        found = fields.value(row, key, where)
        if isinstance(found, list):
            return fields.token_ids(row, key, where=where)
        return self._tokenizer.text(fields.text(row, key, where), special_tokens=True)

    def body(self, body: Row, where: str = "") -> tuple[array[int], str | None]:
        """Tokens of the prompt of a request to a server, and the answer if it is the last message.

        The prompt is ``prompt_token_ids``, ``messages``, ``prompt`` (text or ids) or ``text_input``.
        """
        if body.get("prompt_token_ids") is not None:
            return fields.token_ids(body, "prompt_token_ids", where=where), None
        if "messages" in body:
            return self._messages(body, where)
        return self.text_or_ids(body, "prompt" if "text_input" not in body else "text_input", where), None

    def _messages(self, body: Row, where: str) -> tuple[array[int], str | None]:
        messages = read_messages(body, "messages", where)
        answer = None
        if messages and messages[-1]["role"] == ASSISTANT:
            content = messages.pop()["content"]
            answer = content if isinstance(content, str) else None
        if not messages:
            raise RowFaultError(f"{where}messages hold no question")
        tools = fields.items(body, "tools", where) if body.get("tools") is not None else None
        return self.chat(messages, tools), answer

    def chat(self, messages: Sequence[Row], tools: Sequence[object] | None = None) -> array[int]:
        """Tokens of a chat up to where the next answer starts."""
        return self._tokenizer.chat(messages, tools)

    def answer(self, text: str) -> array[int]:
        """Tokens of an answer, by itself and without special tokens."""
        return self._tokenizer.text(text, special_tokens=False)

    @property
    def has_tokenizer(self) -> bool:
        """Whether text can be made into tokens."""
        return self._options.tokenizer is not None

    def output_length(self, rows: Iterable[Row], keys: Sequence[str] = LENGTHS) -> int:
        """Tokens to generate: the first of the keys that one of the rows has, else what the user said for such rows."""
        for row in rows:
            for key in keys:
                if row.get(key) is not None:
                    return fields.integer(row, key, 0)
        if self._options.output_length is not None:
            return self._options.output_length
        raise RowFaultError(
            f"nothing tells the length of the output: no answer, no {', '.join(keys)}; "
            "give the length for such rows with --output-length"
        )


def read_message(entry: object, where: str) -> Row:
    """A message of a chat, with its text parts joined. Raises RowFaultError for parts that are not text."""
    message = fields.as_mapping(entry, where)
    fields.text(message, "role", f"{where}.")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_text_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    elif content is not None and not isinstance(content, str):
        raise RowFaultError(f"{where}.content is {content!r:.80}, neither text nor a list of parts")
    return {**message, "content": content}


def read_messages(row: Row, key: str, where: str = "") -> list[Row]:
    """The messages of a chat."""
    return [read_message(entry, f"{where}{key}[{i}]") for i, entry in enumerate(fields.items(row, key, where))]


def _text_part(part: object, where: str) -> str:
    found = fields.as_mapping(part, where)
    kind = fields.text(found, "type", f"{where}.")
    if kind != "text":
        raise RowFaultError(f"{where} is of type {kind!r:.40}: only text has tokens that a tokenizer file can give")
    return fields.text(found, "text", f"{where}.")
