"""KvCacheMetrics: the manager's statistics as Prometheus metrics, in a registry that the caller owns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtkv.common import RECURRENT_STATES, WindowSize
from trtkv.errors import MissingExtraError
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.exporters.zmq_event_publisher import ZmqEventPublisher
from trtkv.records.stats import KvCacheIterationStats, KvCacheStats

_ITERATION_COUNTERS = {
    "iter_alloc_total_blocks": ("alloc_blocks", "Blocks taken from the free queues"),
    "iter_alloc_new_blocks": ("alloc_new_blocks", "Blocks taken that had never held tokens"),
    "iter_gen_alloc_blocks": ("gen_alloc_steps", "Decode steps of a window at which a block was needed"),
    "iter_reused_blocks": ("reused_blocks", "Prompt blocks found in the cache"),
    "iter_full_reused_blocks": ("full_reused_blocks", "Prompt blocks found whole in the cache"),
    "iter_partial_reused_blocks": ("partial_reused_blocks", "Prompt blocks of which only the first tokens were found"),
    "iter_missed_blocks": ("missed_blocks", "Prompt blocks not found in the cache"),
    "iter_onboard_blocks": ("onboard_blocks", "Blocks copied from the host to the device"),
    "iter_onboard_bytes": ("onboard_bytes", "Bytes copied from the host to the device"),
    "iter_offload_blocks": ("offload_blocks", "Blocks copied from the device to the host"),
    "iter_offload_bytes": ("offload_bytes", "Bytes copied from the device to the host"),
    "iter_intra_device_copy_blocks": ("intra_device_copy_blocks", "Blocks copied on the device"),
    "iter_intra_device_copy_bytes": ("intra_device_copy_bytes", "Bytes copied on the device"),
}
"""Field of KvCacheIterationStats -> (metric, help)."""

_GAUGES = {
    "primary_max_num_blocks": ("primary_max_blocks", "Blocks of the primary (device) level"),
    "primary_free_num_blocks": ("primary_free_blocks", "Free primary blocks, cached ones included"),
    "primary_used_num_blocks": ("primary_used_blocks", "Primary blocks held by sequences or pins"),
    "secondary_max_num_blocks": ("secondary_max_blocks", "Blocks of the secondary (host) level"),
    "secondary_free_num_blocks": ("secondary_free_blocks", "Secondary blocks that hold nothing or can be recycled"),
    "secondary_used_num_blocks": ("secondary_used_blocks", "Secondary blocks held by sequences or pins"),
}


_PUBLISHER = {
    "num_published": "Event batches published so far",
    "num_published_bytes": "Bytes of event batches published so far",
    "num_subscriptions": "Subscriptions to event batches now",
    "num_overflows": "Times so far that a subscriber was found too far behind, and lost event batches until it read",
    "num_kept": "Event batches kept for replays",
    "num_kept_bytes": "Bytes of event batches kept for replays",
    "num_replays": "Replays of event batches asked for so far",
    "num_replayed": "Event batches sent again so far",
    "num_replays_active": "Replays of event batches under way",
    "num_replays_aborted": "Replays of event batches given up: the client did not read, was gone or asked anew",
    "num_replays_refused": "Requests for replays of event batches refused so far",
}
"""Field of PublisherCounters -> help."""


class KvCacheMetrics:
    """Feeds ``trtkv_*`` metrics from statistics that the caller reads anyway (extra ``metrics``).

    ``registry``: a prometheus_client.CollectorRegistry; there is no default one. ``labels``: fixed labels of this
    manager, such as its model or rank, on every metric. Nothing here asks the manager, because reading its iteration
    statistics resets them: call ``record_iteration`` with what ``get_iteration_stats()`` returned, once per iteration.
    """

    def __init__(self, registry: Any, labels: Mapping[str, str] | None = None) -> None:
        client = _import_prometheus_client()
        self._labels = dict(labels or {})
        names = list(self._labels)

        def counter(name: str, text: str, *more: str) -> Any:
            return client.Counter(f"trtkv_{name}", text, [*names, *more], registry=registry)

        def gauge(name: str, text: str, *more: str) -> Any:
            return client.Gauge(f"trtkv_{name}", text, [*names, *more], registry=registry)

        self._counters = {
            field: counter(name, f"{text}, by window.", "window") for field, (name, text) in _ITERATION_COUNTERS.items()
        }
        self._gauges = {field: gauge(name, f"{text}, by window.", "window") for field, (name, text) in _GAUGES.items()}
        self._hit_rate = gauge(
            "cache_hit_rate_ratio", "Prompt blocks found / (found + not found) since the start, 0 to 1."
        )
        self._utilization = gauge("primary_utilization_ratio", "Primary blocks held / all primary blocks, 0 to 1.")
        self._iteration_hit_rate = gauge(
            "iteration_hit_rate_ratio", "Prompt blocks found / (found + not found) of the last iteration, 0 to 1."
        )
        self._cached_tokens = counter(
            "prompt_cached_tokens", "Prompt tokens of admitted requests taken from the cache."
        )
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of admitted requests.")
        self._publisher_gauges = {
            field: gauge(f"publisher_{field.removeprefix('num_')}", f"{text}.") for field, text in _PUBLISHER.items()
        }
        self._listener_lag = gauge("listener_lag_seconds", "Time from packing to reading of the newest event batch.")
        self._listener_missed = gauge("listener_missed_batches", "Event batches that never reached the listener.")
        self._dropped_events = gauge("dropped_events", "Events lost so far because they were not read in time.")

    def _of(self, metric: Any, **more: str) -> Any:
        labels = self._labels | more
        return metric.labels(**labels) if labels else metric

    def record_iteration(self, stats: Mapping[WindowSize, KvCacheIterationStats]) -> None:
        """Add the counts of one iteration and set the gauges of every window."""
        reused = missed = 0
        for window_size, entry in stats.items():
            window = "recurrent" if window_size == RECURRENT_STATES else str(window_size)
            for field, metric in self._counters.items():
                self._of(metric, window=window).inc(getattr(entry, field))
            for field, metric in self._gauges.items():
                self._of(metric, window=window).set(getattr(entry, field))
            reused += entry.iter_reused_blocks
            missed += entry.iter_missed_blocks
        if reused + missed:
            self._of(self._iteration_hit_rate).set(reused / (reused + missed))

    def record_totals(self, stats: KvCacheStats) -> None:
        """Set the gauges that describe the whole manager."""
        self._of(self._hit_rate).set(stats.cache_hit_rate)
        self._of(self._utilization).set(stats.used_num_blocks / stats.max_num_blocks if stats.max_num_blocks else 0.0)

    def record_admission(self, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        """Count an admitted request: its prompt, and what of it need not be computed (prepopulated_prompt_len)."""
        self._of(self._prompt_tokens).inc(num_prompt_tokens)
        self._of(self._cached_tokens).inc(num_cached_tokens)

    def record_publisher(self, publisher: ZmqEventPublisher) -> None:
        """Set what a publisher has published and sent again so far, and who did not read."""
        for field, value in publisher.counters._asdict().items():
            self._of(self._publisher_gauges[field]).set(value)

    def record_listener(self, lag_s: float, num_missed: int) -> None:
        """Set how late the newest batch was read, and how many were missed so far."""
        self._of(self._listener_lag).set(lag_s)
        self._of(self._listener_missed).set(num_missed)

    def record_events(self, event_manager: KVCacheEventManager) -> None:
        """Set the number of lost events."""
        self._of(self._dropped_events).set(event_manager.num_dropped_events)


def _import_prometheus_client() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise MissingExtraError('metrics need prometheus-client: pip install "trtkv[metrics]"') from error
    return prometheus_client
