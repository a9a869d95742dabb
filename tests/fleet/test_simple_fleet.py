"""Routers over simple caches: worked cases, and what holds for all of them."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from trtkv.errors import ConfigurationError
from trtkv.eviction.orders.lru import LruOrder
from trtkv.fleet.fleet_case import run_decision_case, run_fleet_case
from trtkv.fleet.replica_loads import ReplicaLoads
from trtkv.fleet.router import RoutedRequest, Router
from trtkv.fleet.routers.registry import ROUTERS, make_router
from trtkv.fleet.simple_fleet import SimpleFleet, SimpleFleetResult, SimpleRequest
from trtkv.replay.lab.policy_case import block_path
from trtkv.replay.lab.prefix_cache import PrefixCache

CASES = Path(__file__).resolve().parents[3] / "shared" / "reference" / "cases"

WARM_AND_BUSY = {
    "name": "warm and busy against cold and idle",
    "prompt_blocks": 8,
    "replicas": [
        {"queued": [], "running_blocks": [8, 6], "found_blocks": 6},
        {"queued": [], "running_blocks": [], "found_blocks": 0},
    ],
    "cache_blocks": 100,
    "scores": {
        "dynamo-kv cost": [24.0, 16.0],
        "lmetric cost": [46, 72],
        "trtllm-kv score, max_batch_size 8": [0.5, 0.0],
        "trtllm-kv choice (counter 0)": 0,
        "llm-d score, weights 2 1 1": [3.86, 2.0],
        "load-aware score, beta 1": [-0.25, 1.0],
        "aibrix bound, factor 1": 2.0,
        "prefix-hash bound, factor 1.25": 1.875,
    },
}


def test_five_routers_give_two_answers_in_one_state() -> None:
    for name, expected, found in run_decision_case(WARM_AND_BUSY):
        assert found == expected, name


@pytest.mark.parametrize(("file", "run"), [("fleet", run_fleet_case), ("decisions", run_decision_case)])
def test_cases_of_the_reference_are_equal(file, run) -> None:
    path = CASES / f"{file}_shown.json"
    if not path.exists():
        pytest.skip("the reference cases are not beside this checkout")
    outcomes = [outcome for case in json.loads(path.read_text()) for outcome in run(case)]
    assert len(outcomes) >= 30
    assert [outcome for outcome in outcomes if outcome[1] != outcome[2]] == []


def random_requests(seed: int, count: int = 60) -> list[SimpleRequest]:
    random = Random(seed)
    stems = {user: [f"{user}{i}" for i in range(random.randint(1, 5))] for user in "abcdefg"}
    requests = []
    for index in range(count):
        user = random.choice("abcdefg")
        names = ["S", *stems[user][: random.randint(1, len(stems[user]))]]
        routed = RoutedRequest(index, block_path(names), names, 4 * len(names), random.choice([user, None]))
        requests.append(SimpleRequest(routed, random.randint(0, 5)))
    return requests


def run(name: str, requests: list[SimpleRequest], *, replicas: int, live: int = 2, **options: int) -> SimpleFleetResult:
    router = make_router(name, seed=options.pop("seed", 0))
    return SimpleFleet(router, replicas, 30, live, options.pop("event_delay", 0)).run(requests)


@pytest.mark.parametrize("name", ROUTERS)
def test_one_replica_is_one_cache_whatever_the_router(name: str) -> None:
    requests = random_requests(1)
    result = run(name, requests, replicas=1, live=1)
    cache = PrefixCache(30, LruOrder())
    assert result.found == [cache.serve(request.routed.path).found for request in requests]
    assert set(result.assigned) == {0}


@pytest.mark.parametrize("name", ROUTERS)
def test_equal_seeds_give_equal_runs_and_all_requests_are_run(name: str) -> None:
    requests = random_requests(2)
    first, second = (run(name, requests, replicas=3, seed=7) for _ in range(2))
    assert first == second
    assert len(first.assigned) == len(requests)
    assert sum(first.found) <= sum(request.routed.num_blocks for request in requests)


@pytest.mark.parametrize("name", [name for name, make in ROUTERS.items() if getattr(make, "looks_into_caches", False)])
def test_predictions_are_right_when_requests_run_alone_and_events_are_prompt(name: str) -> None:
    requests = random_requests(3)
    router = make_router(name)
    result = SimpleFleet(router, 3, 30, 1).run(requests[:1])
    assert result.predicted == result.found
    late = run(name, requests, replicas=3, event_delay=4)
    prompt = run(name, requests, replicas=3)
    assert sum(late.predicted) <= sum(prompt.predicted)


@pytest.mark.parametrize("name", ["random", "power-of-two", "dynamo-kv", "llm-d"])
def test_another_seed_changes_a_router_that_draws(name: str) -> None:
    requests = random_requests(4)
    assert len({tuple(run(name, requests, replicas=4, seed=seed).assigned) for seed in range(6)}) > 1


@pytest.mark.parametrize("name", ["round-robin", "least-requests", "session", "first-blocks", "trtllm-kv", "greedy"])
def test_another_seed_changes_nothing_for_the_others(name: str) -> None:
    requests = random_requests(4)
    assert len({tuple(run(name, requests, replicas=4, seed=seed).assigned) for seed in range(4)}) == 1


def test_sessions_stay_on_one_replica() -> None:
    requests = random_requests(5)
    result = run("session", requests, replicas=4)
    owners: dict[object, set[int]] = {}
    for request, replica in zip(requests, result.assigned, strict=True):
        owners.setdefault(request.routed.affinity_key, set()).add(replica)
    assert all(len(replicas) == 1 for replicas in owners.values())


def test_a_bounded_session_leaves_a_crowded_owner() -> None:
    requests = [SimpleRequest(RoutedRequest(i, block_path(["x"]), ["x"], 4, "one session"), output=9) for i in range(8)]
    assert set(run("session", requests, replicas=4).assigned) == {run("session", requests, replicas=4).assigned[0]}
    assert len(set(run("session-bounded", requests, replicas=4).assigned)) > 1


def test_loads_return_to_nothing() -> None:
    view = ReplicaLoads([10, 10], lambda replica, request: 1)
    requests = [request.routed for request in random_requests(6, 10)]
    for request in requests:
        view.start_decision(request)
        assert view.found(1) == 1
        view.routed(request, 1, 1)
    assert (view.load(1), view.num_queued(1)) == (10, 10)
    for request in requests:
        view.admitted(request, 1)
    assert (view.prefill_backlog(1), view.num_running(1)) == (0, 10)
    for request in requests:
        view.finished(request, 1)
    assert (view.load(1), view.tokens(1), view.active_blocks(1), view.running_blocks(1)) == (0, 0, 0, 0)


class FirstReplica(Router):
    """A router of one's own."""

    def choose(self, request, view):
        return 0


def test_a_router_of_ones_own_is_named_by_module_and_class() -> None:
    assert isinstance(make_router(f"{__name__}:FirstReplica"), Router)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("nearest", {}, "router 'nearest' is not known"),
        ("round-robin", {"blocks": 2}, "router round-robin has no option 'blocks'; it has none"),
        ("prefix-hash", {"tokens": 2}, "it has blocks, factor"),
        ("first-blocks", {"blocks": 0}, "blocks"),
        ("session-bounded", {"factor": 0.5}, "factor is 0.5"),
        ("trtllm-kv", {"max-batch-size": 0}, "max-batch-size"),
        ("dynamo-kv", {"temperature": -1}, "temperature is -1"),
        ("no_such_module:Class", {}, "cannot be loaded"),
        ("json:loads", {}, "is not a class derived from Router"),
    ],
)
def test_wrong_names_and_options_are_refused(name: str, options: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        make_router(name, options)
