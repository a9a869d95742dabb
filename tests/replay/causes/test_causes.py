"""Each cause on a trace small enough to say by hand what comes out."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest

from tests.replay.causes.explained import BLOCK, explained, rows, trace_of
from tests.replay.causes.match_oracle import OracleObserver
from tests.replay.trace_builders import random_requests, token_request
from trtkv.blocks.block_listener import RemovalReason
from trtkv.errors import InvalidInputError, LogicError
from trtkv.replay.bounds.bounds import bounds_of
from trtkv.replay.causes.cause_counts import LossKind
from trtkv.replay.causes.causes import CAUSES, Cause
from trtkv.replay.closed_loop.run import replay_trace
from trtkv.replay.config import ReplayConfig
from trtkv.traces.prefixes.infinite_matches import infinite_matches
from trtkv.traces.trace import KeyConstraints, RequestTrace, TokenIds, TraceRequest
from trtkv.traces.trace_reader import read_trace

P = [1, 2, 3, 4, 5, 6, 7, 8]
Q = [11, 12, 13, 14, 15, 16, 17, 18]
R = [21, 22, 23, 24, 25, 26, 27, 28]


def salted(index: int, tokens: list[int], salt: str | None = None, lora: int | None = None) -> TraceRequest:
    return TraceRequest(index, 0, len(tokens), 1, TokenIds(array("i", tokens)), KeyConstraints(salt, lora))


def test_new_tokens_are_cold_and_what_begins_alike_is_found():
    result = explained(trace_of(P, [*P[:5], 9, 9, 9, 9]))
    assert rows(result) == [{"cold": 8}, {"hit": 5, "cold": 4}]


def test_the_last_token_is_computed_though_it_is_cached():
    assert rows(explained(trace_of(P, P)))[1] == {"hit": 7, "last_token": 1}
    assert rows(explained(trace_of([*P, 9], [*P, 9])))[1] == {"hit": 8, "last_token": 1}


def test_without_partial_reuse_the_last_token_takes_its_block_with_it():
    assert rows(explained(trace_of(P, P), partial_reuse=False))[1] == {"hit": 4, "last_token": 4}


def test_last_token_that_differs_is_cold():
    assert rows(explained(trace_of(P, [*P[:7], 99])))[1] == {"hit": 7, "cold": 1}


def test_part_of_a_longer_block_is_not_found_without_partial_reuse():
    result = explained(trace_of(P, [*P[:6], 9, 9, 9]), partial_reuse=False)
    assert rows(result)[1] == {"hit": 4, "partial_block": 2, "cold": 3}


def test_shorter_block_is_not_found_without_partial_reuse():
    result = explained(trace_of(P[:6], [*P[:6], 9, 9, 9]), partial_reuse=False)
    assert rows(result)[1] == {"hit": 4, "partial_block": 2, "cold": 3}


def test_last_token_that_begins_a_block_longer_than_what_was_found_is_part_of_a_block():
    # The last token of request 2 is in one of the two blocks that begin like its own only.
    result = explained(trace_of(P, [*P[:5], 9, 9, 9], P[:6]), partial_reuse=False)
    assert rows(result)[2] == {"hit": 4, "partial_block": 2}


def test_the_last_token_alone_in_its_block_is_computed_though_a_block_begins_with_it():
    assert rows(explained(trace_of(P, P[:5]), partial_reuse=False))[1] == {"hit": 4, "last_token": 1}


def test_the_last_token_is_that_of_the_window_that_has_all_others():
    # Request 0 generates 16 15 ... 1. The full window finds all of that, the sliding one has let go of its beginning.
    text = [*P, *range(16, 0, -1)]
    requests = [token_request(0, P, 16), token_request(1, text[:15], 1)]
    assert rows(explained(requests, windows=(None, 8)))[1] == {"hit": 4, "outside_window": 10, "last_token": 1}


@pytest.mark.parametrize(
    ("copied", "expected"), [(False, {"partial_block": 2, "cold": 3}), (True, {"hit": 2, "cold": 3})]
)
def test_part_of_a_block_in_use_is_found_only_by_copying(copied, expected):
    # Request 1 is done after one token, then request 2 comes in while request 0 still holds its blocks.
    requests = [token_request(0, P, 20), token_request(1, Q, 1), token_request(2, [1, 2, 9, 9, 9], 1)]
    result = explained(requests, live=2, copy_on_partial_reuse=copied)
    assert rows(result)[2] == expected


def test_same_prompt_in_one_batch_is_computed_twice():
    result = explained(trace_of([*P, 9], [*P, 9]), live=2)
    assert rows(result) == [{"cold": 9}, {"not_stored": 9}]
    assert result.explanation.same_batch_tokens == 9


def test_started_block_of_a_live_request_is_not_stored_yet():
    requests = [token_request(0, P[:6], 30), token_request(1, Q, 1), token_request(2, [*P[:6], 9], 1)]
    result = explained(requests, live=2)
    assert rows(result)[2] == {"hit": 4, "not_stored": 2, "cold": 1}
    assert result.explanation.same_batch_tokens == 0


def test_evicted_block_with_all_its_details():
    # 6 blocks. Each of 0, 1, 2 fills two blocks and holds a third for its generated token. When 2 wants its third,
    # four blocks are cached and one is held: the block released first goes, the deeper one of request 0.
    result = explained(trace_of(P, Q, R, [*P, 77]), blocks=6)
    assert rows(result) == [{"cold": 8}, {"cold": 8}, {"cold": 8}, {"hit": 4, "evicted": 4, "cold": 1}]
    losses = result.explanation.losses
    assert losses.by_kind == {LossKind(RemovalReason.EVICTED, 0, True): 4}
    assert losses.by_request == {2: 4}
    assert {name: values["p50"] for name, values in losses.quantiles().items()} == {
        "idle_requests": 2,  # 1 and 2 were admitted since request 0 was done
        "idle_tokens": 6 * BLOCK,  # they took three blocks each
        "late_requests": 0,
        "late_tokens": 0,
    }


def test_block_lost_from_the_host_tier():
    # As above with one host block. Request 2 moves the deeper block of request 0 there. Request 3 takes two blocks for
    # its prompt, one of which is empty, then one: it moves the other block of 0 and one of 1, each over the one before.
    result = explained(trace_of(P, Q, R, [31, 32, 33, 34, 35, 36, 37, 38], [*P, 77]), blocks=6, host_tokens=BLOCK)
    assert rows(result)[4] == {"evicted": 8, "cold": 1}
    assert {kind.level for kind in result.explanation.losses.by_kind} == {1}
    assert result.explanation.losses.by_request == {3: 8}


def test_block_found_on_the_host_tier_is_a_hit():
    result = explained(trace_of(P, Q, R, [*P, 77]), blocks=6, host_tokens=BLOCK)
    assert rows(result)[3] == {"hit": 8, "cold": 1}
    activity = result.explanation.windows[0]
    assert (activity.offloaded, activity.onboarded) == (activity.offloaded, 1)
    assert activity.offloaded >= 1


def test_leaf_taken_over_and_continued_is_lost():
    # Without copying, request 1 continues the leaf 5 6 of request 0 as 5 9 9.
    result = explained(trace_of(P[:6], [*P[:5], 9, 9], [*P[:6], 7]), copy_on_partial_reuse=False)
    assert rows(result)[1:] == [{"hit": 5, "cold": 2}, {"hit": 5, "evicted": 1, "cold": 1}]
    assert result.explanation.losses.by_kind == {LossKind(RemovalReason.TAKEN_OVER, 0, False): 1}
    assert result.explanation.losses.by_request == {1: 1}


def test_block_evicted_while_its_request_waits():
    # 10 blocks. 0, 1 and 2 leave six blocks cached. 3 reserves nine, so that 4 has to wait, and takes six: the two of
    # request 0 go.
    requests = [
        *trace_of(P, Q, R),
        token_request(3, [41, 42, 43, 44], 20),
        token_request(4, [*P, 77], 1),
    ]
    waiting = explained(requests, blocks=10, live=2)
    assert rows(waiting)[4] == {"deferred": 8, "cold": 1}
    alone = explained(requests, blocks=10, live=1)
    assert rows(alone)[4] == {"evicted": 8, "cold": 1}, "one request at a time is no lack of room"


def test_block_evicted_by_the_call_in_which_the_wait_begins():
    # As above, but 3 takes seven blocks for its prompt: four empty ones, then both of request 0 and one of request 1.
    # 4 waits from this admission on.
    requests = [*trace_of(P, Q, R), token_request(3, list(range(41, 69)), 1), token_request(4, [*P, 77], 1)]
    result = explained(requests, blocks=10, live=2)
    assert rows(result)[4] == {"deferred": 8, "cold": 1}
    assert result.explanation.losses.by_kind == {LossKind(RemovalReason.EVICTED, 0, False): 8}


def test_of_two_lost_blocks_that_begin_alike_the_one_lost_last_counts():
    # 6 blocks. 1 takes the block of request 0 over and continues it. 2 and 3 need four blocks each, and 3 evicts it.
    others = list(range(50, 62)), list(range(70, 82))
    result = explained(trace_of([1, 2, 3, 4], [1, 2, 5, 6], *others, [1, 2, 7]), blocks=6)
    assert rows(result)[4] == {"evicted": 2, "cold": 1}
    assert result.explanation.losses.by_request == {3: 2}


def test_request_that_never_fits_is_refused():
    result = explained(trace_of(P, list(range(100, 160)), [*P, 9]), blocks=8)
    assert rows(result) == [{"cold": 8}, {"refused": 60}, {"hit": 8, "cold": 1}]
    assert result.explanation.prompt_tokens == 77
    assert result.counts.prompt_tokens == 17


def test_same_tokens_under_another_salt_or_lora_id():
    prompt = [*P, 9]
    requests = [
        token_request(0, prompt, 1),
        salted(1, prompt, "a"),
        salted(2, prompt, "a"),
        salted(3, prompt, None, 7),
        salted(4, [*P, 10, 11], "a", 7),
    ]
    assert rows(explained(requests)) == [
        {"cold": 9},
        {"other_key": 9},
        {"hit": 8, "last_token": 1},
        {"other_key": 9},
        {"other_key": 8, "cold": 2},
    ]


def test_bounds_tell_salts_apart():
    requests = [token_request(0, P, 1), salted(1, P, "a"), salted(2, P, "a")]
    assert infinite_matches(requests) == [0, 0, 8]
    for partial in (False, True):
        result = explained(requests, partial_reuse=partial)
        bounds = bounds_of(requests, result.config)
        assert result.counts.prepopulated_tokens == bounds.clairvoyant_hit_tokens == bounds.infinite_hit_tokens


def test_generated_text_that_slid_out_of_a_window_before_it_could_be_stored():
    # Request 0 generates 20 19 ... 1. Of its 29 tokens a window of 8 has let go of five blocks when it is done; the
    # first two were stored with the prompt.
    requests = [token_request(0, [*P, 9], 20), token_request(1, [*P, 9, *range(20, 13, -1), 500], 1)]
    assert rows(explained(requests, windows=(None, 8)))[1] == {"hit": 8, "outside_window": 8, "cold": 1}
    assert rows(explained(requests, windows=(8,)))[1] == {"hit": 8, "outside_window": 8, "cold": 1}
    assert rows(explained(requests))[1] == {"hit": 16, "cold": 1}


def test_tokens_that_each_window_has_but_not_at_one_length():
    # 12 blocks. Request 1 evicts the end of request 0 from the full window and its beginning from the sliding one, to
    # which the end is still of use.
    prompt = list(range(100, 132))
    result = explained(trace_of(prompt, list(range(200, 229)), [*prompt, 1]), windows=(None, 8), blocks=12)
    assert rows(result)[2] == {"outside_window": 16, "evicted": 16, "cold": 1}


@pytest.mark.parametrize("seed", range(60))
def test_sums_are_exact_and_hits_are_foreseen_under_all_settings(seed, monkeypatch):
    rng = random.Random(seed)
    requests = random_requests(
        rng, rng.randint(1, 60), max_output=rng.choice((0, 3, 12)), alphabet=rng.choice((2, 3)), max_length=40
    )
    settings = {
        "tokens_per_block": rng.choice((1, 2, 4, 8)),
        "capacity_tokens": rng.choice((96, 120, 200, None)),
        "live": rng.choice((1, 2, 4)),
        "partial_reuse": rng.random() < 0.7,
        "copy_on_partial_reuse": rng.random() < 0.5,
        "host_tokens": rng.choice((0, 0, 40)),
        "windows": rng.choice([(None,), (None,), (8,), (None, 8), (4, 16), (None, 8, 16)]),
        "compatibility": rng.random() < 0.3,
    }
    config = ReplayConfig(**settings)
    trace = RequestTrace("t", "tokens", None, requests)
    plain, _ = replay_trace(trace, config)
    monkeypatch.setattr("trtkv.replay.closed_loop.run.CauseObserver", OracleObserver)
    num_checked = OracleObserver.num_checked
    result, _ = replay_trace(trace, config, explain=True)
    assert OracleObserver.num_checked - num_checked == result.counts.requests
    report = result.to_json()
    explanation = report.pop("explanation")
    assert report == plain.to_json()
    assert result.explanation.table.sum(axis=1).tolist() == [request.input_length for request in requests]
    assert sum(entry["tokens"] for entry in explanation["causes"]) == explanation["prompt_tokens"]
    refused = result.explanation.table[:, CAUSES.index(Cause.REFUSED)]
    run = [request for request, tokens in zip(requests, refused, strict=True) if not tokens]
    never_seen = sum(request.input_length for request in run) - sum(infinite_matches(run))
    cold = result.explanation.tokens[Cause.COLD]
    assert cold == never_seen if config.live == 1 else cold >= never_seen


CASES = [
    (
        "mooncake/conversation_trace.jsonl",
        512,
        1200,
        {"tokens_per_block": 64, "capacity_tokens": 3_000_000, "live": 16},
    ),
    ("mooncake/synthetic_trace.jsonl", 512, 600, {"tokens_per_block": 64, "capacity_tokens": 3_000_000, "live": 16}),
    ("agentic/trace_0012.json", None, None, {"tokens_per_block": 64, "capacity_tokens": 70_000, "live": 4}),
    ("agentic", None, None, {"tokens_per_block": 48, "capacity_tokens": 66_000, "live": 2}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "block_size", "limit", "settings"), CASES)
@pytest.mark.parametrize("partial_reuse", [False, True])
def test_public_traces(shared_dir: Path, name, block_size, limit, settings, partial_reuse):
    trace = read_trace(shared_dir / "traces" / name, block_size=block_size, limit=limit)
    config = ReplayConfig(**settings, partial_reuse=partial_reuse)
    result, _ = replay_trace(trace, config, explain=True)
    found = result.explanation.tokens
    assert result.explanation.table.sum(axis=1).tolist() == [request.input_length for request in trace.requests]
    assert found[Cause.EVICTED] > 0 or name.startswith("agentic")  # a session that only grows loses nothing
    assert found[Cause.PARTIAL_BLOCK] == 0 or not partial_reuse
    result = result.with_bounds(bounds_of(trace.requests, config))
    assert found[Cause.HIT] <= result.bounds.clairvoyant_hit_tokens <= result.bounds.infinite_hit_tokens
    if not found[Cause.REFUSED]:
        never_seen = sum(r.input_length for r in trace.requests) - sum(infinite_matches(trace.requests))
        assert found[Cause.COLD] == never_seen


def test_bounds_of_another_run_are_refused():
    result = explained(trace_of(P, P))
    with pytest.raises(LogicError, match="bounds of 3 requests for a run of 2"):
        result.with_bounds(bounds_of(trace_of(P, P, P), result.config))
    with pytest.raises(LogicError, match="7 tokens were found"):
        result.with_bounds(bounds_of(trace_of(P, Q), result.config))


def test_no_bounds_without_a_full_window():
    assert bounds_of(trace_of(P, P), ReplayConfig(tokens_per_block=4, windows=(8,))) is None
    assert bounds_of(trace_of(P, P), ReplayConfig(tokens_per_block=4, windows=(8, None))) is not None


def test_every_cause_has_a_label_and_a_definition():
    assert len({cause.label for cause in CAUSES}) == len(CAUSES)
    assert all(cause.definition for cause in CAUSES)


def test_constraints_of_token_rows_are_read(tmp_path):
    row = '{"input_toks": 2, "output_toks": 1, "arrival_time_ns": 0, "input_tok_ids": [1, 2]%s}\n'
    path = tmp_path / "t.jsonl"
    path.write_text(row % "" + row % ', "cache_salt": "a"' + row % ', "lora_task_id": 3, "cache_salt": null')
    constraints = [request.constraints for request in read_trace(path).requests]
    assert constraints == [None, KeyConstraints("a", None), KeyConstraints(None, 3)]
    for wrong, told in (('"cache_salt": 3', "cache_salt is 3"), ('"lora_task_id": "x"', "lora_task_id is 'x'")):
        path.write_text(row % f", {wrong}")
        with pytest.raises(InvalidInputError, match=told):
            read_trace(path)
