"""Replays on nano-vllm of bare requests, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtkv.replay.nano import nano_driver
from trtkv.traces.trace import RequestTrace, TraceRequest


def run_nano(requests: Sequence[TraceRequest], **settings: Any) -> dict[str, Any]:
    return nano_driver.run_nano(RequestTrace("t.jsonl", "tokens", None, requests), **settings).to_json()


def run_nano_scheduler(requests: Sequence[TraceRequest], **settings: Any) -> dict[str, Any]:
    return nano_driver.run_nano_scheduler(RequestTrace("t.jsonl", "tokens", None, requests), **settings).to_json()
