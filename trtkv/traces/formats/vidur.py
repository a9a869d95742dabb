"""vidur's processed traces (CSV): lengths only."""

from __future__ import annotations

from trtkv.traces.length_columns import length_format

FORMAT = length_format("vidur", ("arrived_at", "num_prefill_tokens", "num_decode_tokens"))
