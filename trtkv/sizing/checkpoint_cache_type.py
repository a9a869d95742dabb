"""The element type of the cache that a quantised checkpoint asks for, and where it says so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from trtkv.common import DataType
from trtkv.errors import InvalidInputError
from trtkv.sizing.hf_config import CONFIG_FILE_NAME, HfConfig, read_json_object, shown

QUANT_FILE_NAME: Final = "hf_quant_config.json"
"""File of NVIDIA's ModelOpt beside a config.json."""

_NAMES: Final[Mapping[str, DataType]] = {"FP8": DataType.FP8, "INT8": DataType.INT8, "NVFP4": DataType.NVFP4}
_NO_NAMES: Final = ("", "NONE")
_SCHEMES: Final[Mapping[tuple[str, int], DataType]] = {
    ("float", 8): DataType.FP8,
    ("int", 8): DataType.INT8,
    ("float", 4): DataType.NVFP4,
}
"""Type and bits of a ``kv_cache_scheme`` of compressed-tensors and ModelOpt."""


class CheckpointCacheType(NamedTuple):
    """What the files of a checkpoint say."""

    dtype: DataType | None
    """None: they do not say."""
    notes: tuple[str, ...]


def quant_file_beside(file: Path) -> Path | None:
    """The second file of a checkpoint whose config is a file called config.json; None where there is none."""
    beside = file.with_name(QUANT_FILE_NAME)
    return beside if file.name == CONFIG_FILE_NAME and beside.exists() else None


def read_checkpoint_cache_type(config: HfConfig, quant_file: Path | None) -> CheckpointCacheType:
    """Ask config.json first, then ``quant_file``. Raises InvalidInputError for a type that is not known."""
    in_config = None
    for quantization in config.get_all("quantization_config"):
        if not isinstance(quantization, dict):
            raise config.fault("quantization_config", quantization, "an object")
        in_config = in_config or _asked_for(quantization, config.source)
    in_quant_file = None if quant_file is None else _read_quant_file(quant_file)
    notes = []
    if in_config is not None:
        notes.append(f"the checkpoint asks for a cache of {in_config.value} ({CONFIG_FILE_NAME})")
        if in_quant_file not in (None, in_config):
            notes.append(f"{QUANT_FILE_NAME} asks for {in_quant_file.value} instead; {CONFIG_FILE_NAME} counts")
    elif in_quant_file is not None:
        notes.append(f"the checkpoint asks for a cache of {in_quant_file.value} ({QUANT_FILE_NAME})")
    return CheckpointCacheType(in_config or in_quant_file, tuple(notes))


def _read_quant_file(file: Path) -> DataType | None:
    values = read_json_object(file, "the quantisation of the checkpoint", "it is written by ModelOpt")
    quantization = values.get("quantization")
    if quantization is not None and not isinstance(quantization, dict):
        raise InvalidInputError(f"{file}: quantization is {shown(quantization)}, not an object")
    return _asked_for(values, str(file))


def _asked_for(quantization: Mapping[str, object], source: str) -> DataType | None:
    """The type that one object names, in any of its forms; they must not contradict each other."""
    parts = [quantization]
    inner = quantization.get("quantization")
    if isinstance(inner, dict):
        parts.append(inner)
    found = {
        dtype
        for part in parts
        for key in ("kv_cache_quant_algo", "kv_cache_scheme")
        if (dtype := _parse(part.get(key), key, source)) is not None
    }
    if len(found) > 1:
        listed = " and ".join(sorted(dtype.value for dtype in found))
        raise InvalidInputError(f"{source}: kv_cache_quant_algo and kv_cache_scheme ask for {listed}")
    return next(iter(found), None)


def _parse(value: object, key: str, source: str) -> DataType | None:
    if value is None:
        return None
    if isinstance(value, str) and value.strip().upper() in _NO_NAMES:
        return None
    found = None
    if isinstance(value, str):
        found = _NAMES.get(value.strip().upper())
    elif isinstance(value, dict):
        kind, bits = value.get("type"), value.get("num_bits")
        if isinstance(kind, str) and type(bits) is int:
            found = _SCHEMES.get((kind.lower(), bits))
            value = f"{kind:.40} of {bits} bits"
    if found is None:
        raise InvalidInputError(f"{source}: {key} is {shown(value)}, not a cache type known here ({', '.join(_NAMES)})")
    return found
