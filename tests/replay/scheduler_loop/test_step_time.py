from __future__ import annotations

import pytest

from trtkv.errors import InvalidInputError
from trtkv.replay.scheduler_loop.step_time import StepTimeModel, StepWork, parse_step_time


def test_a_step_takes_the_sum_of_its_parts():
    model = StepTimeModel(base_ns=1000, context_ns=10, generation_ns=5, cached_ns=0.5)
    assert model.duration_ns(StepWork(0, 0, 0)) == 1000
    assert model.duration_ns(StepWork(context_tokens=7, generation_requests=3, cached_tokens=40)) == 1000 + 70 + 15 + 20


def test_tokens_of_a_step_are_those_of_prompts_and_one_per_generating_request():
    assert StepWork(context_tokens=7, generation_requests=3, cached_tokens=40).num_tokens == 10


def test_coefficients_are_read_with_their_units_and_the_rest_keeps_its_default():
    model = parse_step_time("linear:base=2ms, context=1.5us,cached=0.25ns")
    assert model == StepTimeModel(base_ns=2_000_000, context_ns=1500, cached_ns=0.25)
    assert parse_step_time("linear:generation=1s").generation_ns == 10**9
    assert parse_step_time("linear:base=0,context=0").base_ns == 0


def test_the_name_alone_is_the_default_model():
    assert parse_step_time("linear") == StepTimeModel()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "quadratic",
        "linear:base",
        "linear:base=5",
        "linear:base=-1ms",
        "linear:base=1min",
        "linear:speed=1ms",
        "linear:base=1ms,base=2ms",
        "linear:base=nan",
    ],
)
def test_a_model_that_cannot_be_read_is_refused_with_its_text(text):
    with pytest.raises(InvalidInputError, match="step time model"):
        parse_step_time(text)


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan")])
def test_a_model_without_a_sensible_time_cannot_be_made(value):
    with pytest.raises(InvalidInputError, match="cached_ns"):
        StepTimeModel(cached_ns=value)
