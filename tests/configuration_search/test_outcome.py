"""What a search knows of a point: what fits, which figures a result comes to, and what JSON keeps of it."""

from __future__ import annotations

import json

import pytest

from tests.hand_made_run import result
from triosim.configuration_search.outcome import Figures, Memory, Outcome


def test_a_margin_is_by_how_much_a_prediction_may_be_too_low() -> None:
    memory = Memory(peak_bytes=76e9, capacity_bytes=79e9)
    assert memory.headroom_bytes == 3e9
    assert memory.fits()
    assert memory.fits(0.03)  # 78.3 GB
    assert not memory.fits(0.05)  # 79.8 GB


def test_figures_are_means_over_the_ranks() -> None:
    found = Figures.of(result())
    assert found.step_time_s == pytest.approx(10e-3)
    assert found.gpus == 2
    assert found.samples_per_s == pytest.approx(6400)
    assert found.compute_s == pytest.approx(8e-3)
    # Of the 2 ms in which neither GPU computes, both wait for nobody: GPU 0 waited for GPU 1 while it computed.
    assert found.exposed_communication_s + found.waiting_s == pytest.approx(2e-3)


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome("{}", "out_of_memory", memory=Memory(2.0, 1.0)),
        Outcome("{}", "excluded", at_bound=Figures(0.5, 8, 8.0, 0.0, 0.0, 0.0, 0.0)),
        Outcome("{}", "simulated", figures=Figures(1.0, 8, 4.0, 0.7, 0.1, 0.2, 0.0)),
        Outcome("{}", "simulated", figures=Figures(1.0, 8, 4.0, 0.7, 0.1, 0.2, 0.0, (0.9, 1.2), (("network", 0.04),))),
    ],
)
def test_json_holds_an_outcome(outcome: Outcome) -> None:
    assert Outcome.read(json.loads(json.dumps(outcome.plain()))) == outcome
