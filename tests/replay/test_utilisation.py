from __future__ import annotations

from trtkv.replay.utilisation import UtilisationSample, UtilisationSamples


def keep(num_steps: int, most: int) -> UtilisationSamples:
    samples = UtilisationSamples(most)
    for step in range(num_steps):
        if samples.wants(step):
            samples.add(UtilisationSample(step, step * 10, 0, 0, 0, 0, 0, 0))
    return samples


def test_a_short_run_keeps_every_step():
    samples = keep(8, most=8)
    assert (samples.interval, [sample.step for sample in samples.samples]) == (1, [*range(8)])


def test_a_longer_run_keeps_every_nth_step_from_its_first_to_its_end():
    samples = keep(1000, most=8)
    assert samples.interval == 128
    assert [sample.step for sample in samples.samples] == [*range(0, 1000, 128)]
