"""Sessions and outputs: worked traces, the rules one by one, and what holds for random traces."""

from __future__ import annotations

import json
import random
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from tests.replay.trace_builders import token_request
from trtkv.errors import ConfigurationError
from trtkv.replay.bounds.bounds import bounds_of
from trtkv.replay.closed_loop.run import replay_trace
from trtkv.replay.config import ReplayConfig
from trtkv.traces.outputs import output_tokens
from trtkv.traces.sessions.apply_protocol import apply_protocol
from trtkv.traces.sessions.block_beginnings import Beginning, BlockBeginnings
from trtkv.traces.sessions.protocol import OLD_PROTOCOL, Outputs, SessionProtocol, Sessions
from trtkv.traces.trace import HashIdTokens, KnownOutput, RequestTrace, TokenIds
from trtkv.traces.trace_reader import read_trace

TINY = Path(__file__).resolve().parents[4] / "shared" / "reference" / "tiny_traces"


def read_tiny(entry, run):
    is_text = entry["format"] == "sharegpt"
    return read_trace(
        TINY / entry["file"],
        format_name=entry["format"],
        block_size=entry["block_size"],
        tokenizer=TINY / "words.json" if is_text else None,
        chat_template="chatml" if is_text else None,
        sessions=run["sessions"],
        outputs=run["outputs"],
    )


def test_worked_traces_of_the_reference_give_their_integers():
    if not TINY.exists():
        pytest.skip("the worked traces are not beside this checkout")
    num_runs = 0
    for entry in json.loads((TINY / "index.json").read_text()):
        for run in entry["runs"]:
            trace = read_tiny(entry, run)
            config = ReplayConfig(
                tokens_per_block=run["tokens_per_block"],
                capacity_tokens=None if run["capacity_tokens"] == "inf" else run["capacity_tokens"],
                live=run["live"],
                partial_reuse=run["partial_reuse"],
                compatibility=True,
            )
            result, _ = replay_trace(trace, config)
            found = {**result.to_json(), **result.requests}
            assert {key: found[key] for key in run if key in found} == {key: run[key] for key in run if key in found}, (
                entry["file"],
                run["why"],
            )
            if "bounds" in run:
                bounds = bounds_of(trace.requests, config)
                assert bounds.clairvoyant_hit_tokens == run["bounds"]["clairvoyant"]
                assert bounds.infinite_hit_tokens == run["bounds"]["infinite"]
            num_runs += 1
    assert num_runs >= 30


def trace_of(*requests, block_size=None):
    return RequestTrace("t", "tokens", block_size, list(requests))


def named(index, ids, length, output_length=0, **fields):
    source = HashIdTokens(array("q", ids), 4)
    return replace(token_request(index, [0] * length, output_length), source=source, **fields)


def test_prompt_and_output_but_its_last_token_are_found_by_the_next_turn():
    first = replace(
        token_request(0, range(100), 100), output=KnownOutput(TokenIds(array("i", range(1000, 1100))), 100), session="s"
    )
    second = replace(
        token_request(1, [*range(100), *range(1000, 1100), *range(50)], 5), predecessors=(0,), session="s", turn=1
    )
    trace = apply_protocol(trace_of(first, second), SessionProtocol())
    for live in (1, 2):
        result, _ = replay_trace(trace, ReplayConfig(tokens_per_block=32, live=live))
        assert result.counts.prepopulated_tokens == 199
    old = apply_protocol(trace_of(first, second), OLD_PROTOCOL)
    assert replay_trace(old, ReplayConfig(tokens_per_block=32))[0].counts.prepopulated_tokens == 100
    assert replay_trace(old, ReplayConfig(tokens_per_block=32, live=2))[0].counts.prepopulated_tokens == 0


def test_a_started_block_begins_the_block_of_the_turn_that_goes_on_from_it():
    first = named(0, [1, 2], 6, 5, session="s")  # the second block holds two tokens
    second = named(1, [1, 3, 4, 5], 13, session="s", predecessors=(0,))
    trace = apply_protocol(trace_of(first, second, block_size=4), SessionProtocol())
    prompt, following = (request.tokens().tolist() for request in trace.requests)
    assert following[:6] == prompt
    assert following[6:8] == [14, 15]  # its own
    assert output_tokens(trace.requests[0]).tolist() == following[6:11]
    facts = trace.sessions
    assert (facts.outputs_known, facts.output_tokens_known, facts.from_continuation) == (1, 5, 5)


def test_an_answer_that_was_cut_is_made_up():
    first = named(0, [1, 2], 6, 5, session="s")
    second = named(1, [1, 3, 4], 10, session="s", predecessors=(0,))
    trace = apply_protocol(trace_of(first, second, block_size=4), SessionProtocol())
    assert trace.sessions.outputs_known == 0
    assert trace.requests[1].tokens().tolist()[:6] != trace.requests[0].tokens().tolist()


def test_the_first_fact_about_a_name_counts_and_none_makes_a_circle():
    beginnings = BlockBeginnings(4)
    assert beginnings.add(3, Beginning(2, 2))
    assert beginnings.add(3, Beginning(2, 2))
    assert not beginnings.add(3, Beginning(2, 1))
    assert not beginnings.add(2, Beginning(3, 1))
    assert beginnings.add(5, Beginning(5, 1))
    assert beginnings.add(2, Beginning(1, 1))
    assert beginnings.apply(HashIdTokens(array("q", [3]), 4)).expand(4).tolist() == [4, 9, 14, 15]


def test_names_suggest_sessions_only_where_the_last_block_is_not_shared():
    rows = [
        named(0, [1, 2, 3], 12, 2),
        named(1, [1, 2, 3, 4], 15, 1, timestamp=1.0),  # goes on from 0
        named(2, [1, 2, 3, 5], 15, 1, timestamp=2.0),  # would go on from 0, but 1 does
        named(3, [1, 9], 8, 1, timestamp=3.0),
        named(4, [1, 9, 6], 9, 1, timestamp=3.0),  # not later than 3
        named(5, [1, 9, 7], 9, 1, timestamp=4.0),
    ]
    trace = apply_protocol(trace_of(*rows, block_size=4), SessionProtocol(Sessions.INFER))
    assert [row.predecessors for row in trace.requests] == [(), (0,), (), (), (), (3,)]
    assert trace.sessions.inferred_predecessors == 2
    assert "2 predecessors were inferred from prompts (--sessions infer)." in trace.notes()
    assert trace.requests[1].session == trace.requests[0].session is not None


def test_tokens_suggest_a_session_where_prompt_and_known_output_come_back():
    output = KnownOutput(TokenIds(array("i", [7, 8])), 2)
    first = replace(token_request(0, range(20), 3), output=output)
    second = token_request(1, [*range(20), 7, 8, 9, 9])
    short = token_request(2, [*range(20), 7])
    trace = apply_protocol(trace_of(first, second, short), SessionProtocol(Sessions.INFER))
    assert [row.predecessors for row in trace.requests] == [(), (0,), ()]


def test_wrong_values_are_refused():
    with pytest.raises(ConfigurationError, match="sessions"):
        SessionProtocol("guess")


def random_trace(rng):
    rows = []
    for index in range(rng.randint(2, 12)):
        before = rng.choice(rows) if rows and rng.random() < 0.7 else None
        tokens = [] if before is None else [*before.tokens(), *(before.output.tokens() if before.output else ())]
        prompt = [*(int(token) for token in tokens), *(rng.randrange(3) for _ in range(rng.randint(1, 8)))]
        length = rng.randint(0, 8)
        known = array("i", [rng.randrange(2) for _ in range(rng.randint(0, length))])
        output = KnownOutput(TokenIds(known), len(known)) if known else None
        predecessors = (before.index,) if before is not None and rng.random() < 0.7 else ()
        rows.append(replace(token_request(index, prompt, length), output=output, predecessors=predecessors))
    return trace_of(*rows)


@pytest.mark.parametrize("first_seed", range(0, 400, 100))
def test_no_bound_is_beaten_no_predecessor_runs_beside_its_successor_and_causes_sum(first_seed):
    for seed in range(first_seed, first_seed + 100):
        rng = random.Random(seed)
        trace = random_trace(rng)
        per_block = rng.choice((1, 2, 4))
        config = ReplayConfig(
            tokens_per_block=per_block,
            capacity_tokens=rng.choice((None, 12 * per_block, 40 * per_block)),
            live=rng.randint(1, 4),
            partial_reuse=rng.random() < 0.5,
        )
        result, _ = replay_trace(trace, config, explain=True)
        bounds = bounds_of(trace.requests, config)
        found = result.counts.prepopulated_tokens
        assert found <= bounds.clairvoyant_hit_tokens <= bounds.infinite_hit_tokens
        order = [outcome.request_id for outcome in result.counts.outcomes]
        assert sorted(order) == list(range(len(trace.requests)))
        for request in trace.requests:
            assert all(order.index(index) < order.index(request.index) for index in request.predecessors)
        assert sum(result.explanation.tokens.values()) == sum(request.input_length for request in trace.requests)


def test_outputs_by_the_trace_leave_prompts_as_they_are():
    request = replace(token_request(0, [1, 2], 3), output=KnownOutput(TokenIds(array("i", [9])), 1))
    trace = apply_protocol(trace_of(request), SessionProtocol(outputs=Outputs.SYNTHETIC))
    assert trace.requests[0].output is None
    assert trace.requests[0].tokens().tolist() == [1, 2]
