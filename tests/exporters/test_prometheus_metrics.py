"""Metrics that a scrape of the caller's registry shows."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.stress.random_program import RandomProgram
from trtkv.errors import MissingExtraError
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.exporters.prometheus_metrics import KvCacheMetrics

prometheus_client = pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")


def scrape(registry: Any) -> str:
    text: str = prometheus_client.generate_latest(registry).decode()
    return text


def test_counters_add_up_over_iterations_and_gauges_follow() -> None:
    registry = prometheus_client.CollectorRegistry()
    metrics = KvCacheMetrics(registry)
    program = RandomProgram(8, None)
    manager = program.manager
    for _ in range(40):
        for _ in range(5):
            program.step()
        stats = manager.get_iteration_stats()
        metrics.record_iteration(stats)
    metrics.record_totals(manager.get_kv_cache_stats())
    totals = manager.get_kv_cache_stats()

    def read(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)  # type: ignore[no-any-return]

    windows = [str(window) for window in program.windows]
    assert sum(read("trtkv_reused_blocks_total", window=w) or 0 for w in windows) == totals.reused_blocks > 0
    assert sum(read("trtkv_missed_blocks_total", window=w) or 0 for w in windows) == totals.missed_blocks > 0
    assert sum(read("trtkv_alloc_blocks_total", window=w) or 0 for w in windows) == totals.alloc_total_blocks
    free = manager.num_free_blocks_per_window_size
    for window in program.windows:
        assert read("trtkv_primary_free_blocks", window=str(window)) == free[window]
    assert read("trtkv_cache_hit_rate_ratio") == totals.cache_hit_rate
    assert read("trtkv_primary_utilization_ratio") == totals.used_num_blocks / totals.max_num_blocks


def test_two_managers_share_a_registry_by_labels_and_the_default_registry_stays_empty() -> None:
    registry = prometheus_client.CollectorRegistry()
    metrics = KvCacheMetrics(registry, {"model": "a"})
    metrics.record_admission(100, 30)
    metrics.record_admission(50, 0)
    assert registry.get_sample_value("trtkv_prompt_tokens_total", {"model": "a"}) == 150
    assert registry.get_sample_value("trtkv_prompt_cached_tokens_total", {"model": "a"}) == 30
    assert "trtkv_" not in scrape(prometheus_client.REGISTRY)
    KvCacheMetrics(prometheus_client.CollectorRegistry(), {"model": "a"})  # another registry, no clash


def test_lost_events_are_shown() -> None:
    registry = prometheus_client.CollectorRegistry()
    metrics = KvCacheMetrics(registry)
    events = KVCacheEventManager(2)
    for window in range(5):
        events.enqueue_created_event((1, 1), window)
    metrics.record_events(events)
    assert registry.get_sample_value("trtkv_dropped_events") == 3


def test_every_metric_has_the_prefix_and_names_its_unit() -> None:
    registry = prometheus_client.CollectorRegistry()
    metrics = KvCacheMetrics(registry)
    metrics.record_iteration(RandomProgram(1, None).manager.get_iteration_stats())
    units = ("block", "byte", "token", "event", "step", "0 to 1")
    for family in registry.collect():
        assert family.name.startswith("trtkv_")
        assert any(unit in family.documentation.lower() for unit in units), family.documentation
        assert family.documentation.endswith(".")


def test_an_iteration_without_admissions_leaves_the_hit_rate() -> None:
    registry = prometheus_client.CollectorRegistry()
    metrics = KvCacheMetrics(registry)
    metrics.record_iteration(RandomProgram(1, None).manager.get_iteration_stats())
    assert registry.get_sample_value("trtkv_iteration_hit_rate_ratio") == 0.0


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r'pip install "trtkv\[metrics\]"'):
        KvCacheMetrics(object())


def test_publisher_and_listener_are_shown() -> None:
    pytest.importorskip("zmq", reason="pyzmq is not installed; it carries the messages")
    from trtkv.exporters.zmq_event_publisher import ZmqEventPublisher

    registry = prometheus_client.CollectorRegistry()
    metrics = KvCacheMetrics(registry)
    with ZmqEventPublisher("tcp://127.0.0.1:*") as publisher:
        publisher.publish(b"abc")
        metrics.record_publisher(publisher)
        for field, value in publisher.counters._asdict().items():
            assert registry.get_sample_value(f"trtkv_publisher_{field.removeprefix('num_')}") == value
    metrics.record_listener(0.5, 3)
    assert registry.get_sample_value("trtkv_publisher_published_bytes") == 3
    assert registry.get_sample_value("trtkv_listener_lag_seconds") == 0.5
    assert registry.get_sample_value("trtkv_listener_missed_batches") == 3
