"""FileCopyEngine: keeps offloaded blocks in files where a request asks for that, else leaves them to another engine."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import struct
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trtkv.common import KvCacheTransferMode, WindowSize
from trtkv.errors import InvalidInputError, MissingExtraError, TrtkvError
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.pools.pool_tensors import get_primary, view_block, view_tokens
from trtkv.records.kv_cache_index import get_slot, is_primary
from trtkv.transfers.torch_copy_engine import TorchCopyEngine, check_copy

if TYPE_CHECKING:
    from trtkv.transfers.copy_engine import BlockCopy, CopyEngine

_HEADER: Final = struct.Struct("<8sQI")
_MAGIC: Final = b"TRTKV\0\0\1"


class DamagedFileError(TrtkvError):
    """A block's file is not what was written; its content was not used."""


class _BlockFile(NamedTuple):
    path: Path
    mode: KvCacheTransferMode


class FileCopyEngine:
    """Offloads to files for requests with mode POSIX_DEBUG_FALLBACK or GDS and a directory; reads them on onboarding.

    Where a block lies is decided when it is offloaded and remembered per secondary slot, so a request with another mode
    gets the right bytes. Each directory gets a private folder of mode 0700 below it. A file is written under a
    temporary name and renamed when complete; files of other processes are never read. All other copies are made by
    ``memory``. File transfers make the host wait for the device. ``close`` removes the folders.
    """

    def __init__(self, memory: CopyEngine | None = None) -> None:
        self._memory: CopyEngine = TorchCopyEngine() if memory is None else memory
        self._folders: dict[str, Path] = {}
        self._files: dict[tuple[WindowSize, int], _BlockFile] = {}
        self.num_files_written = 0
        self.num_files_read = 0

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        """Make one copy in all pools of a window; returns the bytes moved.

        Raises InvalidInputError for an unsafe directory, MissingExtraError for GDS without kvikio, OSError for a
        failing disk and DamagedFileError for a changed file. A failed call leaves destination and files as they were.
        """
        key = (copy.window_size, get_slot(copy.src_index))
        if not is_primary(copy.src_index) and key in self._files:
            return self._onboard(copy, pools, self._files[key])
        if is_primary(copy.dst_index):
            return self._memory.copy_block(copy, pools)
        if is_primary(copy.src_index) and copy.mode is not KvCacheTransferMode.DRAM and copy.directory:
            return self._offload(copy, pools)
        moved = self._memory.copy_block(copy, pools)
        self._forget(copy.window_size, get_slot(copy.dst_index))
        return moved

    def sync_with_buffer_manager(self) -> None:
        """Passed on to the memory engine."""
        self._memory.sync_with_buffer_manager()

    def sync_transfers(self) -> None:
        """Passed on to the memory engine; file transfers are complete when ``copy_block`` returns."""
        self._memory.sync_transfers()

    def close(self) -> None:
        """Delete all files and private folders; what they held is lost."""
        for folder in self._folders.values():
            shutil.rmtree(folder, ignore_errors=True)
        self._folders.clear()
        self._files.clear()

    def _offload(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        check_copy(copy, pools)
        write = _write_with_kvikio if copy.mode is KvCacheTransferMode.GDS else _write_file
        folder = self._get_folder(copy.directory)
        slot = get_slot(copy.dst_index)
        path = folder / f"window_{copy.window_size}_slot_{slot}_{secrets.token_hex(4)}.kv"
        temporary = path.with_suffix(".part")
        self._wait(pools)
        blocks = [view_block(pool, copy.src_index).contiguous() for pool in pools]
        try:
            moved = write(temporary, blocks)
            os.rename(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._forget(copy.window_size, slot)
        self._files[copy.window_size, slot] = _BlockFile(path, copy.mode)
        self.num_files_written += 1
        return moved

    def _onboard(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool], file: _BlockFile) -> int:
        check_copy(copy, pools)
        read = _read_with_kvikio if file.mode is KvCacheTransferMode.GDS else _read_file
        self._wait(pools)
        blocks = read(file.path, [view_block(pool, copy.dst_index) for pool in pools])
        moved = 0
        for pool, block in zip(pools, blocks, strict=True):
            dst = view_block(pool, copy.dst_index, copy.num_tokens)
            dst.copy_(view_tokens(pool, block, copy.num_tokens))
            moved += dst.numel() * dst.element_size()
        self.num_files_read += 1
        return moved

    def _wait(self, pools: Sequence[KVCacheBlockPool]) -> None:
        """Let the host wait until all copies and computations so far are done."""
        self._memory.sync_transfers()
        device = get_primary(pools[0]).device
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()

    def _forget(self, window_size: WindowSize, slot: int) -> None:
        file = self._files.pop((window_size, slot), None)
        if file is not None:
            file.path.unlink(missing_ok=True)

    def _get_folder(self, directory: str) -> Path:
        if directory not in self._folders:
            self._folders[directory] = make_private_folder(directory)
        return self._folders[directory]


def make_private_folder(directory: str) -> Path:
    """Make a folder only this user can enter, below ``directory``, which is made (mode 0700) when it is missing.

    Refused: relative paths, links, things other than directories, and directories in which another user could exchange
    our folder (theirs, or writable for others without the sticky bit).
    """
    path = Path(directory)
    if not path.is_absolute() or ".." in path.parts:
        raise InvalidInputError(f"offload directory {directory!r} must be an absolute path without '..'")
    if not os.path.lexists(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise InvalidInputError(f"offload directory {directory!r} is a link or no directory; name a real directory")
    if status.st_uid not in (os.geteuid(), 0):
        raise InvalidInputError(f"offload directory {directory!r} belongs to user {status.st_uid}; use one of your own")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
        raise InvalidInputError(f"offload directory {directory!r} can be changed by other users; chmod it to 0700")
    return Path(tempfile.mkdtemp(prefix="trtkv-", dir=path))


def _to_bytes(block: torch.Tensor) -> memoryview:
    array: NDArray[np.uint8] = block.cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return array.data


def _write_file(path: Path, blocks: Sequence[torch.Tensor]) -> int:
    parts = [_to_bytes(block) for block in blocks]
    length, checksum = 0, 0
    for part in parts:
        length, checksum = length + len(part), zlib.crc32(part, checksum)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(_HEADER.pack(_MAGIC, length, checksum))
        for part in parts:
            file.write(part)
    return length


def _read_file(path: Path, shaped_like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    content = bytearray(path.stat().st_size)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        num_read = file.readinto(content)
    body = memoryview(content)[_HEADER.size :]
    expected = sum(tensor.numel() * tensor.element_size() for tensor in shaped_like)
    is_whole = num_read == len(content) == _HEADER.size + expected
    if not is_whole or _HEADER.unpack_from(content) != (_MAGIC, expected, zlib.crc32(body)):
        raise DamagedFileError(f"{path} is not the block that was written there: wrong length or checksum")
    blocks, begin = [], 0
    for tensor in shaped_like:
        num_bytes = tensor.numel() * tensor.element_size()
        flat = torch.frombuffer(body[begin : begin + num_bytes], dtype=torch.uint8)
        blocks.append(flat.view(tensor.dtype).view(tensor.shape).to(tensor.device))
        begin += num_bytes
    return blocks


def _write_with_kvikio(path: Path, blocks: Sequence[torch.Tensor]) -> int:
    kvikio = _import_kvikio()
    offset = 0
    with kvikio.CuFile(str(path), "w") as file:
        for block in blocks:
            flat = block.view(-1).view(torch.uint8)
            if file.write(flat, file_offset=offset) != flat.numel():
                raise OSError(f"{path} could not be written to its end")
            offset += flat.numel()
    return offset


def _read_with_kvikio(path: Path, shaped_like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    kvikio = _import_kvikio()
    expected = sum(tensor.numel() * tensor.element_size() for tensor in shaped_like)
    if path.stat().st_size != expected:
        raise DamagedFileError(f"{path} holds {path.stat().st_size} bytes, {expected} were written")
    blocks, offset = [], 0
    with kvikio.CuFile(str(path), "r") as file:
        for tensor in shaped_like:
            flat = torch.empty(tensor.numel() * tensor.element_size(), dtype=torch.uint8, device=tensor.device)
            if file.read(flat, file_offset=offset) != flat.numel():
                raise DamagedFileError(f"{path} ended early")
            blocks.append(flat.view(tensor.dtype).view(tensor.shape))
            offset += flat.numel()
    return blocks


def _import_kvikio() -> Any:
    try:
        import kvikio
    except ImportError as error:
        raise MissingExtraError(
            'transfer mode GDS needs kvikio and a GPU: pip install "trtkv[gds]", or use POSIX_DEBUG_FALLBACK or DRAM'
        ) from error
    return kvikio
