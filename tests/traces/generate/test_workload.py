from __future__ import annotations

import json
from random import Random

import pytest

from tests.replay.helpers import DATA
from trtkv.errors import InvalidInputError
from trtkv.traces.generate.workload import (
    MAX_PROMPT_TOKENS,
    WORKLOAD_KINDS,
    HashIds,
    Piece,
    WorkloadRow,
    generate_workload,
)
from trtkv.traces.trace_reader import read_trace

KINDS = sorted(WORKLOAD_KINDS)


def rows_of(kind: str, num_requests: int = 400, seed: int = 3, block_size: int = 512) -> list[WorkloadRow]:
    return list(generate_workload(kind, num_requests, Random(seed), block_size))


def share_of_reused_blocks(rows: list[WorkloadRow]) -> float:
    seen: set[int] = set()
    hits = total = 0
    for row in rows:
        total += len(row.hash_ids)
        hits += sum(hash_id in seen for hash_id in row.hash_ids)
        seen.update(row.hash_ids)
    return hits / total


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    def test_same_seed_same_rows_other_seed_other_rows(self, kind):
        assert rows_of(kind) == rows_of(kind)
        assert rows_of(kind) != rows_of(kind, seed=4)

    def test_the_first_rows_do_not_depend_on_how_many_are_asked_for(self, kind):
        assert rows_of(kind, 50) == rows_of(kind, 200)[:50]

    @pytest.mark.parametrize("block_size", [16, 512])
    def test_as_many_ids_as_blocks(self, kind, block_size):
        for row in rows_of(kind, 200, block_size=block_size):
            assert len(row.hash_ids) == -(-row.input_length // block_size)
            assert row.output_length >= 1
            assert 1 <= row.input_length <= MAX_PROMPT_TOKENS

    def test_sorted_by_time_from_the_start(self, kind):
        times = [row.timestamp for row in rows_of(kind)]
        assert times == sorted(times)
        assert times[0] == 0
        assert all(type(time) is int for time in times)

    def test_ids_form_a_forest_and_count_up_from_0(self, kind):
        parents: dict[int, int] = {}
        for row in rows_of(kind, block_size=64):
            for parent, child in zip([-1, *row.hash_ids], row.hash_ids, strict=False):
                assert parents.setdefault(child, parent) == parent
        assert sorted(parents) == list(range(len(parents)))
        assert list(parents) == sorted(parents), "new ids appear in ascending order"

    def test_an_id_fills_its_block_to_the_same_length_everywhere(self, kind):
        fill: dict[int, int] = {}
        for row in rows_of(kind, block_size=64):
            for depth, hash_id in enumerate(row.hash_ids):
                length = min(64, row.input_length - 64 * depth)
                assert fill.setdefault(hash_id, length) == length

    def test_much_is_shared_and_much_is_new(self, kind):
        assert 0.2 < share_of_reused_blocks(rows_of(kind, 2000)) < 0.97

    def test_written_rows_read_back(self, kind, tmp_path):
        rows = rows_of(kind, 20)
        path = tmp_path / "trace.jsonl"
        path.write_text("".join(row.to_json() + "\n" for row in rows))
        trace = read_trace(path, block_size=512)
        assert [list(request.source.ids) for request in trace.requests] == [row.hash_ids for row in rows]
        assert [request.input_length for request in trace.requests] == [row.input_length for row in rows]


def test_a_conversation_continues_its_own_prompt():
    """Somewhere a prompt starts with all full blocks of an earlier, shorter prompt, beyond any system prompt."""
    rows = rows_of("chat", 300, block_size=16)
    full = [(row.input_length, tuple(row.hash_ids[: row.input_length // 16])) for row in rows]
    continued = sum(
        any(length > earlier_length and ids[: len(earlier)] == earlier for length, ids in full[position + 1 :])
        for position, (earlier_length, earlier) in enumerate(full)
        if len(earlier) > 100
    )
    assert continued > 40


def test_some_prompts_are_sent_twice():
    for kind in ("chat", "agent"):
        prompts = [tuple(row.hash_ids) for row in rows_of(kind, 1000)]
        assert len(set(prompts)) < len(prompts)


def test_ids_tell_content_and_prefix_apart():
    a, b, c = Piece(0, 6), Piece(1, 6), Piece(2, 4)
    ids = HashIds(4)
    assert ids.of_prompt([a, b]) == [0, 1, 2]
    assert ids.of_prompt([a, c]) == [0, 3, 4]
    assert ids.of_prompt([b, a]) == [5, 6, 7]
    assert ids.of_prompt([a]) == [0, 8], "a block filled in part is not the full one"
    assert ids.of_prompt([a, b]) == [0, 1, 2]
    assert ids.of_prompt([]) == []


def test_the_checked_in_traces_are_what_the_generator_makes():
    for kind, count, block_size in (("chat", 120, 64), ("agent", 60, 512), ("rag", 100, 64)):
        made = "".join(row.to_json() + "\n" for row in generate_workload(kind, count, Random(7), block_size))
        assert (DATA / f"{kind}_{count}.jsonl").read_text() == made


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("poem", 1, Random(0)), "unknown workload kind 'poem'; known are chat, agent, rag"),
        (("chat", -1, Random(0)), "number of requests is -1"),
        (("chat", 1, Random(0), 0), "block size is 0"),
    ],
)
def test_arguments_out_of_range_are_refused_at_once(arguments, told):
    with pytest.raises(InvalidInputError, match=told):
        generate_workload(*arguments)


def test_rows_are_mooncake_json():
    row = json.loads(rows_of("rag", 1)[0].to_json())
    assert list(row) == ["timestamp", "input_length", "output_length", "hash_ids", "session_id"]
