"""SizeOptions: the options of ``trtkv size``; ``--versus`` changes a copy of them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from trtkv.commands.model_options import (
    CacheSpecOption,
    HostMemoryOption,
    KvDtypeChoice,
    KvDtypeOption,
    MaxSeqLenOption,
    MemoryOption,
    ModelOption,
    SnapshotIntervalOption,
    TpOption,
    WindowSharesOption,
)
from trtkv.errors import InvalidInputError

_NOT_VARIED: Final = ("window", "window_shares", "versus", "list_models", "check", "json_file")
"""Options that a second column cannot set: those with commas, and those about the whole report."""

_PATHS: Final = ("model", "cache_spec")
_TEXTS: Final = ("memory", "reserved", "host_memory")


@dataclass(frozen=True, slots=True)
class SizeOptions:
    """Arguments as they were written."""

    model: ModelOption = None
    cache_spec: CacheSpecOption = None
    memory: MemoryOption = None
    reserved: Annotated[
        str | None,
        typer.Option(
            "--reserved", metavar="SIZE", help="Part of --memory reserved for weights and activations, e.g. 16GiB."
        ),
    ] = None
    host_memory: HostMemoryOption = None
    kv_dtype: KvDtypeOption = KvDtypeChoice.AUTO
    tp: TpOption = 1
    pp: Annotated[int, typer.Option("--pp", help="Pipeline-parallel size.")] = 1
    tokens_per_block: Annotated[int, typer.Option(help="Tokens per cache block.")] = 32
    max_seq_len: MaxSeqLenOption = None
    window: Annotated[
        list[str] | None,
        typer.Option(
            metavar="W|full",
            help="Attention window of a layer, overriding the model's; repeatable, cycled over the layers.",
        ),
    ] = None
    window_shares: WindowSharesOption = None
    max_batch_size: Annotated[
        int, typer.Option(help="Maximum concurrent sequences; matters only for recurrent states with --no-reuse.")
    ] = 1
    no_reuse: Annotated[bool, typer.Option("--no-reuse", help="Disable block reuse.")] = False
    snapshot_interval: SnapshotIntervalOption = None
    input_len: Annotated[
        int | None, typer.Option(metavar="N", help="Prompt tokens per request, to see how many requests fit.")
    ] = None
    output_len: Annotated[int | None, typer.Option(metavar="N", help="Output tokens per request.")] = None
    requests: Annotated[
        int | None, typer.Option(metavar="N", help="Show the memory that N such requests need; replaces --memory.")
    ] = None
    versus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V[,K=V]",
            help="Add a column with other settings, e.g. kv-dtype=fp8,tp=2 or model=NAME; repeatable.",
        ),
    ] = None
    list_models: Annotated[bool, typer.Option("--list-models", help="List models known by name and exit.")] = False
    check: Annotated[
        bool, typer.Option("--check", help="Allocate small pools on the CPU and compare their sizes (needs torch).")
    ] = False
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - is standard output.")
    ] = None

    def changed(self, text: str) -> SizeOptions:
        """A copy with the settings that a text such as ``kv-dtype=fp8,tp=2`` names; a model replaces a spec."""
        known = [field.name for field in fields(self) if field.name not in _NOT_VARIED]
        changes: dict[str, object] = {}
        for part in text.split(","):
            key, equals, value = part.partition("=")
            name = key.strip().replace("-", "_")
            if not equals or name not in known:
                listed = ", ".join(name.replace("_", "-") for name in known)
                raise InvalidInputError(f"--versus {text!r}: {part!r} is not a setting and its value; known: {listed}")
            changes[name] = _parse(name, value.strip(), text)
        for name, other in (_PATHS, _PATHS[::-1]):
            if name in changes:
                changes.setdefault(other, None)
        return replace(self, **changes)  # type: ignore[arg-type]  # each value was parsed for its name


def _parse(name: str, value: str, text: str) -> object:
    if name in _PATHS:
        return Path(value)
    if name in _TEXTS:
        return value
    if name == "kv_dtype":
        choices = {choice.value: choice for choice in KvDtypeChoice}
        if value not in choices:
            raise InvalidInputError(f"--versus {text!r}: kv-dtype is {value!r}, not one of {', '.join(choices)}")
        return choices[value]
    if name == "no_reuse":
        if value not in ("true", "false"):
            raise InvalidInputError(f"--versus {text!r}: no-reuse is {value!r}, not true or false")
        return value == "true"
    try:
        return int(value)
    except ValueError:
        raise InvalidInputError(f"--versus {text!r}: {name.replace('_', '-')} is {value!r}, not a number") from None
