"""ExecutorStats: what an executor has done. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ExecutorStats:
    """Totals since construction."""

    num_steps: int = 0
    num_computed_tokens: int = 0
    num_context_chunks: int = 0
    """Parts of prompts computed; equals the number of prompts computed when nothing is cut into chunks."""
    num_unfinished_chunks: int = 0
    """Parts of prompts that were not the last of theirs."""
    num_reused_tokens: int = 0
    """Prompt tokens found in the cache."""
    num_shared_admissions: int = 0
    """Requests admitted while another sequence held one of their blocks."""
    num_paused: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_rewound_tokens: int = 0
    num_front_blocks_removed: int = 0
    """Blocks that finished or paused requests had let go because they slid out of a window."""
    table_bytes_sent: int = 0
    """Bytes that brought the offset table up to date."""
