"""What a manager keeps about one sequence."""

from __future__ import annotations

import pytest

from trtkv.blocks.generation_request import GenerationRequest
from trtkv.common import MAX_INT32, KvCacheTransferMode
from trtkv.errors import LogicError, UnknownIdError
from trtkv.records.retention_config import DEFAULT_RETENTION_PRIORITY, KvCacheRetentionConfig


def test_new_sequence_has_an_empty_record_for_each_window() -> None:
    sequence = GenerationRequest(7, 9, 2, [4, 64])
    for window in (4, 64):
        assert sequence.get_cache_block_ids(window) == [[], []]
        assert sequence.get_num_front_blocks_removed(window) == 0
        assert sequence.get_window(window).held == []
    assert sequence.get_window(4) is not sequence.get_window(64)
    assert (sequence.request_id, sequence.num_tokens, sequence.beam_width) == (7, 9, 2)
    assert sequence.current_prepopulated_prompt_len == MAX_INT32


@pytest.mark.parametrize("method", ["get_window", "get_cache_block_ids", "get_num_front_blocks_removed"])
def test_unknown_window_is_named_with_the_known_ones(method: str) -> None:
    with pytest.raises(UnknownIdError, match=r"window 5 is not managed; choose one of \[4, 64\]"):
        getattr(GenerationRequest(7, 9, 1, [64, 4]), method)(5)


def test_length_found_never_grows_from_window_to_window() -> None:
    sequence = GenerationRequest(7, 9, 1, [64])
    sequence.set_current_prepopulated_prompt_len(8)
    sequence.set_current_prepopulated_prompt_len(8)
    sequence.set_current_prepopulated_prompt_len(4)
    with pytest.raises(LogicError, match="matched 5 tokens, more than the 4 before"):
        sequence.set_current_prepopulated_prompt_len(5)


def test_retention_of_decode_blocks_comes_from_the_request() -> None:
    config = KvCacheRetentionConfig([], 60, 500, KvCacheTransferMode.GDS, "/tmp/blocks")
    sequence = GenerationRequest(7, 9, 1, [64], config)
    assert (sequence.decode_retention_priority, sequence.decode_duration_ms) == (60, 500)
    assert (sequence.transfer_mode, sequence.directory) == (KvCacheTransferMode.GDS, "/tmp/blocks")


def test_without_retention_the_defaults_hold() -> None:
    sequence = GenerationRequest(7, 9, 1, [64])
    assert (sequence.decode_retention_priority, sequence.decode_duration_ms) == (DEFAULT_RETENTION_PRIORITY, None)
    assert (sequence.transfer_mode, sequence.directory) == (KvCacheTransferMode.DRAM, "")
