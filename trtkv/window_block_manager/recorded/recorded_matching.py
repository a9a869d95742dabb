"""RecordedReuseMatcher: a recurrent state that is missing ends the walk."""

from __future__ import annotations

from trtkv.window_block_manager.reuse_matching import ReuseMatcher


class RecordedReuseMatcher(ReuseMatcher):
    """Walks the tree as recorded."""

    skips_missing_states = False
