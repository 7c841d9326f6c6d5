"""Local SGD, by hand: a step of 21 ms, now and then an all-reduce of 4,560 bytes on a ring of four at 1 MB/s."""

from __future__ import annotations

import pytest
import traces

import triosim
from triosim.errors import OptionError

MLP = traces.mlp()
RING = "ring(4, bandwidth=1 MB/s, latency=0 s)"
ALL_REDUCE_MS = 6.84


def run(iterations: int, every: str | None, parallel: str = "local-sgd") -> triosim.Result:
    options = {} if every is None else {"every": every}
    return triosim.simulate(MLP, parallel, gpus=4, topology=RING, iterations=iterations, options=options)


def test_parameters_are_averaged_once_in_so_many_steps() -> None:
    result = run(4, "2")
    ends = [1e3 * end for end in result.data.iterations]
    assert ends == pytest.approx([21, 42 + ALL_REDUCE_MS, 63 + ALL_REDUCE_MS, 84 + 2 * ALL_REDUCE_MS])
    assert not any("local-sgd" in note for note in result.notes)


def test_every_step_costs_what_data_parallelism_does() -> None:
    assert run(2, "1").step_time_s == pytest.approx(run(2, None, "dp").step_time_s)


def test_a_run_that_averages_too_rarely_says_so() -> None:
    result = run(3, None)
    assert 3e3 * result.step_time_s == pytest.approx(63)
    assert any("every 4 steps, in 0 of the 3 simulated ones" in note for note in result.notes)


def test_it_combines_with_a_pipeline() -> None:
    result = run(2, "2", "local-sgd=2,pp=2")
    averaged = [one for one in result.data.collectives if one.axis == "local-sgd"]
    assert sum(2 * one.count * one.bytes for one in averaged) == pytest.approx(4560)  # each stage its own, once


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(OptionError, match="0 is less than 1; give 1 or more"):
        run(1, "0")
    with pytest.raises(OptionError, match="leave out --inference"):
        triosim.simulate(MLP, "local-sgd", gpus=4, topology=RING, training=False)
