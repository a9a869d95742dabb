"""tools/run_trtllm_tests.py on a small folder in the shape of TensorRT-LLM's: every kind of outcome is told apart."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.run_trtllm_tests import find_tests, judge

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "run_trtllm_tests.py"

LLM_REQUEST = """
from dataclasses import dataclass
import tensorrt_llm.bindings
from tensorrt_llm.bindings import executor as tllm_executor
LlmRequestState = tensorrt_llm.bindings.LlmRequestState
SamplingConfig = tensorrt_llm.bindings.SamplingConfig

class LlmRequest(tensorrt_llm.bindings.internal.batch_manager.LlmRequest):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.py_request_id = self.request_id
        self.py_prompt_len = self.prompt_len
"""
RESOURCE_MANAGER = """
import torch
from tensorrt_llm.bindings.internal.batch_manager import KVCacheManager as Bound
from tensorrt_llm._utils import get_size_in_bytes
from ...logger import logger
from ...mapping import Mapping
from .llm_request import LlmRequest

class KVCacheManager:
    def __init__(self, config, cache_type, *, dtype, mapping, tokens_per_block=4):
        free, _ = torch.cuda.mem_get_info()
        logger.info(f"{free} bytes, {mapping.tp_size} ranks, {get_size_in_bytes(4, dtype)} bytes for four elements")
        self.impl = Bound(
            num_kv_heads_per_layer=[1], size_per_head=8, tokens_per_block=tokens_per_block,
            blocks_per_window={64: (config.max_tokens // tokens_per_block, 0)}, max_num_sequences=4, max_beam_width=1,
            max_attention_window_vec=[64], dtype=dtype, sink_token_length=0, stream=torch.cuda.Stream().cuda_stream,
            max_sequence_length=64, chunk_size=64, enable_block_reuse=config.enable_block_reuse, cache_type=cache_type)
        self.impl.allocate_pools(False)
"""
GOOD_AND_BAD = """
import pytest
import tensorrt_llm
from tensorrt_llm._torch.pyexecutor.llm_request import LlmRequest, SamplingConfig
from tensorrt_llm._torch.pyexecutor.resource_manager import KVCacheManager
from tensorrt_llm._utils import str_dtype_to_binding
from tensorrt_llm.llmapi.llm_args import CapacitySchedulerPolicy, KvCacheConfig
from tensorrt_llm.mapping import Mapping
from tensorrt_llm.sampling_params import SamplingParams
from helpers.numbers import SEVEN

def make():
    cache_type = tensorrt_llm.bindings.internal.batch_manager.CacheType.SELF
    half = str_dtype_to_binding("float16")
    return KVCacheManager(KvCacheConfig(max_tokens=64), cache_type, dtype=half, mapping=Mapping())

def request(i, tokens):
    config = SamplingConfig(SamplingParams()._get_sampling_config())
    return LlmRequest(request_id=i, max_new_tokens=1, input_tokens=tokens, sampling_config=config, is_streaming=False)

@pytest.mark.parametrize("length", [9, 17])
def test_prefix(length):
    impl, first = make().impl, request(0, list(range(length)))
    impl.add_sequence_batch([(first.py_request_id, first.py_prompt_len, 1)], [first])
    impl.remove_sequence(0, first, False)
    assert impl.analyze_prefix_reuse(first.get_unique_tokens(0), first).reusable_blocks_all == (length - 1) // 4

class TestPolicy:
    def test_bound(self):
        policy = CapacitySchedulerPolicy.MAX_UTILIZATION._to_pybind()
        assert policy is tensorrt_llm.bindings.executor.CapacitySchedulerPolicy.MAX_UTILIZATION

def test_wrong():
    assert make().impl.max_num_blocks == SEVEN

def test_decoder():
    request(0, [1]).create_response(False, 0)

def test_device():
    import torch
    torch.zeros(1, device="cuda")

def test_missing_part():
    from tensorrt_llm._utils import no_such_helper

def test_missing_package():
    import no_such_package

def test_missing_fixture(some_fixture_of_conftest):
    pass

@pytest.mark.skipif(True, reason="needs two GPUs")
def test_skipped():
    pass
"""
OTHER_PART = "from tensorrt_llm._torch.models import Llama\n\ndef test_model():\n    pass\n"
NO_CUDA = """
import pytest
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("requires CUDA device", allow_module_level=True)

def test_asks_for_a_device_only():
    assert torch.cuda.Stream().cuda_stream == 0
"""
SKIPS = "import pytest\npytest.skip('needs MPI', allow_module_level=True)\n"
CRASH = "import os\nos._exit(3)\n"
BROKEN_INIT = "raise RuntimeError('the real package is not imported')\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "tensorrt_llm/__init__.py": BROKEN_INIT,
        "tensorrt_llm/_torch/__init__.py": BROKEN_INIT,
        "tensorrt_llm/_utils.py": BROKEN_INIT,
        "tensorrt_llm/_torch/pyexecutor/__init__.py": BROKEN_INIT,
        "tensorrt_llm/_torch/pyexecutor/llm_request.py": LLM_REQUEST,
        "tensorrt_llm/_torch/pyexecutor/resource_manager.py": RESOURCE_MANAGER,
        "tests/unittest/conftest.py": BROKEN_INIT,
        "tests/unittest/helpers/numbers.py": "SEVEN = 7\n",
        "tests/unittest/_torch/executor/test_resource_manager.py": GOOD_AND_BAD,
        "tests/unittest/_torch/executor/test_async_transfer_manager.py": OTHER_PART,
        "tests/unittest/_torch/executor/test_admission_gap.py": NO_CUDA,
        "tests/unittest/_torch/executor/test_cpp_config.py": SKIPS,
        "tests/unittest/bindings/test_bindings_ut.py": CRASH,
        "tests/unittest/llmapi/test_of_no_concern.py": BROKEN_INIT,
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--no-such-option'\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_each_outcome_is_told_with_its_reason(folder: Path) -> None:
    report = folder / "report.json"
    result = subprocess.run(
        [sys.executable, str(TOOL), str(folder), "--json", str(report)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1, result.stderr
    outcomes = {test.rpartition("/")[2]: (kind, reason) for test, kind, reason in json.loads(report.read_text())}
    file = "test_resource_manager.py::"
    asks = "test_admission_gap.py::test_asks_for_a_device_only"
    passed = {asks, f"{file}test_prefix[9]", f"{file}test_prefix[17]", f"{file}TestPolicy::test_bound"}
    assert {test for test, (kind, _) in outcomes.items() if kind == "passed"} == passed
    failed = {test: reason for test, (kind, reason) in outcomes.items() if kind == "failed"}
    assert set(failed) == {f"{file}test_wrong", "test_bindings_ut.py"}
    assert "assert 16 == 7" in failed[f"{file}test_wrong"]
    assert failed["test_bindings_ut.py"].startswith("its process ended with 3")
    others = {test: reason for test, (kind, reason) in outcomes.items() if kind == "not runnable"}
    assert others.pop("test_async_transfer_manager.py").startswith("tensorrt_llm._torch.models is not in ")
    assert others.pop(f"{file}test_device").startswith("needs a GPU")
    assert others == {
        "test_cpp_config.py": "skips itself: needs MPI",
        f"{file}test_decoder": "outside of the KV cache: LlmRequest.create_response belongs to TensorRT-LLM's decoder; "
        "trtkv has the cache only",
        f"{file}test_missing_part": "the stand-in for tensorrt_llm._utils has no no_such_helper",
        f"{file}test_missing_package": "needs the package no_such_package",
        f"{file}test_missing_fixture": "needs the fixture some_fixture_of_conftest of its conftest",
        f"{file}test_skipped": "skips itself: needs two GPUs",
    }
    assert result.stdout.splitlines()[-1] == "4 passed, 2 failed, 8 not runnable"


def test_files_can_be_named(folder: Path) -> None:
    name = "tests/unittest/_torch/executor/test_admission_gap.py"
    assert find_tests(folder, [name]) == find_tests(folder, [str(folder / name)]) == [Path(name)]
    assert len(find_tests(folder)) == 5


def test_a_reproducer_that_fails_over_the_original_is_no_failure() -> None:
    outcome = judge("f.py::test_decode_boundary_burst_does_not_overflow_pool", "failed", "Failed: REPRODUCED")
    assert outcome.result == "not runnable"
    assert "fails over the C++ manager" in outcome.reason


def test_a_folder_without_tests_is_one_line(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, str(TOOL), str(tmp_path)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"error: {tmp_path} has no tensorrt_llm/ or none of the tests\n"
