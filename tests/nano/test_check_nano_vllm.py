"""tools/check_nano_vllm.py on a stand-in for a checkout: modules of that layout over our own classes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    "engine/block_manager.py": "from trtkv.nano import BlockManager",
    "engine/scheduler.py": """from nanovllm.engine.block_manager import BlockManager
from trtkv.nano import Scheduler as Base
class Scheduler(Base):
    def __init__(self, config):
        super().__init__(config)
        self.block_manager = BlockManager(config.num_kvcache_blocks, config.kvcache_block_size)""",
    "engine/sequence.py": "from trtkv.nano import Sequence",
    "sampling_params.py": "from trtkv.nano import SamplingParams",
}
FORGETFUL = """from trtkv.nano import BlockManager as Base
class BlockManager(Base):
    def deallocate(self, seq):
        super().deallocate(seq)
        self.hash_to_block_id.clear()"""


def make_checkout(folder: Path, modules: dict[str, str]) -> Path:
    for name, text in modules.items():
        path = folder / "nanovllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


def run_tool(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "check_nano_vllm.py"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_equal_managers_are_called_equal(tmp_path: Path) -> None:
    result = run_tool(make_checkout(tmp_path, MODULES))
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("30 of 30 loads equal\n")


def test_another_manager_is_found_out(tmp_path: Path) -> None:
    result = run_tool(make_checkout(tmp_path, MODULES | {"engine/block_manager.py": FORGETFUL}))
    assert result.returncode == 1, result.stdout + result.stderr
    assert "load 0: step" in result.stdout


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_folder_without_nano_vllm_is_refused(tmp_path: Path, name: str) -> None:
    result = run_tool(tmp_path / name)
    assert result.returncode == 2
    assert "holds no nanovllm/engine/block_manager.py" in result.stderr


def test_the_page_replaces_the_block_manager(tmp_path: Path) -> None:
    folder = make_checkout(tmp_path, MODULES | {"engine/block_manager.py": FORGETFUL})
    page = (ROOT / "docs" / "nano.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(import nanovllm.*?)```", page, re.DOTALL)
    assert block
    program = f"""{block[1]}
from types import SimpleNamespace
config = SimpleNamespace(num_kvcache_blocks=4, kvcache_block_size=4, max_num_seqs=2, max_num_batched_tokens=16, eos=0)
print(nanovllm.engine.scheduler.Scheduler(config).block_manager.__class__.__module__)"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
    )
    assert result.stdout == "trtkv.nano.block_manager\n"
