"""Kinds of managers and programs for the stress tests."""

from __future__ import annotations

from tests.builders import make_linear_attention
from tests.stress.checked_program import Scenario
from trtkv.common import RECURRENT_STATES

NO_PARTIAL = {"enable_partial_reuse": False}

SCENARIOS = [
    Scenario("full", {64: (14, 0)}, pins=True, truncation=True, drafts=True),
    Scenario("full-no-copy", {64: (14, 0)}, {"copy_on_partial_reuse": False}, chunked=True, drafts=True),
    Scenario("full-whole-blocks", {64: (14, 0)}, NO_PARTIAL, truncation=True),
    Scenario("one-token-blocks", {32: (40, 0)}, {"tokens_per_block": 1, "max_sequence_length": 32}, max_prompt=12),
    Scenario("no-reuse", {64: (14, 4)}, {"enable_block_reuse": False}, max_beam_width=3, drafts=True),
    Scenario("host", {64: (12, 6)}, pins=True, truncation=True, chunked=True),
    Scenario("tiny-host", {64: (12, 1)}, retention=True, events=True, drafts=True),
    Scenario("retention", {64: (12, 8)}, retention=True, events=True, truncation=True),
    Scenario("low-threshold", {64: (12, 8)}, {"secondary_offload_min_priority": 0}, retention=True),
    Scenario("beams", {64: (30, 0)}, max_beam_width=3, max_prompt=20),
    Scenario("beams-host", {64: (30, 8)}, max_beam_width=3, max_prompt=20, retention=True, events=True),
    Scenario("constraints", {64: (16, 4)}, constraints=True, events=True, chunked=True),
    Scenario("window", {8: (20, 0)}, drafts=True, events=True),
    Scenario("window-odd", {6: (20, 0)}, chunked=True, drafts=True),
    Scenario("window-odd-host", {7: (14, 6)}, retention=True, events=True, pins=True, truncation=True),
    Scenario("window-of-one-block", {3: (16, 0)}, truncation=True),
    Scenario("window-beams", {16: (16, 0)}, max_beam_width=2, max_prompt=24),
    Scenario("two-windows", {64: (16, 0), 8: (14, 0)}, events=True, chunked=True, drafts=True, truncation=True),
    Scenario("two-sliding", {16: (14, 4), 6: (12, 4)}, events=True, retention=True, pins=True),
    Scenario("three-windows", {64: (16, 0), 20: (14, 0), 6: (12, 0)}, constraints=True, pins=True, max_prompt=40),
    Scenario(
        "recurrent",
        {64: (14, 0), RECURRENT_STATES: (10, 0)},
        NO_PARTIAL | {"linear_attention_metadata": make_linear_attention()},
    ),
    Scenario(
        "recurrent-last-snapshot",
        {64: (14, 0), RECURRENT_STATES: (9, 3)},
        NO_PARTIAL | {"linear_attention_metadata": make_linear_attention(save_last_snapshot=True)},
        events=True,
    ),
    Scenario(
        "recurrent-few-placeholders",
        {64: (14, 0), RECURRENT_STATES: (8, 0)},
        NO_PARTIAL
        | {
            "linear_attention_metadata": make_linear_attention(
                states_snapshot_interval=0, save_last_snapshot=True, num_placeholder_blocks=9
            )
        },
    ),
    Scenario(
        "recurrent-beams",
        {64: (30, 0), RECURRENT_STATES: (12, 0)},
        NO_PARTIAL | {"linear_attention_metadata": make_linear_attention(save_last_snapshot=True)},
        max_beam_width=2,
        max_prompt=16,
    ),
    Scenario(
        "recurrent-no-reuse",
        {64: (14, 0), RECURRENT_STATES: (6, 0)},
        NO_PARTIAL | {"linear_attention_metadata": make_linear_attention(), "enable_block_reuse": False},
    ),
]
