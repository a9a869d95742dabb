"""Caches for cross attention by default: encoder states, shared by all beams and by equal encoder inputs only."""

from __future__ import annotations

from itertools import product

import pytest

from tests.builders import finish_prompt, make_kv_cache_manager, make_request
from tests.fake_memory import cached_blocks
from tests.shapes.fake_server import check_free_counts
from trtkv import KVCacheManager, LlmRequest
from trtkv.common import CacheType
from trtkv.errors import InvalidInputError, OutOfBlocksError

ENCODER = 32


def make_cross_manager(num_blocks: int = 24, **options) -> KVCacheManager:
    return make_kv_cache_manager(num_blocks, window=ENCODER, cache_type=CacheType.CROSS, **options)


def make_encoder_request(request_id: int, encoder_tokens: list[int] | None, **options) -> LlmRequest:
    return make_request(request_id, options.pop("prompt", [7, 8]), encoder_tokens=encoder_tokens, **options)


def admit(manager: KVCacheManager, request: LlmRequest, length: int | None = None) -> list[list[int]]:
    length = request.encoder_output_len if length is None else length
    manager.add_sequence_batch([(request.request_id, length, request.beam_width)], [request])
    return manager.get_cache_block_ids(request.request_id, ENCODER)


def run_prompt(manager: KVCacheManager, request: LlmRequest) -> list[list[int]]:
    """Admit, compute the prompt (and with it the encoder states) and store."""
    ids = admit(manager, request)
    finish_prompt(request).add_new_tokens([[1]] * request.beam_width)
    manager.store_context_blocks(request)
    return ids


ARTICLE = [100 + token for token in range(14)]


def test_all_beams_share_all_blocks():
    """Nothing is ever appended to encoder states, so even a block that is not full is common."""
    manager = make_cross_manager()
    ids = admit(manager, make_encoder_request(0, ARTICLE, beam_width=3))
    assert ids == [[0, 1, 2, 3]] * 3
    assert manager.num_free_blocks == 24 - 4
    assert [manager.block_manager.get_block_by_id(block_id, ENCODER).ref_count for block_id in ids[0]] == [3] * 4
    manager.remove_sequence(0)
    assert manager.num_free_blocks == 24


def test_equal_encoder_inputs_share_blocks():
    manager = make_cross_manager()
    run_prompt(manager, make_encoder_request(0, ARTICLE))
    second = make_encoder_request(1, ARTICLE, prompt=[3, 4, 5])
    assert admit(manager, second)[0][:3] == [0, 1, 2]
    assert manager.get_kv_cache_stats().reused_blocks == 3


def test_a_common_beginning_is_not_shared():
    """An encoder looks both ways: another ending makes all states other ones."""
    manager = make_cross_manager()
    run_prompt(manager, make_encoder_request(0, ARTICLE))
    longer = admit(manager, make_encoder_request(1, [*ARTICLE, 1, 2, 3, 4]))[0]
    other_end = admit(manager, make_encoder_request(2, [*ARTICLE[:-1], 1]))[0]
    assert not set(longer) & {0, 1, 2, 3}
    assert not set(other_end) & {0, 1, 2, 3}
    assert manager.get_kv_cache_stats().reused_blocks == 0


def test_the_recorded_behaviour_shares_a_common_beginning_and_stores_under_the_wrong_tokens():
    """Encoder states are found under the decoder's tokens of an earlier request."""
    manager = make_cross_manager(compatibility=True)
    run_prompt(manager, make_encoder_request(0, ARTICLE, prompt=[1, 2, 3, 4, 5, 6, 7, 8]))
    assert admit(manager, make_encoder_request(1, [1, 2, 3, 4, 9, 9], prompt=range(30)))[0][0] == 0


def test_decoder_tokens_name_no_encoder_states():
    manager = make_cross_manager()
    run_prompt(manager, make_encoder_request(0, ARTICLE, prompt=[1, 2, 3, 4, 5, 6, 7, 8]))
    assert admit(manager, make_encoder_request(1, [1, 2, 3, 4, 5, 6, 7, 8]))[0] == [4, 5]
    for tokens, _ in cached_blocks(manager, ENCODER):
        assert tokens == ARTICLE[: len(tokens)]


@pytest.mark.parametrize("other", [{"cache_salt": "b"}, {"lora_task_id": 2}])
def test_salts_and_adapters_separate_equal_inputs(other):
    manager = make_cross_manager()
    run_prompt(manager, make_encoder_request(0, ARTICLE, cache_salt="a", lora_task_id=1))
    options = {"cache_salt": "a", "lora_task_id": 1}
    admit(manager, make_encoder_request(1, ARTICLE, **(options | other)))
    assert manager.get_kv_cache_stats().reused_blocks == 0
    admit(manager, make_encoder_request(2, ARTICLE, **options))
    assert manager.get_kv_cache_stats().reused_blocks == 3


def test_a_hit_leaves_the_decoder_prompt_alone():
    """How much of the encoder input is cached says nothing about the prompt, even if that is shorter."""
    manager = make_cross_manager()
    run_prompt(manager, make_encoder_request(0, ARTICLE))
    request = make_encoder_request(1, ARTICLE, prompt=[3])
    admit(manager, request)
    assert (request.prepopulated_prompt_len, request.context_current_position) == (0, 0)
    assert request.reused_blocks_per_request == 3


def test_without_encoder_tokens_nothing_is_shared():
    """Encoder inputs that are no tokens, such as sound, come with their length only."""
    manager = make_cross_manager()
    for request_id in (0, 1):
        run_prompt(manager, make_encoder_request(request_id, None, encoder_output_len=14))
    assert manager.get_kv_cache_stats().reused_blocks == 0
    assert list(cached_blocks(manager, ENCODER)) == []
    manager.remove_sequence(0)
    manager.remove_sequence(1)
    check_free_counts(manager)


def test_states_are_shared_after_their_request_has_ended():
    manager = make_cross_manager()
    request = make_encoder_request(0, ARTICLE)
    run_prompt(manager, request)
    manager.remove_sequence(0, request)
    assert manager.num_free_blocks == 24
    admit(manager, make_encoder_request(1, ARTICLE))
    assert manager.get_kv_cache_stats().reused_blocks == 4


def test_a_request_that_was_never_computed_leaves_nothing_behind():
    manager = make_cross_manager()
    request = make_encoder_request(0, ARTICLE)
    admit(manager, request)
    manager.store_context_blocks(request)
    manager.remove_sequence(0, request)
    assert list(cached_blocks(manager, ENCODER)) == []


# -- budgets -------------------------------------------------------------------------------------------------


def test_budgets_count_encoder_blocks_once_and_nothing_while_generating():
    for length, beam_width in product(range(1, 14), (1, 3)):
        manager = make_cross_manager()
        request = make_encoder_request(0, ARTICLE[:length], beam_width=beam_width)
        needed = manager.get_needed_blocks_one_step(request, False, ENCODER)
        assert needed == manager.get_remaining_blocks_to_completion(request, ENCODER)
        admit(manager, request)
        assert needed == 24 - manager.num_free_blocks
        finish_prompt(request).add_new_tokens([[1]] * beam_width)
        assert manager.get_needed_blocks_one_step(request, True, ENCODER) == 0
        assert manager.get_remaining_blocks_to_completion(request, ENCODER) == 0


def test_prefix_summary_looks_at_the_encoder_input():
    manager = make_cross_manager()
    run_prompt(manager, make_encoder_request(0, ARTICLE, prompt=[1, 2, 3, 4, 5]))
    same = make_encoder_request(1, ARTICLE, prompt=[9])
    for tokens in (None, same.encoder_tokens):
        assert manager.analyze_prefix_reuse(same, tokens).reusable_blocks_all == 3
    other = make_encoder_request(2, [*ARTICLE[:12], 1, 1], prompt=[1, 2, 3, 4, 5])
    assert manager.analyze_prefix_reuse(other).reusable_blocks_all == 0
    assert manager.analyze_prefix_reuse(make_encoder_request(3, None)).reusable_blocks_all == 0


def test_too_long_an_input_is_refused_and_nothing_is_taken():
    manager = make_cross_manager(3)
    with pytest.raises(OutOfBlocksError):
        admit(manager, make_encoder_request(0, ARTICLE))
    assert manager.num_free_blocks == 3
    assert not manager.sequences


def test_an_input_length_beyond_the_encoder_tokens_is_refused():
    manager = make_cross_manager()
    with pytest.raises(InvalidInputError, match="14 such tokens, 19 were asked for"):
        admit(manager, make_encoder_request(0, ARTICLE), 20)
    assert manager.num_free_blocks == 24
    assert not manager.sequences
