"""The observer on a manager driven by hand, and the parts it is made of."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from trtkv.blocks.block_listener import RemovalReason
from trtkv.common import DataType
from trtkv.errors import LogicError
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import KVCacheRemovedData
from trtkv.keys.packed_key import MmKey, PackedKey, num_matching_tokens
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest, LlmRequestState, MultimodalInput
from trtkv.records.retention_config import KvCacheRetentionConfig, TokenRangeRetentionConfig
from trtkv.replay.causes.cause_counts import CauseCounts
from trtkv.replay.causes.cause_observer import CauseObserver
from trtkv.replay.causes.causes import CAUSES, Cause
from trtkv.replay.causes.key_history import UNKNOWN, KeyHistory
from trtkv.replay.causes.miss_causes import Segment
from trtkv.replay.causes.observed_manager import ObservedManager

P = [1, 2, 3, 4, 5, 6, 7, 8]


class Driver:
    """A manager with blocks of 4 tokens, one layer and an observer; each request generates one token."""

    def __init__(self, num_blocks: int = 100, event_manager: KVCacheEventManager | None = None) -> None:
        self.requests: dict[int, LlmRequest] = {}
        self.observer = CauseObserver(
            4, lambda request_id: self.requests[request_id].get_tokens().tobytes(), has_constraints=True
        )
        self.manager = KVCacheManager.from_arguments(
            [1], 1, 4, {64: (num_blocks, 0)}, 8, 1, [64], DataType.INT8,
            max_sequence_length=64, block_listener=self.observer, event_manager=event_manager, clock=lambda: 0,
        )  # fmt: skip
        self.observer.watch(self.manager)
        self.observed = ObservedManager(self.manager, self.observer, 1, lambda _: None)

    def serve(self, tokens: Sequence[int], **more) -> dict[str, int]:
        """Run one request; its tokens by cause."""
        request_id = len(self.requests)
        request = self.requests[request_id] = LlmRequest(request_id, tokens, 1, **more)
        self.observed.add_sequence_batch([(request_id, len(tokens), 1)], [request])
        request.set_context_current_position(len(tokens))
        request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
        self.observed.store_context_blocks(request)
        self.observed.add_token_rounds([request_id], 1)
        request.add_new_token(1000 + request_id)
        self.observed.remove_sequence(request_id, request)
        row = self.observer.counts.table([request_id], [len(tokens)])[0].tolist()
        return {cause.value: number for cause, number in zip(CAUSES, row, strict=True) if number}


def test_same_tokens_with_other_extra_ids():
    driver = Driver()
    assert driver.serve(P, input_token_extra_ids=[7] * 8) == {"cold": 8}
    assert driver.serve(P, input_token_extra_ids=[7] * 8) == {"hit": 7, "last_token": 1}
    assert driver.serve(P, input_token_extra_ids=[7] * 6 + [8, 8]) == {"hit": 6, "other_key": 2}
    assert driver.serve(P) == {"other_key": 8}


def image(word: int) -> MultimodalInput:
    return MultimodalInput(hashes=[[word] * 8], positions=[4], lengths=[3])


def test_same_placeholders_with_another_image():
    driver = Driver()
    assert driver.serve([*P, 9], multimodal_input=image(1)) == {"cold": 9}
    assert driver.serve([*P, 9], multimodal_input=image(2)) == {"hit": 4, "other_key": 5}
    assert driver.serve([*P, 9], multimodal_input=image(1)) == {"hit": 8, "last_token": 1}


def test_block_with_an_image_is_not_taken_in_part():
    driver = Driver()
    driver.serve([*P, 9], multimodal_input=image(1))
    assert driver.serve([*P[:7], 50, 51], multimodal_input=image(1)) == {"hit": 4, "partial_block": 3, "cold": 2}


def test_block_behind_an_evicted_one_counts_as_evicted():
    driver = Driver(num_blocks=6)
    weak = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, 4, 0)])
    driver.serve(P, kv_cache_retention_config=weak)
    driver.serve([11, 12, 13, 14, 15, 16, 17, 18])
    driver.serve([21, 22, 23, 24, 25, 26, 27, 28])  # its third block is the weak first one of request 0
    assert driver.observer.windows[0].removals == Counter({(RemovalReason.EVICTED, 0, 0): 1})
    assert driver.serve([*P, 9]) == {"evicted": 8, "cold": 1}


def test_truncated_prompt_counts_as_evicted_by_nobodys_need():
    driver = Driver()
    driver.serve([*P, *P])
    driver.manager.truncate_blocks([*P, *P], 3)
    assert driver.serve([*P, *P]) == {"hit": 4, "evicted": 12}
    losses = driver.observer.counts.losses
    assert {kind.reason for kind in losses.by_kind} == {RemovalReason.DROPPED}
    assert not losses.by_request


def test_what_happens_behind_the_back_of_the_observer_is_noticed():
    driver = Driver()
    other = driver.requests[0] = LlmRequest(0, [*P, 9], 1)
    with pytest.raises(LogicError, match="request 0 is admitted, but its observer was not told"):
        driver.manager.add_sequence_batch([(0, 9, 1)], [other])
    driver.observer.admit([other])
    driver.manager.add_sequence_batch([(0, 9, 1)], [other])
    driver.observer.admitted([other])
    other.set_context_current_position(9)
    other.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
    driver.manager.remove_sequence(0, other)  # the observer does not hear of what is stored
    with pytest.raises(LogicError, match="request 1 found block 0, which its observer has not seen coming"):
        driver.serve([*P, 9])


def test_listener_hears_of_every_removal_that_events_report():
    events = KVCacheEventManager(100_000)
    driver = Driver(num_blocks=24, event_manager=events)
    rng = random.Random(3)
    for _ in range(150):
        driver.serve([rng.randrange(2) for _ in range(rng.randint(1, 40))])
    driver.manager.flush_iteration_events()
    data = [event.data for event in driver.manager.get_latest_events(0)]
    removed = sum(len(entry.block_hashes) for entry in data if isinstance(entry, KVCacheRemovedData))
    assert removed == sum(driver.observer.windows[0].removals.values()) > 100


def test_causes_that_do_not_cover_a_prompt_are_noticed():
    counts = CauseCounts()
    with pytest.raises(LogicError, match="sum to 7 of 8"):
        counts.add(0, 8, 3, [Segment(Cause.COLD, 4)])


# -- the history of keys ----------------------------------------------------------------------------


def random_key(rng: random.Random, constrained: bool) -> PackedKey:
    length = rng.choice((4, 4, rng.randint(1, 4)))
    tokens = b"".join(rng.randrange(2).to_bytes(4, "little") for _ in range(length))
    if not constrained or rng.random() < 0.4:
        return tokens
    extra = rng.choice((None, bytes(8 * length), b"\1" + bytes(8 * length - 1)))
    mm = rng.choice(((), (MmKey(bytes(32), 0, None),)))
    return (tokens, extra, rng.choice((None, 1)), rng.choice((None, "a")), mm)


@pytest.mark.parametrize("constrained", [False, True])
def test_history_finds_what_a_list_of_paths_finds(constrained):
    rng = random.Random(5)
    owners: list[bytes] = []
    history = KeyHistory(4, lambda owner: owners[owner])
    children: dict[int, dict[PackedKey, int]] = {0: {}}
    for owner in range(300):
        node, path = 0, []
        owners.append(b"")
        for _ in range(rng.randint(1, 4)):
            key = random_key(rng, constrained)
            path.append(key if isinstance(key, bytes) else key[0])
            owners[owner] = b"".join(path)
            known = children[node].get(key, UNKNOWN)
            assert history.find(node, key) == known
            for more_than in (0, 2):
                expected = {
                    (matched, child)
                    for other, child in children[node].items()
                    if (matched := num_matching_tokens(key, other)) > more_than
                }
                found = history.find_siblings(node, key, more_than)
                assert {tuple(sibling) for sibling in found} == expected
                assert [sibling.num_tokens for sibling in found] == sorted((m for m, _ in expected), reverse=True)
            child = history.add(node, key, owner)
            assert known in (UNKNOWN, child)
            children[node][key] = child
            children.setdefault(child, {})
            node = child
            if len(path[-1]) < 16:
                break
    assert len(history) == len(children)


def test_unknown_parents_have_no_children():
    history = KeyHistory(4, lambda owner: b"")
    assert history.find(UNKNOWN, b"\0\0\0\0") == UNKNOWN
    assert history.find_siblings(UNKNOWN, b"\0\0\0\0") == []
