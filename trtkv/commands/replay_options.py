"""ReplayOptions: the options of ``trtkv replay``, which a sweep can set as well. A new option is one field here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
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
from trtkv.commands.trace_options import (
    FormatOption,
    MaxLineBytesOption,
    OutputLengthOption,
    OutputsOption,
    SessionsOption,
)
from trtkv.traces.sessions.protocol import Outputs, Sessions


class SystemChoice(str, Enum):
    """Values of ``--system``."""

    TENSORRT_LLM = "tensorrt-llm"
    NANO = "nano"
    NANO_SCHEDULER = "nano-scheduler"


class SchedulerChoice(str, Enum):
    """Values of ``--scheduler``."""

    MAX_UTILIZATION = "max-utilization"
    GUARANTEED_NO_EVICT = "guaranteed-no-evict"
    STATIC_BATCH = "static-batch"


class ArrivalsChoice(str, Enum):
    """Values of ``--arrivals``."""

    ASAP = "asap"
    TRACE = "trace"


class ChunkPolicyChoice(str, Enum):
    """Values of ``--chunk-policy``."""

    EQUAL_PROGRESS = "equal-progress"
    FIRST_COME_FIRST_SERVED = "first-come-first-served"
    FORCE_CHUNK = "force-chunk"


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Arguments as they were written, by the names that the code uses."""

    trace: Annotated[
        str, typer.Argument(metavar="TRACE", help="Request trace: a file, plain or compressed, a folder, or - (stdin).")
    ]
    system: Annotated[
        SystemChoice, typer.Option(help="Block manager to replay on; nano-scheduler adds nano-vllm's scheduler.")
    ] = SystemChoice.TENSORRT_LLM
    trace_format: FormatOption = None
    block_size: Annotated[
        int | None, typer.Option(help="Tokens per hash id. Required for Mooncake rows (512 in the public traces).")
    ] = None
    tokens_per_block: Annotated[int, typer.Option(help="Tokens per cache block.")] = 32
    capacity_tokens: Annotated[
        str | None,
        typer.Option(metavar="N|inf", help="Cache capacity in tokens, e.g. 30000000, 30M or inf.  [default: inf]"),
    ] = None
    host_tokens: Annotated[
        str | None, typer.Option(metavar="N", help="Host tier capacity in tokens.  [default: 0]")
    ] = None
    model: ModelOption = None
    cache_spec: CacheSpecOption = None
    memory: MemoryOption = None
    host_memory: HostMemoryOption = None
    kv_dtype: KvDtypeOption = KvDtypeChoice.AUTO
    tp: TpOption = 1
    max_seq_len: MaxSeqLenOption = None
    window_shares: WindowSharesOption = None
    snapshot_interval: SnapshotIntervalOption = None
    live: Annotated[int, typer.Option(help="Maximum concurrent requests.")] = 1
    window: Annotated[
        list[str] | None,
        typer.Option(metavar="W|full", help="Attention window of a layer in tokens; repeatable.  [default: full]"),
    ] = None
    no_partial_reuse: Annotated[bool, typer.Option("--no-partial-reuse", help="Reuse only whole cached blocks.")] = (
        False
    )
    no_copy_on_partial_reuse: Annotated[
        bool,
        typer.Option(
            "--no-copy-on-partial-reuse", help="Never copy a partly matched block: reuse it in place or not at all."
        ),
    ] = False
    compatibility: Annotated[
        bool, typer.Option("--compatibility", help="Reproduce TensorRT-LLM's behaviour exactly, including its faults.")
    ] = False
    eviction: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="Which free block goes first: priority-lru as TensorRT-LLM, lru, fifo, arc, s3-fifo, ... or "
            "module:Class; docs/policies.md.",
        ),
    ] = "priority-lru"
    eviction_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="Option of the eviction policy, e.g. protected=0.8; repeatable."),
    ] = None
    any_block: Annotated[
        bool,
        typer.Option("--any-block", help="With --eviction: evict blocks although blocks behind them are cached."),
    ] = False
    seed: Annotated[int, typer.Option(help="Random seed of --eviction random.")] = 0
    retention: Annotated[
        Path | None,
        typer.Option(metavar="RULES", help="TOML file with rules of retention: which tokens are kept longer."),
    ] = None
    limit: Annotated[int | None, typer.Option(help="Read only the first N rows of the file.")] = None
    lenient: Annotated[bool, typer.Option("--lenient", help="Skip malformed rows and report how many.")] = False
    output_length: OutputLengthOption = None
    sessions: SessionsOption = Sessions.TRACE
    outputs: OutputsOption = Outputs.TRACE
    max_line_bytes: MaxLineBytesOption = None
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer file or folder, for traces with text.")] = None
    chat_template: Annotated[str | None, typer.Option(help="Chat template file, or chatml.")] = None
    bounds: Annotated[
        bool, typer.Option("--bounds", help="Also compute upper bounds: unlimited cache and clairvoyant eviction.")
    ] = False
    scheduler: Annotated[
        SchedulerChoice | None,
        typer.Option(help="Run the schedulers step by step on a virtual clock instead of the closed loop."),
    ] = None
    max_batch_size: Annotated[
        int | None, typer.Option(help="With --scheduler: maximum requests per step.  [default: 64]")
    ] = None
    max_num_tokens: Annotated[
        int | None, typer.Option(help="With --scheduler: maximum tokens computed per step.  [default: 8192]")
    ] = None
    arrivals: Annotated[
        ArrivalsChoice | None,
        typer.Option(
            help="With --scheduler: when requests arrive: all at once, or at the trace's times.  [default: asap]"
        ),
    ] = None
    step_time: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="With --scheduler: linear:base=6ms,context=40us,generation=20us,cached=50ns, or parts of it.",
        ),
    ] = None
    chunked_context: Annotated[
        bool, typer.Option("--chunked-context", help="With --scheduler: split prompts into chunks to fill steps.")
    ] = False
    chunk_policy: Annotated[
        ChunkPolicyChoice | None,
        typer.Option(
            help="With --chunked-context: how a step's tokens are shared out.  [default: first-come-first-served]"
        ),
    ] = None
    chunk_unit: Annotated[
        int | None,
        typer.Option(help="With --chunked-context: chunk sizes are multiples of N tokens.  [default: one block]"),
    ] = None
    record: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="With --scheduler: write the run as a program for trtkv verify."),
    ] = None
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - is standard output.")
    ] = None
    requests_file: Annotated[
        str | None,
        typer.Option(
            "--requests-json", metavar="FILE", help="Write found tokens, admission order and skips of each request."
        ),
    ] = None
    explain: Annotated[
        bool, typer.Option("--explain", help="Explain every prompt token: found, or why it was missed.")
    ] = False
    explain_file: Annotated[
        str | None,
        typer.Option("--explain-requests", metavar="FILE", help="Write the causes of each request as CSV."),
    ] = None
    curve: Annotated[int | None, typer.Option(metavar="N", help="Also replay at N other capacities, on all cores.")] = (
        None
    )
    html_file: Annotated[
        str | None,
        typer.Option(
            "--html", metavar="FILE", help="Write a self-contained HTML page; implies --explain and --bounds."
        ),
    ] = None


OUTPUT_FILES: Final = ("json_file", "record", "explain_file", "html_file", "requests_file")
"""Options that say where something is written and change no number."""

SCHEDULER_ONLY: Final = (
    "max_batch_size",
    "max_num_tokens",
    "arrivals",
    "step_time",
    "chunked_context",
    "chunk_policy",
    "chunk_unit",
    "record",
)
"""Options that mean nothing without ``--scheduler``."""
