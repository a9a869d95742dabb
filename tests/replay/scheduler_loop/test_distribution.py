from __future__ import annotations

from trtkv.replay.scheduler_loop.distribution import Distribution


def test_percentiles_are_values_that_occurred():
    measured = Distribution.of("x", "what x is", [*range(100, 0, -1)])
    assert (measured.count, measured.mean, measured.most) == (100, 50.5, 100)
    assert measured.percentiles == (50, 90, 99)


def test_one_value_is_every_percentile():
    measured = Distribution.of("x", "", [7.0])
    assert measured.to_json() == {
        "name": "x",
        "definition": "",
        "count": 1,
        "mean": 7.0,
        "p50": 7.0,
        "p90": 7.0,
        "p99": 7.0,
        "max": 7.0,
    }


def test_without_values_there_is_only_a_count():
    measured = Distribution.of("x", "", [])
    assert (measured.count, measured.mean, measured.percentiles, measured.most) == (0, None, (None, None, None), None)
