"""Small worked cases of fleets: a few prompts behind each router, and single decisions from a given state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from statistics import fmean
from typing import Any

from trtkv.fleet.replica_loads import ReplicaLoads
from trtkv.fleet.router import RoutedRequest
from trtkv.fleet.routers.aibrix import AibrixRouter
from trtkv.fleet.routers.dynamo_kv import DynamoKvRouter
from trtkv.fleet.routers.llm_d import LlmDRouter
from trtkv.fleet.routers.lmetric import LmetricRouter
from trtkv.fleet.routers.load_aware import LoadAwareRouter
from trtkv.fleet.routers.prefix_hash import PrefixHashRouter
from trtkv.fleet.routers.registry import make_router
from trtkv.fleet.routers.trtllm_kv import TrtllmKvRouter
from trtkv.fleet.simple_fleet import SimpleFleet, SimpleFleetResult, SimpleRequest
from trtkv.replay.lab.policy_case import block_path


def run_fleet_case(case: Mapping[str, Any]) -> Iterator[tuple[str, object, object]]:
    """(name, expected, found) of every router of a case."""
    for name, expected in case["routers"].items():
        router = make_router(name, expected.get("options", {}), case["seed"])
        requests = [_request(index, row) for index, row in enumerate(case["requests"])]
        fleet = SimpleFleet(router, case["replicas"], case["capacity_blocks"], case["live"], case["event_delay_rounds"])
        found = _report(fleet.run(requests), requests, case["replicas"])
        found["options"] = expected.get("options", {})
        yield name, expected, {field: found[field] for field in expected}


def _request(index: int, row: Mapping[str, Any]) -> SimpleRequest:
    names = row["path"]
    routed = RoutedRequest(index, block_path(names), names, row["tokens"], row.get("session"))
    return SimpleRequest(routed, row["output"])


def _report(result: SimpleFleetResult, requests: Sequence[SimpleRequest], num_replicas: int) -> dict[str, object]:
    asked = [request.routed.num_blocks for request in requests]
    per_replica = [[0, 0, 0] for _ in range(num_replicas)]
    for replica, found, blocks in zip(result.assigned, result.found, asked, strict=True):
        row = per_replica[replica]
        row[0], row[1], row[2] = row[0] + 1, row[1] + found, row[2] + blocks
    errors = (abs(p - f) for p, f in zip(result.predicted, result.found, strict=True))
    return {
        "assign": result.assigned,
        "found": result.found,
        "predicted": result.predicted,
        "fleet_hit": sum(result.found),
        "asked": sum(asked),
        "per_replica": per_replica,
        "computed_max_over_mean": _max_over_mean([row[2] - row[1] for row in per_replica]),
        "requests_max_over_mean": _max_over_mean([row[0] for row in per_replica]),
        "active_max_over_mean": round(fmean(result.active_imbalances), 4),
        "load_max_over_mean": round(fmean(result.load_imbalances), 4),
        "peak_queue": result.peak_queue,
        "duplicated": result.resident - result.distinct,
        "resident": result.resident,
        "lookup_error": sum(errors),
        "best_any": result.best_any,
        "rounds": result.rounds,
    }


def _max_over_mean(values: Sequence[int]) -> float:
    return round(max(values) * len(values) / sum(values), 4) if sum(values) else 0.0


def run_decision_case(case: Mapping[str, Any]) -> Iterator[tuple[str, object, object]]:
    """(name, expected, found) of every score of a decision case."""
    request, view = _state(case)
    replicas = range(len(case["replicas"]))
    trtllm_kv = make_router("trtllm-kv", {"max_batch_size": 8})
    routers: dict[str, Any] = {
        "dynamo-kv cost": make_router("dynamo-kv"),
        "lmetric cost": make_router("lmetric"),
        "trtllm-kv score, max_batch_size 8": trtllm_kv,
        "llm-d score, weights 2 1 1": make_router("llm-d"),
        "load-aware score, beta 1": make_router("load-aware"),
        "aibrix bound, factor 1": make_router("aibrix"),
        "prefix-hash bound, factor 1.25": make_router("prefix-hash"),
    }
    for name, expected in case["scores"].items():
        router = routers.get(name)
        found: object
        match router:
            case DynamoKvRouter() | LmetricRouter():
                found = [_round(router.cost(request, view, replica)) for replica in replicas]
            case TrtllmKvRouter():
                found = [_round(router.score(request, view, replica)) for replica in replicas]
            case LlmDRouter():
                found = [_round(score) for score in router.scores(view)]
            case LoadAwareRouter():
                found = [_round(score) for score in router.scores(request, view)]
            case AibrixRouter() | PrefixHashRouter():
                found = _round(router.bound(view))
            case _ if name == "trtllm-kv choice (counter 0)":
                found = trtllm_kv.choose(request, view)
            case _:
                raise ValueError(f"score {name!r} is not known")
        yield name, expected, found


def _round(value: float) -> float:
    return round(value, 6)


def _state(case: Mapping[str, Any]) -> tuple[RoutedRequest, ReplicaLoads]:
    """The request asked about and the fleet as the case describes it; no two prompts share a block."""
    serial = count()

    def prompt(blocks: int) -> RoutedRequest:
        index = next(serial)
        names = [f"{index}.{block}" for block in range(blocks)]
        return RoutedRequest(index, block_path(names), names, blocks)

    found = [row["found_blocks"] for row in case["replicas"]]
    view = ReplicaLoads([case["cache_blocks"]] * len(found), lambda replica, request: found[replica])
    for replica, row in enumerate(case["replicas"]):
        for blocks in row["running_blocks"]:
            running = prompt(blocks)
            view.routed(running, replica, 0)
            view.admitted(running, replica)
        for queued in row["queued"]:
            view.routed(prompt(queued["blocks"]), replica, queued["found"])
    request = prompt(case["prompt_blocks"])
    view.start_decision(request)
    return request, view
