"""FileCopyEngine: the contract of copy engines with files and without, and what can go wrong on a disk."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from types import ModuleType, TracebackType
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch", reason="the engine moves torch tensors")

from tests.contracts.copy_engine import CopyEngineContract, fill, make_copy, make_pools, read  # noqa: E402
from trtkv.common import KvCacheTransferMode  # noqa: E402
from trtkv.errors import InvalidInputError, MissingExtraError  # noqa: E402
from trtkv.records.kv_cache_index import make_index  # noqa: E402
from trtkv.transfers.file_copy_engine import DamagedFileError, FileCopyEngine, make_private_folder  # noqa: E402

PRIMARY_SLOT, HOST_SLOT, TARGET = make_index(2), make_index(1, level=1), make_index(4)


class TestFileCopyEngineWithFiles(CopyEngineContract):
    @pytest.fixture(autouse=True)
    def _set_directory(self, tmp_path: Path) -> None:
        self.directory = str(tmp_path / "offload")

    def make_engine(self) -> FileCopyEngine:
        return FileCopyEngine()


class TestFileCopyEngineInMemory(CopyEngineContract):
    def make_engine(self) -> FileCopyEngine:
        return FileCopyEngine()


def find_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_files_and_folders_are_private_and_removed_at_the_end(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    engine, pools = FileCopyEngine(), make_pools("plain")
    engine.copy_block(make_copy(PRIMARY_SLOT, HOST_SLOT, 0, str(directory)), pools)
    (file,) = find_files(directory)
    assert file.suffix == ".kv"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert (engine.num_files_written, engine.num_files_read) == (1, 0)
    engine.close()
    assert list(directory.iterdir()) == []


def test_the_secondary_pool_is_not_used_for_a_block_in_a_file(tmp_path: Path) -> None:
    engine, pools = FileCopyEngine(), make_pools("plain")
    fill(pools, 1)
    host = [read(pool, HOST_SLOT) for pool in pools]
    engine.copy_block(make_copy(PRIMARY_SLOT, HOST_SLOT, 0, str(tmp_path)), pools)
    assert all(torch.equal(read(pool, HOST_SLOT), block) for pool, block in zip(pools, host, strict=True))


def test_a_block_is_read_from_where_it_was_put_whatever_the_request_says(tmp_path: Path) -> None:
    engine, pools = FileCopyEngine(), make_pools("plain")
    fill(pools, 2)
    first = [read(pool, PRIMARY_SLOT) for pool in pools]
    second = [read(pool, make_index(3)) for pool in pools]
    engine.copy_block(make_copy(PRIMARY_SLOT, HOST_SLOT, 0, str(tmp_path)), pools)
    engine.copy_block(make_copy(HOST_SLOT, TARGET), pools)  # DRAM mode
    assert all(torch.equal(read(pool, TARGET), block) for pool, block in zip(pools, first, strict=True))
    engine.copy_block(make_copy(make_index(3), HOST_SLOT), pools)  # the slot's next block, kept in memory
    assert find_files(tmp_path) == []
    engine.copy_block(make_copy(HOST_SLOT, TARGET, 0, str(tmp_path)), pools)
    assert all(torch.equal(read(pool, TARGET), block) for pool, block in zip(pools, second, strict=True))


@pytest.mark.parametrize("damage", ["cut", "longer", "flipped", "empty", "gone"])
def test_a_damaged_file_is_not_used(tmp_path: Path, damage: str) -> None:
    engine, pools = FileCopyEngine(), make_pools("plain")
    fill(pools, 3)
    engine.copy_block(make_copy(PRIMARY_SLOT, HOST_SLOT, 0, str(tmp_path)), pools)
    (file,) = find_files(tmp_path)
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        flipped = content[:-1] + bytes([content[-1] ^ 1])
        file.write_bytes({"cut": content[:-1], "longer": content + b"x", "flipped": flipped, "empty": b""}[damage])
    before = [read(pool, TARGET) for pool in pools]
    with pytest.raises((DamagedFileError, FileNotFoundError)):
        engine.copy_block(make_copy(HOST_SLOT, TARGET), pools)
    assert all(torch.equal(read(pool, TARGET), block) for pool, block in zip(pools, before, strict=True))
    assert engine.num_files_read == 0


def test_a_failing_write_leaves_no_file_and_the_old_one_stays_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, pools = FileCopyEngine(), make_pools("plain")
    fill(pools, 4)
    first = [read(pool, PRIMARY_SLOT) for pool in pools]
    engine.copy_block(make_copy(PRIMARY_SLOT, HOST_SLOT, 0, str(tmp_path)), pools)

    def fail(src: object, dst: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="No space"):
        engine.copy_block(make_copy(make_index(3), HOST_SLOT, 0, str(tmp_path)), pools)
    monkeypatch.undo()
    assert len(find_files(tmp_path)) == 1
    engine.copy_block(make_copy(HOST_SLOT, TARGET), pools)
    assert all(torch.equal(read(pool, TARGET), block) for pool, block in zip(pools, first, strict=True))


def test_unsafe_directories_are_refused(tmp_path: Path) -> None:
    for bad in ("relative/path", str(tmp_path / ".." / "x"), ""):
        with pytest.raises(InvalidInputError, match="absolute"):
            make_private_folder(bad)
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    for bad in ("link", "dangling", "file"):
        with pytest.raises(InvalidInputError, match="no directory"):
            make_private_folder(str(tmp_path / bad))
    assert not (tmp_path / "nowhere").exists()
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(InvalidInputError, match="other users"):
        make_private_folder(str(shared))
    shared.chmod(0o1777)
    assert stat.S_IMODE(make_private_folder(str(shared)).stat().st_mode) == 0o700


class FakeCuFile:
    """kvikio's file object, as far as the engine uses it."""

    opened: ClassVar[list[tuple[str, str]]] = []

    def __init__(self, path: str, flags: str) -> None:
        self.opened.append((Path(path).suffix, flags))
        self._file = open(path, "w+b" if flags == "w" else "rb")  # noqa: SIM115  closed by __exit__

    def __enter__(self) -> FakeCuFile:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def write(self, data: torch.Tensor, file_offset: int) -> int:
        self._file.seek(file_offset)
        return self._file.write(data.numpy().data)

    def read(self, data: torch.Tensor, file_offset: int) -> int:
        self._file.seek(file_offset)
        return self._file.readinto(data.numpy().data)


def test_gds_goes_through_kvikio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kvikio = ModuleType("kvikio")
    kvikio.CuFile = FakeCuFile  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kvikio", kvikio)
    monkeypatch.setattr(FakeCuFile, "opened", [])
    engine, pools = FileCopyEngine(), make_pools("nvfp4")
    fill(pools, 5)
    wanted = [read(pool, PRIMARY_SLOT) for pool in pools]
    offload = make_copy(PRIMARY_SLOT, HOST_SLOT, 0, str(tmp_path))._replace(mode=KvCacheTransferMode.GDS)
    assert engine.copy_block(offload, pools) == sum(pool.block_bytes for pool in pools)
    engine.copy_block(make_copy(HOST_SLOT, TARGET), pools)
    assert all(torch.equal(read(pool, TARGET), block) for pool, block in zip(pools, wanted, strict=True))
    assert FakeCuFile.opened == [(".part", "w"), (".kv", "r")]
    (file,) = find_files(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DamagedFileError):
        engine.copy_block(make_copy(HOST_SLOT, TARGET), pools)


def test_gds_without_kvikio_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvikio", None)
    engine, pools = FileCopyEngine(), make_pools("plain")
    offload = make_copy(PRIMARY_SLOT, HOST_SLOT, 0, str(tmp_path))._replace(mode=KvCacheTransferMode.GDS)
    with pytest.raises(MissingExtraError, match=r"trtkv\[gds\]"):
        engine.copy_block(offload, pools)
    assert find_files(tmp_path) == []
