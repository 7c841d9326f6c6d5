"""Sections of a topology file: each key belongs to a room above, which parses what the topology has kept."""

from __future__ import annotations

import pytest

from triosim.conditions import conditions_of
from triosim.conditions.parsing import KEYS
from triosim.errors import TopologyError
from triosim.networks.photonic.optics import optics_of
from triosim.networks.topology import SECTIONS, Topology
from triosim.pipeline.system import check_sections

SWITCH = {"topology": "switch", "gpus": 4, "bandwidth": "5 GB/s"}


def test_every_section_has_a_room_that_parses_it() -> None:
    assert set(SECTIONS) == {"photonic", "calibration", "price", *KEYS}


def test_a_section_is_kept_as_it_was_read_and_parsed_when_somebody_asks() -> None:
    topology = Topology.from_dict({**SWITCH, "photonic": {"ports": 3}, "slow_gpus": {1: 2.0}})
    assert topology.sections["photonic"].said == {"ports": 3}
    optics = optics_of(topology)
    assert optics is not None
    assert optics.ports == 3
    assert conditions_of(topology).slow_gpus == {1: 2.0}
    assert optics_of(Topology.from_dict(SWITCH)) is None


def test_other_links_keep_the_sections() -> None:
    topology = Topology.from_dict({**SWITCH, "slow_gpus": {1: 2.0}})
    changed = topology.with_links(lambda link: link)
    assert conditions_of(changed) == conditions_of(topology)
    assert changed.nominal is topology
    assert not changed.uniform


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("photonic", {"prots": 3}),
        ("calibration", 5),
        ("slow_gpus", {"x": 1}),
        ("events", 7),
        ("price", "cheap"),
        ("price", [1, 2]),
        ("price", {"links": 2}),
        ("price", {"switch": 2}),
        ("price", {"link": 2, "between_nodes": {"link": -1}}),
    ],
)
def test_a_wrong_section_is_found_whoever_needs_it(key: str, said: object) -> None:
    with pytest.raises(TopologyError, match=f"here: {key}"):
        check_sections(Topology.from_dict({**SWITCH, key: said}, source="here"))
