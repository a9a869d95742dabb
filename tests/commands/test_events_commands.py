"""``trtkv events``: watched, recorded and replayed over the loopback device, with the publisher in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.exporters.test_vllm_events import make_stream
from trtkv.commands.events import parse_prompt
from trtkv.errors import InvalidInputError
from trtkv.events.kv_cache_events import KVCacheEvent
from trtkv.exporters.cache_view import CacheView, ViewRow
from trtkv.exporters.event_message import EventMessage
from trtkv.exporters.event_recording import RecordedMessage, header_line, read_recording, recorded_line
from trtkv.exporters.trtllm_json import events_to_dicts
from trtkv.exporters.vllm_events import VllmEventEncoder, VllmEventTranslator

pytest.importorskip("zmq", reason="pyzmq is not installed; it carries the messages")
pytest.importorskip("msgspec", reason="msgspec is not installed; it packs messages")

TIMEOUT_S = 120
PROMPT = " ".join(map(str, range(10, 21)))


def make_payloads(form: str, events: list[KVCacheEvent]) -> list[bytes]:
    if form == "json":
        return [json.dumps(events_to_dicts([event])).encode() for event in events]
    translator = VllmEventTranslator(4, [64], report_media=True)
    encoder = VllmEventEncoder(translator)
    return [payload for event in events for payload in encoder.encode([event]).values()]


def write_recording(path: Path, payloads: list[bytes]) -> Path:
    recorded = [RecordedMessage(0.001 * index, EventMessage(index, data)) for index, data in enumerate(payloads)]
    path.write_text(header_line() + "".join(map(recorded_line, recorded)))
    return path


def trtkv(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "trtkv", "events", *map(str, arguments)]


@contextmanager
def publishing(path: Path, *options: object) -> Iterator[tuple[str, str]]:
    """Another process that publishes a recording to its first subscriber; yields its endpoints."""
    any_port = "tcp://127.0.0.1:*"
    command = trtkv("replay", path, "--endpoint", any_port, "--replay-endpoint", any_port, "--subscribers", 1, *options)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        words = process.stderr.readline().replace(",", "").split()
        assert words[:2] == ["publishing", "on"]
        yield words[2], words[-1]
        assert process.wait(TIMEOUT_S) == 0
        assert "published" in process.stderr.read()
    finally:
        process.kill()
        process.wait()


def run(*arguments: object, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(trtkv(*arguments), input=text, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


@pytest.mark.parametrize("form", ["json", "vllm"])
def test_watch_shows_what_another_process_publishes(tmp_path: Path, form: str) -> None:
    manager, events = make_stream()
    payloads = make_payloads(form, events)
    path = write_recording(tmp_path / "events.jsonl", payloads)
    options = ["--tokens-per-block", 4, "--messages", len(payloads), "--duration", TIMEOUT_S, "--json"]
    with publishing(path) as (endpoint, _):
        result = run("watch", endpoint, *options, "--prompt", f"{PROMPT} 7", "--prompt", f"{PROMPT} salt=no")
    assert result.returncode == 0, result.stderr
    last = [json.loads(line) for line in result.stdout.splitlines()][-1]
    assert (last["messages"], last["missed"], last["needs_resync"]) == (len(payloads), 0, False)
    blocks = [
        block
        for window in manager.block_manager.window_block_managers.values()
        for block in window.matcher.list_blocks()
        if form == "json" or block.is_full
    ]
    by_tier = {row["tier"]: row["blocks"] for row in last["rows"]}
    assert by_tier == {
        tier: sum(block.is_primary == is_primary for block in blocks)
        for tier, is_primary in (("GPU", True), ("CPU", False))
        if any(block.is_primary == is_primary for block in blocks)
    }
    assert last["prompts"][1]["found"] == {}


def test_recording_of_another_process_is_what_it_published(tmp_path: Path) -> None:
    payloads = make_payloads("vllm", make_stream()[1])
    path = write_recording(tmp_path / "events.jsonl", payloads)
    copy = tmp_path / "copy.jsonl"
    with publishing(path, "--speed", 0) as (endpoint, replay_endpoint):
        options = ["--messages", len(payloads), "--duration", TIMEOUT_S, "--replay-endpoint", replay_endpoint]
        result = run("record", endpoint, copy, *options)
    assert result.returncode == 0, result.stderr
    assert result.stderr.endswith(f"recorded {len(payloads)} messages, 0 missed\n")
    assert [recorded.message for recorded in read_recording(copy)] == list(map(EventMessage, range(99), payloads))


def test_view_counts_by_rank_adapter_and_tier() -> None:
    _, events = make_stream()
    views = {form: CacheView(4, [64]) for form in ("json", "vllm")}
    for form, view in views.items():
        for sequence, payload in enumerate(make_payloads(form, events)):
            view.take(sequence, payload)
    rows = {form: {row.tier: row for row in view.count()} for form, view in views.items()}
    assert rows["json"]["CPU"] == ViewRow(None, "-", "CPU", rows["json"]["CPU"].blocks, rows["json"]["CPU"].tokens)
    assert sum(row.blocks for row in rows["vllm"].values()) <= sum(row.blocks for row in rows["json"].values())
    with pytest.raises(InvalidInputError, match="poetry"):
        views["json"].find([1, 2], "poetry")
    assert views["json"].find([10, 11, 12, 13, 14], "lora-3") == {}


@pytest.mark.parametrize("payload", [b"[1", b"\x00", b'[{"event_id": 1}]'])
def test_payload_of_no_known_form_changes_nothing(payload: bytes) -> None:
    view = CacheView(4)
    with pytest.raises(InvalidInputError):
        view.take(0, payload)
    assert (view.count(), view.num_messages) == ([], 0)


def test_several_windows_have_to_be_named() -> None:
    events = [event._replace(window_size=window) for event in make_stream()[1][:2] for window in (64, 8)]
    with pytest.raises(InvalidInputError, match=r"windows \[64, 8\]"):
        CacheView(4).take(0, make_payloads("json", events)[0][:-1] + b"," + make_payloads("json", events)[1][1:])
    CacheView(4, [64, 8]).take(0, make_payloads("json", events)[1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1 2,3", ([1, 2, 3], None, None)), ("4 salt=a adapter=7", ([4], "7", "a")), ("", ([], None, None))],
)
def test_typed_prompts(text: str, expected: Any) -> None:
    assert parse_prompt(text) == expected


@pytest.mark.parametrize("text", ["one", "1 -2", "1 lora=3"])
def test_wrong_prompts_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="give token ids"):
        parse_prompt(text)


def test_prompts_typed_in_are_answered_at_once(tmp_path: Path) -> None:
    result = run("watch", "tcp://127.0.0.1:9", "--duration", 2, "--json", text="1 2 3\nnonsense\n")
    assert result.returncode == 0, result.stderr
    assert {"prompt": "1 2 3", "tokens": 3, "found": {}} in [json.loads(line) for line in result.stdout.splitlines()]
    assert "nonsense" in result.stderr


@pytest.mark.parametrize(
    "content", ["", "{}\n", "[]\n", header_line() + "{}\n", header_line() + "x\n", header_line() + '{"sequence":1}\n']
)
def test_file_that_is_not_a_recording_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=r"wrong\.jsonl"):
        list(read_recording(path))


def test_wrong_endpoints_are_one_line(tmp_path: Path) -> None:
    for arguments in (["watch", "tcp://127.0.0.1:99999"], ["watch", "tcp://127.0.0.1:*"], ["record", "x", "-"]):
        result = run(*arguments)
        assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
