"""FileCopyEngine: keeps offloaded blocks in files where a request asks for that, else leaves them to another engine."""

from __future__ import annotations

import contextlib
import io
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
from trtkv.errors import InvalidInputError, MissingExtraError
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.pools.pool_tensors import get_primary, view_block, view_tokens
from trtkv.records.kv_cache_index import get_slot, is_primary
from trtkv.transfers.copy_engine import LostBlockError, OffloadFailedError
from trtkv.transfers.torch_copy_engine import TorchCopyEngine, check_copy

if TYPE_CHECKING:
    from trtkv.transfers.copy_engine import BlockCopy, CopyEngine

_HEADER: Final = struct.Struct("<8sQI")
_MAGIC: Final = b"TRTKV\0\0\1"


class DamagedFileError(LostBlockError):
    """A block's file is not what was written, or gone; its content was not used."""


class _Content(NamedTuple):
    """What was written to a file, without its header; kept in memory, so that no other file passes for it."""

    num_bytes: int
    checksum: int


class _BlockFile(NamedTuple):
    path: Path
    mode: KvCacheTransferMode
    content: _Content


class FileCopyEngine:
    """Offloads to files for requests with mode POSIX_DEBUG_FALLBACK or GDS and a directory; reads them on onboarding.

    Where a block lies is decided when it is offloaded and remembered per secondary slot, so a request with another mode
    gets the right bytes; so are length and checksum, so that a file that was lost, cut, changed or exchanged is found
    out. Each directory gets a private folder of mode 0700 below it. A file is written under a temporary name and
    renamed when complete; files of other processes are never read. All other copies are made by ``memory``. File
    transfers make the host wait for the device. ``close`` removes the folders.
    """

    def __init__(self, memory: CopyEngine | None = None) -> None:
        self._memory: CopyEngine = TorchCopyEngine() if memory is None else memory
        self._folders: dict[str, Path] = {}
        self._files: dict[tuple[WindowSize, int], _BlockFile] = {}
        self.num_files_written = 0
        self.num_files_read = 0

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        """Make one copy in all pools of a window; returns the bytes moved.

        Raises InvalidInputError for an unsafe directory, MissingExtraError for GDS without kvikio, OffloadFailedError
        for a disk that is full or fails, and DamagedFileError for a file that is not what was written, which is
        forgotten then. A failed call leaves destination and other files as they were.
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
        self._wait(pools)
        blocks = [view_block(pool, copy.src_index).contiguous() for pool in pools]
        slot = get_slot(copy.dst_index)
        try:
            file = self._write(copy, f"window_{copy.window_size}_slot_{slot}_{secrets.token_hex(4)}", blocks)
        except OSError as error:
            raise OffloadFailedError(f"block {copy.src_block_id} cannot be offloaded to a file: {error}") from error
        self._forget(copy.window_size, slot)
        self._files[copy.window_size, slot] = file
        self.num_files_written += 1
        return file.content.num_bytes

    def _write(self, copy: BlockCopy, name: str, blocks: Sequence[torch.Tensor]) -> _BlockFile:
        write = _write_with_kvikio if copy.mode is KvCacheTransferMode.GDS else _write_file
        folder = self._get_folder(copy.directory)
        path, temporary = folder / f"{name}.kv", folder / f"{name}.part"
        try:
            content = write(temporary, blocks)
            os.rename(temporary, path)
        except BaseException:
            _remove_file(temporary)
            raise
        return _BlockFile(path, copy.mode, content)

    def _onboard(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool], file: _BlockFile) -> int:
        check_copy(copy, pools)
        read = _read_with_kvikio if file.mode is KvCacheTransferMode.GDS else _read_file
        self._wait(pools)
        try:
            blocks = read(file, [view_block(pool, copy.dst_index) for pool in pools])
        except (DamagedFileError, OSError) as error:
            self._forget(copy.window_size, get_slot(copy.src_index))
            raise DamagedFileError(f"the file of block {copy.src_block_id} is lost: {error}") from error
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
            _remove_file(file.path)

    def _get_folder(self, directory: str) -> Path:
        """The private folder below a directory, made anew if somebody removed it."""
        folder = self._folders.get(directory)
        if folder is None or not (folder.is_dir() and not folder.is_symlink()):
            folder = self._folders[directory] = make_private_folder(directory)
        return folder


def make_private_folder(directory: str) -> Path:
    """Make a folder only this user can enter, below ``directory``, which is made (mode 0700) when it is missing.

    Refused: relative paths, links, things other than directories, and directories in which another user could exchange
    our folder (theirs, or writable for others without the sticky bit), at the end of the path and on the way to it.
    Missing parents are made with mode 0700 as well. A failing disk is an OSError.
    """
    path = Path(directory)
    if not path.is_absolute() or ".." in path.parts:
        raise InvalidInputError(f"offload directory {directory!r} must be an absolute path without '..'")
    for part in (*reversed(path.parents), path):
        if not os.path.lexists(part):
            part.mkdir(mode=0o700, exist_ok=True)
        _check_directory(part, directory)
    return Path(tempfile.mkdtemp(prefix="trtkv-", dir=path))


def _check_directory(part: Path, directory: str) -> None:
    """Raise InvalidInputError if somebody else could exchange what lies below a directory on the way."""
    status = part.lstat()
    where = f"offload directory {directory!r}" + ("" if str(part) == directory else f": {str(part)!r}")
    if not stat.S_ISDIR(status.st_mode):
        raise InvalidInputError(f"{where} is a link or no directory; name a real directory")
    if status.st_uid not in (os.geteuid(), 0):
        raise InvalidInputError(f"{where} belongs to user {status.st_uid}; use one of your own")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
        raise InvalidInputError(f"{where} can be changed by other users; chmod it to 0700")


def _remove_file(path: Path) -> None:
    """Remove a file if that can be done; what lies there is not read again."""
    with contextlib.suppress(OSError):
        path.unlink()


def _to_bytes(block: torch.Tensor) -> memoryview:
    array: NDArray[np.uint8] = block.cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return array.data


def _open_to_write(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def _open_to_read(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe in its place must not make us wait


def _write_file(path: Path, blocks: Sequence[torch.Tensor]) -> _Content:
    parts = [_to_bytes(block) for block in blocks]
    length, checksum = 0, 0
    for part in parts:
        length, checksum = length + len(part), zlib.crc32(part, checksum)
    with open(path, "wb", opener=_open_to_write) as file:
        file.write(_HEADER.pack(_MAGIC, length, checksum))
        for part in parts:
            file.write(part)
    return _Content(length, checksum)


def _read_file(block_file: _BlockFile, shaped_like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    path, content = block_file.path, block_file.content
    data = bytearray(_HEADER.size + content.num_bytes)
    with open(path, "rb", buffering=0, opener=_open_to_read) as file:
        status = os.fstat(file.fileno())
        is_whole = stat.S_ISREG(status.st_mode) and status.st_size == len(data) and _read_all(file, data)
    body = memoryview(data)[_HEADER.size :]
    if not is_whole or _HEADER.unpack_from(data) != (_MAGIC, *content) or zlib.crc32(body) != content.checksum:
        raise DamagedFileError(f"{path} is not what was written there: wrong length or checksum")
    blocks, begin = [], 0
    for tensor in shaped_like:
        num_bytes = tensor.numel() * tensor.element_size()
        flat = torch.frombuffer(body[begin : begin + num_bytes], dtype=torch.uint8)
        blocks.append(flat.view(tensor.dtype).view(tensor.shape).to(tensor.device))
        begin += num_bytes
    return blocks


def _read_all(file: io.FileIO, data: bytearray) -> bool:
    """Fill ``data``; whether the file had that much."""
    rest = memoryview(data)
    while rest:
        num_read = file.readinto(rest)
        if not num_read:
            return False
        rest = rest[num_read:]
    return True


def _write_with_kvikio(path: Path, blocks: Sequence[torch.Tensor]) -> _Content:
    kvikio = _import_kvikio()
    offset, checksum = 0, 0
    with kvikio.CuFile(str(path), "w") as file:
        for block in blocks:
            flat = block.view(-1).view(torch.uint8)
            if file.write(flat, file_offset=offset) != flat.numel():
                raise OSError(f"{path} could not be written to its end")
            offset += flat.numel()
            checksum = _add_to_checksum(flat, checksum)
    return _Content(offset, checksum)


def _read_with_kvikio(block_file: _BlockFile, shaped_like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    kvikio = _import_kvikio()
    path, content = block_file.path, block_file.content
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size != content.num_bytes:
        raise DamagedFileError(f"{path} is not a file of the {content.num_bytes} bytes that were written")
    blocks, offset, checksum = [], 0, 0
    with kvikio.CuFile(str(path), "r") as file:
        for tensor in shaped_like:
            flat = torch.empty(tensor.numel() * tensor.element_size(), dtype=torch.uint8, device=tensor.device)
            if file.read(flat, file_offset=offset) != flat.numel():
                raise DamagedFileError(f"{path} ended early")
            blocks.append(flat.view(tensor.dtype).view(tensor.shape))
            offset += flat.numel()
            checksum = _add_to_checksum(flat, checksum)
    if checksum != content.checksum:
        raise DamagedFileError(f"{path} is not what was written there: wrong checksum")
    return blocks


def _add_to_checksum(data: torch.Tensor, checksum: int) -> int:
    """A checksum that the device computes: each word times an odd number of its own, modulo 2^64."""
    words = data.view(torch.int32) if data.numel() % 4 == 0 else data
    weights = torch.arange(1, 2 * words.numel(), 2, dtype=torch.int64, device=data.device)
    return (checksum * 31 + int((words.to(torch.int64) * weights).sum().item())) % 2**64


def _import_kvikio() -> Any:
    try:
        import kvikio
    except ImportError as error:
        raise MissingExtraError(
            'transfer mode GDS needs kvikio and a GPU: pip install "trtkv[gds]", or use POSIX_DEBUG_FALLBACK or DRAM'
        ) from error
    return kvikio
