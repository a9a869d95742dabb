"""Offload files that are lost or changed, and disks that are full, cost a block and nothing else."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the engine moves torch tensors")

from tests.builders import add, finish_prompt, make_event_manager, make_kv_cache_manager, make_request, serve  # noqa: E402
from tests.contracts.copy_engine import fill, make_copy, make_pools, read  # noqa: E402
from tests.event_mirror import EventMirror  # noqa: E402
from trtkv import KVCacheManager, KvCacheRetentionConfig, KvCacheTransferMode, LlmRequest  # noqa: E402
from trtkv.blocks.kv_cache_block import KVCacheBlock  # noqa: E402
from trtkv.errors import InvalidInputError  # noqa: E402
from trtkv.inspection.invariants import check_invariants  # noqa: E402
from trtkv.records.kv_cache_index import get_slot, make_index  # noqa: E402
from trtkv.transfers.copy_engine import LostBlockError, OffloadFailedError  # noqa: E402
from trtkv.transfers.file_copy_engine import FileCopyEngine, make_private_folder  # noqa: E402

PROMPTS = [[100 * n + token for token in range(9)] for n in range(1, 7)]


def make_filed_request(request_id: int, tokens: list[int], directory: Path) -> LlmRequest:
    retention = KvCacheRetentionConfig(transfer_mode=KvCacheTransferMode.POSIX_DEBUG_FALLBACK, directory=str(directory))
    return make_request(request_id, tokens, kv_cache_retention_config=retention)


class Server:
    """A manager with three device blocks and sixteen host blocks, which lie in files, in real memory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.engine = FileCopyEngine()
        self.events = make_event_manager()
        self.manager: KVCacheManager = make_kv_cache_manager(
            3, 16, window=16, max_sequence_length=16, copy_engine=self.engine, event_manager=self.events
        )
        self.manager.allocate_pools()
        self.num_served = 0

    def admit(self, tokens: list[int]) -> LlmRequest:
        self.num_served += 1
        return add(self.manager, make_filed_request(self.num_served, tokens, self.directory))

    def serve(self, tokens: list[int]) -> int:
        """Compute a prompt, each block filled with its first token; returns the tokens found, after looking at them."""
        request = self.admit(tokens)
        found = request.prepopulated_prompt_len
        pool = self.manager.get_unique_primary_pool()
        ids = self.manager.get_cache_block_ids(request.request_id, 16)[0]
        for index, slot in enumerate(self.manager.get_memory_pool_block_indices(ids, 16)):
            if index * 4 < found:
                assert (pool[slot] == tokens[index * 4]).all(), f"block {index} holds another block's content"
            pool[slot] = tokens[index * 4]
        finish_prompt(request)
        self.manager.remove_sequence(request.request_id, request)
        check_invariants(self.manager)
        return found

    def probe_all(self) -> list[int]:
        """Tokens cached of each of the first prompts."""
        requests = [make_request(99, tokens) for tokens in PROMPTS[:4]]
        return [self.manager.probe_prefix_match_length(request) for request in requests]

    def cached_blocks(self) -> list[KVCacheBlock]:
        return self.manager.block_manager.window_block_managers[16].matcher.list_blocks()

    @staticmethod
    def is_file_of(path: Path, block: KVCacheBlock) -> bool:
        """Whether a file holds the host slot of a block."""
        return not block.is_primary and f"_slot_{get_slot(block.memory_pool_block_index)}_" in path.name

    def files(self) -> list[Path]:
        return sorted(path for path in self.directory.rglob("*.kv"))

    def check_events(self) -> None:
        """What listeners believe to be cached is cached."""
        self.manager.flush_iteration_events()
        mirror = EventMirror()
        for event in self.manager.get_latest_events():
            mirror.apply(event)
        mirror.check(self.manager)


def lose(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def exchange(path: Path) -> None:
    """Put another block's file, which is whole in itself, in its place."""
    other = next(file for file in path.parent.glob("*.kv") if file != path and file.read_bytes() != path.read_bytes())
    shutil.copyfile(other, path)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES = [lose, cut, flip, exchange, make_folder, make_pipe]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", [0, 1, 4])
def test_a_damaged_file_costs_one_block(tmp_path: Path, damage: Callable[[Path], None], number: int) -> None:
    server = Server(tmp_path / "offload")
    for tokens in PROMPTS[:4]:
        assert server.serve(tokens) == 0
    path = server.files()[number]
    (block,) = (block for block in server.cached_blocks() if server.is_file_of(path, block))
    first_token = array("i", block.block_key)[0]
    (prompt,) = (tokens for tokens in PROMPTS if first_token in tokens)
    damage(path)
    before = server.probe_all()
    assert server.serve(prompt) == prompt.index(first_token)
    assert server.probe_all() == before == [8] * 4
    assert server.serve(prompt) == 8
    server.check_events()


def test_a_request_whose_blocks_are_all_lost_computes_its_prompt(tmp_path: Path) -> None:
    server = Server(tmp_path / "offload")
    for tokens in PROMPTS[:4]:
        server.serve(tokens)
    for path in server.files():
        lose(path)
    assert [server.serve(tokens) for tokens in PROMPTS[:3]] == [0] * 3
    assert server.probe_all() == [8] * 4
    server.check_events()


def test_a_lost_block_does_not_harm_the_others_of_its_batch(tmp_path: Path) -> None:
    engine = FileCopyEngine()
    manager = make_kv_cache_manager(8, 8, copy_engine=engine)
    manager.allocate_pools()
    for number, tokens in enumerate(PROMPTS[:2]):
        serve(manager, make_filed_request(number, tokens, tmp_path))
    serve(manager, make_filed_request(3, list(range(32)), tmp_path))  # puts everything into files
    files = sorted(tmp_path.rglob("*.kv"))
    assert len(files) >= 4
    for path in files[:1]:
        lose(path)
    batch = [make_filed_request(10 + number, tokens, tmp_path) for number, tokens in enumerate(PROMPTS[:3])]
    batch[2] = make_filed_request(12, [7], tmp_path)
    manager.add_sequence_batch([(request.request_id, request.prompt_len, 1) for request in batch], batch)
    assert sorted(manager.sequences) == [10, 11, 12]
    assert sorted(request.prepopulated_prompt_len for request in batch)[1:] in ([0, 8], [4, 8])
    check_invariants(manager, {request.request_id: request for request in batch})


@pytest.mark.parametrize("with_parent", [False, True])
def test_a_removed_folder_is_made_anew(tmp_path: Path, with_parent: bool) -> None:
    server = Server(tmp_path / "offload")
    for tokens in PROMPTS[:4]:
        server.serve(tokens)
    shutil.rmtree(server.directory if with_parent else server.files()[0].parent)
    for _ in range(2):  # a file is found to be lost when it is read
        for tokens in PROMPTS[:4]:
            server.serve(tokens)
    assert server.files()
    assert [server.serve(tokens) for tokens in PROMPTS[:4]] == [8] * 4
    server.check_events()


def fail_to(name: str, number: int) -> Callable[..., Any]:
    def fail(*args: object, **options: object) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("step", ["open", "rename", "mkdtemp"])
def test_a_full_disk_costs_the_victim_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    server = Server(tmp_path / "offload")
    for tokens in PROMPTS[:3] if step != "mkdtemp" else PROMPTS[:1]:
        server.serve(tokens)
    in_files = len(server.files())
    with monkeypatch.context() as patch:
        name = {"open": "trtkv.transfers.file_copy_engine._open_to_write", "rename": "os.rename"}.get(
            step, "tempfile.mkdtemp"
        )
        patch.setattr(name, fail_to(step, errno.ENOSPC))
        assert server.serve(PROMPTS[3]) == 0
        assert server.serve(PROMPTS[3]) == 8
    assert len(server.files()) == in_files
    assert not list(server.directory.rglob("*.part"))
    if step != "mkdtemp":
        assert server.serve(PROMPTS[0]) == 8  # files that were there are as good as before
    server.check_events()


def test_an_engine_says_what_was_lost_and_what_could_not_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, pools = FileCopyEngine(), make_pools("plain")
    fill(pools, 1)
    source, host, target = make_index(2), make_index(1, level=1), make_index(4)
    engine.copy_block(make_copy(source, host, 0, str(tmp_path)), pools)
    (file,) = tmp_path.rglob("*.kv")
    before = [read(pool, target) for pool in pools]
    lose(file)
    with pytest.raises(LostBlockError, match="is lost"):
        engine.copy_block(make_copy(host, target), pools)
    assert all(torch.equal(read(pool, target), block) for pool, block in zip(pools, before, strict=True))
    monkeypatch.setattr(os, "rename", fail_to("rename", errno.ENOSPC))
    with pytest.raises(OffloadFailedError, match="No space"):
        engine.copy_block(make_copy(source, host, 0, str(tmp_path)), pools)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts the descriptors that Linux shows")
@pytest.mark.parametrize("damage", [*DAMAGES, None])
def test_no_descriptor_stays_open(tmp_path: Path, damage: Callable[[Path], None] | None) -> None:
    engine, pools = FileCopyEngine(), make_pools("plain")
    fill(pools, 1)
    before = os.listdir("/proc/self/fd")
    for slot in (0, 1):
        engine.copy_block(make_copy(make_index(slot), make_index(slot, level=1), 0, str(tmp_path)), pools)
    for file in list(tmp_path.rglob("*.kv")):
        if damage is not None and damage is not exchange:
            damage(file)
    for slot in (0, 1):
        try:
            engine.copy_block(make_copy(make_index(slot, level=1), make_index(4)), pools)
        except LostBlockError:
            assert damage is not None
    assert len(os.listdir("/proc/self/fd")) == len(before)
    engine.close()


def test_folders_on_the_way_are_looked_at_as_well(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "mine").mkdir(parents=True)
    (shared / "mine").chmod(0o700)
    shared.chmod(0o777)
    with pytest.raises(InvalidInputError, match=r"shared' can be changed by other users"):
        make_private_folder(str(shared / "mine"))
    with pytest.raises(InvalidInputError, match="can be changed by other users"):
        make_private_folder(str(shared / "mine" / "deeper"))
    assert not (shared / "mine" / "deeper").exists()
    shared.chmod(0o1777)
    assert make_private_folder(str(shared / "mine")).parent == shared / "mine"
    (tmp_path / "link").symlink_to(shared)
    with pytest.raises(InvalidInputError, match=r"link' is a link or no directory"):
        make_private_folder(str(tmp_path / "link" / "mine"))
    make_private_folder(str(tmp_path / "a" / "b"))
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
