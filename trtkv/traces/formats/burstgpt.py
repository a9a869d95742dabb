"""BurstGPT (CSV): lengths only."""

from __future__ import annotations

from trtkv.traces.length_columns import length_format

FORMAT = length_format("burstgpt", ("Timestamp", "Request tokens", "Response tokens"))
