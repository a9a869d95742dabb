"""The element type of the cache that a quantised checkpoint asks for: its sources in order, and its forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sizing.models import values
from trtkv.errors import InvalidInputError
from trtkv.sizing.model_shape import ModelShape, read_model_shape

FP8_SCHEME = {"num_bits": 8, "type": "float", "dynamic": False}


def read(folder: Path, quantization: Any = None, quant_file: Any = None, name: str = "config.json") -> ModelShape:
    """Llama with a quantization_config and, if given, a second file."""
    config = {**values("llama-3.1-8b"), "quantization_config": quantization}
    (folder / name).write_text(json.dumps(config), encoding="utf-8")
    if quant_file is not None:
        text = quant_file if isinstance(quant_file, str) else json.dumps(quant_file)
        (folder / "hf_quant_config.json").write_text(text, encoding="utf-8")
    return read_model_shape(folder / name)


def modelopt(algorithm: object) -> dict[str, object]:
    return {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": algorithm}}


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        (None, "bf16"),
        ({"quant_method": "fp8"}, "bf16"),
        ({"quant_algo": "NVFP4", "kv_cache_scheme": None}, "bf16"),
        ({"kv_cache_quant_algo": "NONE"}, "bf16"),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"kv_cache_quant_algo": "nvfp4"}, "nvfp4"),
        ({"kv_cache_scheme": "FP8"}, "fp8"),
        ({"kv_cache_scheme": FP8_SCHEME}, "fp8"),
        ({"kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "nvfp4"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "INT"}}, "int8"),
        ({"quantization": {"kv_cache_quant_algo": "INT8"}}, "int8"),
        ({"kv_cache_scheme": FP8_SCHEME, "kv_cache_quant_algo": "FP8"}, "fp8"),
    ],
)
def test_forms_in_the_config(tmp_path: Path, quantization: Any, expected: str) -> None:
    shape = read(tmp_path, quantization)
    assert shape.kv_dtype.value == expected
    told = f"the checkpoint asks for a cache of {expected} (config.json)"
    assert (told in shape.notes) == (expected != "bf16")


def test_the_second_file_counts_where_the_first_does_not_say(tmp_path: Path) -> None:
    shape = read(tmp_path, None, modelopt("FP8"))
    assert shape.kv_dtype.value == "fp8"
    assert shape.notes == ("the checkpoint asks for a cache of fp8 (hf_quant_config.json)",)
    assert read(tmp_path, None, modelopt(None)).kv_dtype.value == "bf16"
    assert read(tmp_path, {"kv_cache_quant_algo": "NONE"}, modelopt("fp8")).kv_dtype.value == "fp8"


def test_the_config_goes_before_the_second_file(tmp_path: Path) -> None:
    shape = read(tmp_path, {"kv_cache_scheme": FP8_SCHEME}, modelopt("INT8"))
    assert shape.kv_dtype.value == "fp8"
    assert shape.notes == (
        "the checkpoint asks for a cache of fp8 (config.json)",
        "hf_quant_config.json asks for int8 instead; config.json counts",
    )
    assert len(read(tmp_path, {"kv_cache_scheme": FP8_SCHEME}, modelopt("FP8")).notes) == 1


def test_the_second_file_belongs_to_a_config_json_only(tmp_path: Path) -> None:
    read(tmp_path, None, modelopt("FP8"))
    assert read_model_shape(tmp_path).kv_dtype.value == "fp8"
    assert read(tmp_path, None, name="llama.json").kv_dtype.value == "bf16"


@pytest.mark.parametrize(
    ("quantization", "quant_file", "told"),
    [
        ({"kv_cache_quant_algo": "INT4"}, None, r"config.json: kv_cache_quant_algo is 'INT4', not a cache type known"),
        ({"kv_cache_scheme": {"type": "float"}}, None, r"config.json: kv_cache_scheme is an object of 1 keys, not a"),
        ({"kv_cache_scheme": 8}, None, r"kv_cache_scheme is 8, not a cache type known here \(FP8, INT8, NVFP4\)"),
        ({"kv_cache_scheme": FP8_SCHEME, "kv_cache_quant_algo": "INT8"}, None, "ask for fp8 and int8"),
        ("fp8", None, "quantization_config is 'fp8', not an object"),
        (None, modelopt("INT4"), r"hf_quant_config.json: kv_cache_quant_algo is 'INT4'"),
        (None, "{", r"hf_quant_config.json: bad JSON"),
        (None, "[]", r"hf_quant_config.json: not a JSON object"),
        (None, {"quantization": "FP8"}, r"hf_quant_config.json: quantization is 'FP8', not an object"),
    ],
)
def test_what_cannot_be_read_is_a_fault(tmp_path: Path, quantization: Any, quant_file: Any, told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        read(tmp_path, quantization, quant_file)
    # Whoever chooses the type does not depend on what the files say.
    assert read_model_shape(tmp_path, ask_checkpoint=False).kv_dtype.value == "bf16"
