"""Facts: what a result says, as named numbers with definitions and the settings they were found under.

Reads results of this package (replays of both systems, bounds, trace info), rows of recorded runs, and TensorRT-LLM's
``kvCacheStats``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from trtkv.errors import InvalidInputError
from trtkv.replay.closed_loop import result as replay_result
from trtkv.replay.nano import nano_result
from trtkv.tables.wording import ratio, share
from trtkv.traces.sessions.protocol import Outputs, Sessions

BLOCKS: Final = "prompt blocks found in the cache, wholly or in part, summed over windows"
FULL_BLOCKS: Final = "full prompt blocks found in the cache, the last one never"
COUNT_DEFINITIONS: Final = {
    "requests": "requests run",
    "prompt_tokens": "prompt tokens of the requests run",
    "prompt_blocks": "prompt blocks of the requests run, started ones included",
    "decode_calls": "tokens for which room was made",
    "prepopulated_tokens": "prompt tokens found in the cache",
}
TENSORRT_DEFINITIONS: Final = {
    **COUNT_DEFINITIONS,
    "reused": BLOCKS,
    "missed": "prompt blocks asked for and not found, summed over windows",
    "alloc_total": "blocks allocated, summed over windows",
}
NANO_DEFINITIONS: Final = {
    **COUNT_DEFINITIONS,
    "reused": FULL_BLOCKS,
    "missed": "prompt blocks but those found as full ones",
    "alloc_total": "blocks taken from the free queue as empty ones",
}
PROTOCOL: Final = "protocol"
"""Setting that says which requests waited for others and what was generated."""

SETTINGS: Final = ("trace", "tokens_per_block", "capacity_tokens", "host_tokens", "live", "partial_reuse", "windows")

TRACE_NAMES: Final = {
    ("conversation_trace.jsonl", 12_031): "conversation",
    ("conversation_trace.jsonl", 2_000): "conversation-2000",
    ("synthetic_trace.jsonl", 3_993): "synthetic",
    ("sharegpt-llama-3.1-8b-300-sps10.jsonl", 300): "sharegpt-llama",
}
"""File and number of requests -> the name that recorded runs give it."""


class Fact(NamedTuple):
    """One number: a count, or a rate of two."""

    name: str
    definition: str
    numerator: float
    denominator: int | None = None

    @property
    def value(self) -> float:
        """The rate, or the count itself; a rate of nothing is 0."""
        if self.denominator is None:
            return self.numerator
        return self.numerator / self.denominator if self.denominator else 0.0

    @property
    def text(self) -> str:
        """As people read it."""
        if self.denominator is None:
            return ratio(self.numerator, None)
        return f"{ratio(self.numerator, self.denominator)}\n= {share(self.numerator, self.denominator)}"

    @property
    def is_rate(self) -> bool:
        """Whether it has a denominator."""
        return self.denominator is not None


@dataclass(slots=True)
class Facts:
    """All that one result says."""

    label: str
    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    """Those of SETTINGS that are known."""
    facts: dict[str, Fact] = field(default_factory=dict)

    def add(self, name: str, definition: str, numerator: float, denominator: int | None = None) -> None:
        """Add a fact; the last one of a name counts."""
        self.facts[name] = Fact(name, definition, numerator, denominator)


def load_facts(path: Path) -> Facts:
    """Facts of a result file. Raises InvalidInputError naming file and what is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"cannot read {path}: {error}") from error
    try:
        return facts_of(_parse(text), path.name)
    except KeyError as error:
        raise InvalidInputError(f"{path}: field {error} is missing") from None
    except (TypeError, AttributeError, ValueError) as error:
        raise InvalidInputError(f"{path}: {error}") from error


def facts_of(data: Any, label: str) -> Facts:
    """Facts of a parsed result. Raises InvalidInputError if it is none of the known kinds."""
    if isinstance(data, list):
        data = next((entry for entry in reversed(data) if _stats_of(entry) is not None), None)
    stats = _stats_of(data)
    if stats is not None:
        return _of_kv_cache_stats(stats, label)
    if isinstance(data, dict):
        if "clairvoyant_hit_tokens" in data:
            return _of_bounds(data, label)
        if "infinite_cache" in data:
            return _of_trace_info(data, label)
        if "prepopulated_tokens" in data:
            return _of_replay(data, label)
    if isinstance(data, dict) and "first_admissions" in data:
        raise InvalidInputError("a result of trtkv replay --scheduler, which cannot be compared; leave --scheduler out")
    raise InvalidInputError(
        "neither a result of trtkv (replay, bounds, trace info), nor a recorded run, nor TensorRT-LLM kvCacheStats"
    )


def _parse(text: str) -> Any:
    """A JSON document, or JSON lines as a list."""
    try:
        return json.loads(text)
    except ValueError:
        try:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise InvalidInputError(f"not JSON: {error}") from None


def _stats_of(data: Any) -> Mapping[str, Any] | None:
    if not isinstance(data, dict):
        return None
    inner = data.get("kvCacheStats", data)
    return inner if isinstance(inner, dict) and "reusedBlocks" in inner and "missedBlocks" in inner else None


def _of_kv_cache_stats(stats: Mapping[str, Any], label: str) -> Facts:
    facts = Facts(label, "TensorRT-LLM kvCacheStats", {"tokens_per_block": int(stats["tokensPerBlock"])})
    reused, missed = int(stats["reusedBlocks"]), int(stats["missedBlocks"])
    facts.add("reused", BLOCKS, reused)
    facts.add("missed", TENSORRT_DEFINITIONS["missed"], missed)
    if "allocTotalBlocks" in stats:
        facts.add("alloc_total", TENSORRT_DEFINITIONS["alloc_total"], int(stats["allocTotalBlocks"]))
    facts.add("block_hit_rate", replay_result.BLOCK_HIT_RATE, reused, reused + missed)
    written = stats.get("cacheHitRate")
    if written is not None and abs(float(written) - facts.facts["block_hit_rate"].value) > 1e-4:
        raise InvalidInputError(f"cacheHitRate {written} is not reusedBlocks {reused} of {reused + missed} blocks")
    return facts


def _of_replay(data: Mapping[str, Any], label: str) -> Facts:
    nano = data.get("system") == nano_result.SYSTEM_NAME
    facts = Facts(label, "replay on nano-vllm" if nano else "replay", _replay_settings(data, nano))
    for name, definition in (NANO_DEFINITIONS if nano else TENSORRT_DEFINITIONS).items():
        if name in data:
            facts.add(name, definition, int(data[name]))
    if "rates" in data:
        _add_rates(facts, data["rates"])
        return facts
    reused, missed = int(data["reused"]), int(data["missed"])
    facts.add("block_hit_rate", replay_result.BLOCK_HIT_RATE, reused, reused + missed)
    prompt_tokens = int(data["prompt_tokens"])
    facts.add("token_hit_rate", replay_result.TOKEN_HIT_RATE, int(data["prepopulated_tokens"]), prompt_tokens)
    return facts


def _replay_settings(data: Mapping[str, Any], nano: bool) -> dict[str, Any]:
    settings = {key: data[key] for key in SETTINGS if key in data}
    if "trace" in settings:
        settings["trace"] = trace_name(str(data["trace"]), data.get("trace_requests"))
    settings.setdefault("host_tokens", 0)
    settings[PROTOCOL] = protocol_words(data)
    if nano:
        settings["partial_reuse"] = False
    settings["windows"] = _windows(data)
    return settings


def protocol_words(data: Mapping[str, Any]) -> str:
    """Sessions and outputs of a run, as far as they changed it.

    A trace that names no session, or knows no output, gives the same numbers under any protocol. A result without
    these fields was made before traces had sessions.
    """
    waiting = data.get("requests_with_predecessor", data.get("with_predecessor", 0))
    sessions = data.get("sessions", Sessions.IGNORE.value) if waiting else Sessions.IGNORE.value
    if sessions == Sessions.INFER.value and not data.get("inferred_predecessors"):
        sessions = Sessions.TRACE.value
    outputs = data.get("outputs", Outputs.SYNTHETIC.value) if data.get("outputs_known") else Outputs.SYNTHETIC.value
    return f"sessions {sessions}, outputs {outputs}"


def _windows(data: Mapping[str, Any]) -> list[Any]:
    """One entry per layer: tokens, or full."""
    if "attention_windows" in data:
        return list(data["attention_windows"])
    if data.get("window") is None:
        return ["full"]
    return [data["window"], "full"] if data.get("full_attention_too") else [data["window"]]


def _of_bounds(data: Mapping[str, Any], label: str) -> Facts:
    facts = Facts(label, "bounds", {key: data[key] for key in SETTINGS if key in data})
    for name in ("requests", "prompt_tokens"):
        facts.add(name, COUNT_DEFINITIONS[name], int(data[name]))
    _add_rates(facts, data["rates"])
    return facts


def _of_trace_info(data: Mapping[str, Any], label: str) -> Facts:
    settings = {"trace": trace_name(str(data["trace"]), data["requests"]), "tokens_per_block": data["tokens_per_block"]}
    facts = Facts(label, "trace info", settings)
    facts.add("requests", "requests of the trace", int(data["requests"]))
    facts.add("prompt_tokens", "prompt tokens of the trace", int(data["prompt_tokens"]["total"]))
    _add_rates(facts, data["infinite_cache"])
    return facts


def _add_rates(facts: Facts, rates: list[Mapping[str, Any]]) -> None:
    for rate in rates:
        facts.add(rate["name"], rate["definition"], rate["numerator"], rate["denominator"])


def trace_name(file: str, num_requests: object) -> str:
    """The short name of a public trace read in full or cut as recorded runs cut it; other names stay."""
    plain = file.removesuffix(".gz")
    for (known, count), name in TRACE_NAMES.items():
        if plain == known and num_requests == count:
            return name
    return plain
