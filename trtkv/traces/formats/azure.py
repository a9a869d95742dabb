"""Azure LLM inference traces (CSV): lengths only."""

from __future__ import annotations

from trtkv.traces.length_columns import length_format

FORMAT = length_format("azure", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
