"""Options that turn a model and an amount of memory into windows and blocks; several commands have them."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trtkv.sizing.cache_plan import CachePlan, SizingOptions


class KvDtypeChoice(str, Enum):
    """Values of ``--kv-dtype``."""

    AUTO = "auto"
    FLOAT = "float"
    HALF = "half"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    NVFP4 = "nvfp4"


MODEL_HELP = "config.json of a Hugging Face model, a folder with one, or a known name (trtkv size --list-models)."
MEMORY_HELP = "Memory of the cache on each GPU, e.g. 40GiB or 40GB."

ModelOption = Annotated[Path | None, typer.Option("--model", metavar="FILE|NAME", help=MODEL_HELP)]
CacheSpecOption = Annotated[
    Path | None,
    typer.Option("--cache-spec", metavar="FILE", help="JSON description of a model's layers, instead of --model."),
]
MemoryOption = Annotated[str | None, typer.Option("--memory", metavar="SIZE", help=MEMORY_HELP)]
HostMemoryOption = Annotated[
    str | None, typer.Option("--host-memory", metavar="SIZE", help="Host tier memory per GPU, e.g. 200GiB.")
]
KvDtypeOption = Annotated[
    KvDtypeChoice, typer.Option("--kv-dtype", help="Cache element type; auto takes it from the checkpoint.")
]
TpOption = Annotated[int, typer.Option("--tp", help="Tensor-parallel size.")]
MaxSeqLenOption = Annotated[
    int | None,
    typer.Option(
        "--max-seq-len", help="Maximum sequence length in tokens.  [default: max_position_embeddings of the model]"
    ),
]
SnapshotIntervalOption = Annotated[
    int | None, typer.Option(help="Interval between snapshots of recurrent states, in tokens.  [default: 256]")
]
WindowSharesOption = Annotated[
    str | None,
    typer.Option(
        "--window-shares",
        metavar="S,S",
        help="Memory share of each window, narrowest first.  [default: TRTLLM_WINDOW_SIZE_SHARES, else equal]",
    ),
]


def make_options(
    memory: str,
    host_memory: str | None,
    kv_dtype: KvDtypeChoice,
    tp: int,
    tokens_per_block: int,
    max_seq_len: int | None,
    window_shares: str | None,
    reserved: str | None = None,
) -> SizingOptions:
    """Options as they were written, with amounts in bytes."""
    from trtkv.errors import InvalidInputError
    from trtkv.sizing.cache_plan import SizingOptions
    from trtkv.sizing.memory_size import parse_memory_size

    given = parse_memory_size(memory, "--memory")
    reserved_bytes = 0 if reserved is None else parse_memory_size(reserved, "--reserved")
    if reserved_bytes and reserved_bytes >= given:
        raise InvalidInputError(f"--reserved {reserved} leaves nothing of --memory {memory} for the cache")
    return SizingOptions(
        memory_bytes=given - reserved_bytes,
        reserved_bytes=reserved_bytes,
        host_memory_bytes=0 if host_memory is None else parse_memory_size(host_memory, "--host-memory"),
        kv_dtype=kv_dtype.value,
        tokens_per_block=tokens_per_block,
        max_sequence_length=max_seq_len,
        tp_size=tp,
        window_size_shares=window_shares,
    )


def make_plan(model: Path | None, cache_spec: Path | None, options: SizingOptions) -> CachePlan:
    """Read the model and size its cache."""
    from trtkv.sizing.cache_plan import make_cache_plan
    from trtkv.sizing.model_source import read_model

    return make_cache_plan(read_model(model, cache_spec, ask_checkpoint=options.kv_dtype == "auto"), options)
