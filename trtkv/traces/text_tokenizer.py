"""Text to token ids through a local tokenizer file; chats through a chat template first. Never uses the network."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from trtkv.common import MAX_INT32
from trtkv.errors import InvalidInputError, MissingExtraError
from trtkv.traces.rows import Row, RowFaultError

if TYPE_CHECKING:
    from trtkv.traces.options import ReadOptions

CHATML: Final = "chatml"
ASSISTANT: Final = "assistant"
"""The role of answers."""
TOKENIZER_FILE: Final = "tokenizer.json"
CONFIG_FILE: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"

Render: TypeAlias = "Callable[[Sequence[Row], Sequence[object] | None], str]"
"""Messages and tools (None: none) -> text that ends where the answer would start."""


class TextTokenizer:
    """One tokenizer file and one chat template."""

    def __init__(self, encode: Callable[[str, bool], list[int]], render: Render | None) -> None:
        self._encode = encode
        self._render = render

    def text(self, content: str, *, special_tokens: bool) -> array[int]:
        """Token ids of a text; ``special_tokens``: with those that the tokenizer puts around a text by itself."""
        return _int32(self._encode(content, special_tokens))

    def chat(self, messages: Sequence[Row], tools: Sequence[object] | None = None) -> array[int]:
        """Token ids of a chat up to where the next answer starts. Raises RowFaultError if the template refuses it."""
        if self._render is None:
            raise InvalidInputError(
                "the tokenizer comes without a chat template: give one with --chat-template (a file, or chatml)"
            )
        return _int32(self._encode(self._render(messages, tools), False))


def load_tokenizer(options: ReadOptions) -> TextTokenizer:
    """The tokenizer that the options name. Raises InvalidInputError without one, MissingExtraError without packages."""
    if options.tokenizer is None:
        raise InvalidInputError("the row holds text: name a local tokenizer file with --tokenizer")
    path = options.tokenizer
    file = path / TOKENIZER_FILE if path.is_dir() else path
    config = _read_config(file.parent / CONFIG_FILE)
    return TextTokenizer(_load_encode(file), _load_render(options.chat_template, file.parent, config))


def _load_encode(file: Path) -> Callable[[str, bool], list[int]]:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtraError('text needs the tokenizers package: pip install "trtkv[tokenizers]"') from error
    if not file.is_file():
        raise InvalidInputError(f"there is not a tokenizer file {file}")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises plain Exception for a file that it cannot read
        raise InvalidInputError(f"{file} is not a tokenizer file: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(text: str, special_tokens: bool) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=special_tokens).ids
        return ids

    return encode


def _read_config(file: Path) -> Row:
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInputError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise InvalidInputError(f"{file} holds no JSON object")
    return config


def _load_render(named: str | None, folder: Path, config: Row) -> Render | None:
    if named == CHATML:
        return render_chatml
    if named is not None:
        return _jinja_render(_read_template(Path(named)), config)
    if (folder / TEMPLATE_FILE).is_file():
        return _jinja_render(_read_template(folder / TEMPLATE_FILE), config)
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return _jinja_render(template, config) if isinstance(template, str) else None


def _read_template(file: Path) -> str:
    if not file.is_file():
        raise InvalidInputError(f"there is no chat template file {file}; --chat-template takes a file or {CHATML}")
    return file.read_text(encoding="utf-8")


def render_chatml(messages: Sequence[Row], tools: Sequence[object] | None) -> str:
    """The ChatML form: each message between ``<|im_start|>role`` and ``<|im_end|>``. Tools are not shown."""
    parts = [f"<|im_start|>{message['role']}\n{message.get('content') or ''}<|im_end|>\n" for message in messages]
    return "".join([*parts, "<|im_start|>assistant\n"])


def _jinja_render(template: str, config: Row) -> Render:
    try:
        from jinja2 import TemplateError, UndefinedError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise MissingExtraError(
            f'chat templates need jinja2: pip install "trtkv[tokenizers]", or use --chat-template {CHATML}'
        ) from error
    environment: Any = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    # strftime_now stays undefined: templates that test for it then write a fixed date.
    try:
        compiled = environment.from_string(template)
    except TemplateError as error:
        raise InvalidInputError(f"the chat template cannot be used: {error}") from error
    special = {
        key: _token_text(config[key]) for key in ("bos_token", "eos_token", "unk_token", "pad_token") if key in config
    }

    def render(messages: Sequence[Row], tools: Sequence[object] | None) -> str:
        try:
            text: str = compiled.render(messages=messages, tools=tools, add_generation_prompt=True, **special)
        except UndefinedError as error:
            if "strftime_now" in str(error):
                raise InvalidInputError(
                    "the chat template writes the current date, so the tokens would change from day to day; "
                    "give a template with a fixed date (--chat-template)"
                ) from None
            raise RowFaultError(f"the chat template refuses the messages: {error}") from None
        except (TemplateError, TypeError, KeyError) as error:
            raise RowFaultError(f"the chat template refuses the messages: {error}") from None
        return text

    return render


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> object:
    raise RowFaultError(f"the chat template refuses the messages: {message}")


def _token_text(token: object) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _int32(ids: list[int]) -> array[int]:
    try:
        return array("i", ids)
    except OverflowError:
        raise RowFaultError(f"the tokenizer gives the id {max(ids)}, more than {MAX_INT32}") from None
