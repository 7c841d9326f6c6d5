"""Lower bounds worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import simpy

from tests.streams import OneBytePerSecond, Script, same_on
from triosim.config import RunConfig
from triosim.networks.extensions import ContentionFree
from triosim.pipeline.bounds import IdleCollectives, lower_bound
from triosim.pipeline.planning import plan
from triosim.pipeline.pricing import price
from triosim.pipeline.reading import read
from triosim.trace.formats import write


class Idle(OneBytePerSecond, ContentionFree):
    """A network on which a transfer of n bytes takes n seconds, whatever else there is."""


def test_a_hop_of_a_ring_takes_as_long_as_its_transfer() -> None:
    idle = IdleCollectives(Idle(simpy.Environment()))  # type: ignore[arg-type]
    assert idle.hop_seconds((0, 1, 2), 2, 5.0) == 5.0
    assert idle.hop_seconds((2,), 2, 5.0) == 0.0
    assert idle.seconds("all_reduce", (0, 1), 7.0) == 7.0


def test_nothing_is_known_of_a_network_on_which_history_counts() -> None:
    idle = IdleCollectives(OneBytePerSecond(simpy.Environment()))  # type: ignore[arg-type]
    assert idle.hop_seconds((0, 1, 2), 2, 5.0) == idle.seconds("all_reduce", (0, 1), 7.0) == 0.0


@pytest.mark.parametrize(("host", "bound"), [(None, 3.0), (0.5, 3.5), (4.0, 9.0)])
def test_the_bound_of_a_captured_step_is_what_it_computes(tmp_path: Path, host: float | None, bound: float) -> None:
    """Operators of 2 and 1 seconds; where launches take 4 seconds, the second one begins after 8."""
    script = Script(host).run(2.0).ask("all_reduce", "world", 1e9).run(1.0)
    path = tmp_path / "streams.json"
    write(same_on(2, script), path)
    config = RunConfig.of(topology="switch(2, bandwidth=1 GB/s)", host_overhead="trace")
    planned = plan(price(read(str(path), config), config), config)
    assert lower_bound(planned, IdleCollectives(planned.new_network())) == pytest.approx(bound)
