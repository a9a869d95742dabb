"""nano-vllm's BlockManager: the original from TRTKV_NANO_VLLM (a folder with the package), or the port here.

Variants: original, port.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bench_peers.system import Pool

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def _import_original(folder: Path) -> tuple[Any, Any]:
    """Its two modules, without running the package's own imports (torch and more)."""
    for name in ("nanovllm", "nanovllm.engine"):
        package = ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = package
    return import_module("nanovllm.engine.block_manager"), import_module("nanovllm.engine.sequence")


class BenchSystem:
    """Driven as its scheduler drives it: hash what is scheduled, step by step."""

    def __init__(self, pool: Pool, variant: str) -> None:
        width = pool.tokens_per_block
        self._is_port = variant == "port"
        if self._is_port:
            sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
            nano = import_module("trtkv.nano")
            self._manager = nano.BlockManager(pool.capacity_tokens // width, width)
            self._make_sequence = lambda tokens: nano.Sequence(tokens, block_size=width)
        else:
            block_manager, sequence = _import_original(Path(os.environ["TRTKV_NANO_VLLM"]))
            sequence.Sequence.block_size = width
            self._manager = block_manager.BlockManager(pool.capacity_tokens // width, width)
            self._make_sequence = sequence.Sequence

    def prepare(self, tokens: NDArray[np.int32]) -> Any:
        """A list of ints; the port takes an int64 array."""
        return tokens.astype("int64") if self._is_port else tokens.tolist()

    def add(self, request_id: int, prompt: Any) -> tuple[Any, int]:
        """Match, then allocate."""
        sequence = self._make_sequence(prompt)
        num_cached_blocks = self._manager.can_allocate(sequence)
        if num_cached_blocks < 0:
            raise SystemExit("nano-vllm is out of blocks; give a larger capacity")
        self._manager.allocate(sequence, num_cached_blocks)
        return sequence, sequence.num_cached_tokens

    def store(self, handle: Any) -> None:
        """Hash and register the new blocks of a prompt."""
        self._register(handle, len(handle) - handle.num_cached_tokens)

    def _register(self, sequence: Any, num_scheduled: int) -> None:
        sequence.num_scheduled_tokens = num_scheduled
        self._manager.hash_blocks(sequence)
        sequence.num_cached_tokens += num_scheduled
        sequence.num_scheduled_tokens = 0

    def decode(self, handle: Any, tokens: list[int]) -> None:
        """Token by token."""
        manager = self._manager
        for token in tokens:
            handle.append_token(token)
            if not manager.can_append(handle):
                raise SystemExit("nano-vllm is out of blocks; give a larger capacity")
            manager.may_append(handle)
            self._register(handle, 1)

    def decode_step(self, handles: Sequence[Any], tokens: list[int]) -> None:
        """One token each."""
        manager = self._manager
        for sequence, token in zip(handles, tokens, strict=True):
            sequence.append_token(token)
            if not manager.can_append(sequence):
                raise SystemExit("nano-vllm is out of blocks; give a larger capacity")
            manager.may_append(sequence)
            self._register(sequence, 1)

    def free(self, handle: Any) -> None:
        """Blocks keep their hashes."""
        self._manager.deallocate(handle)
