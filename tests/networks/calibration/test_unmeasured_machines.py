"""Machines that nobody measured: the nearest measured one stands in, scaled by what the catalogue says of both."""

from __future__ import annotations

from typing import Any

import pytest
import simpy

from triosim import Topology, cli
from triosim.networks import PacketNetwork
from triosim.networks.calibration.curves import sent
from triosim.networks.calibration.lookup import calibration_of
from triosim.networks.calibration.model import REACHED
from triosim.networks.construction import calibration_notes


def alone(topology: Topology, kind: str, group: tuple[int, ...], nbytes: float) -> float:
    env = simpy.Environment()
    env.run(PacketNetwork(env, topology).collective(kind, group, nbytes))  # type: ignore[arg-type]
    return float(env.now)


def spelled(bandwidth: float) -> dict[str, Any]:
    """Two nodes as those of a DGX with NVSwitches that reduce, without the preset's name."""
    return {
        "topology": "switch", "nodes": 2, "gpus_per_node": 8, "bandwidth": bandwidth, "latency": "500 ns",
        "in_switch_reduction": True, "inter_node": {"bandwidth": "400 Gb/s", "latency": "1 us"},
    }  # fmt: skip


@pytest.mark.parametrize(("name", "bandwidth"), [("dgx-h100", 450e9), ("dgx-b200", 900e9)])
def test_a_preset_and_the_same_preset_spelled_out_agree(name: str, bandwidth: float) -> None:
    for kind in ("all_reduce", "all_gather", "all_to_all"):
        for nbytes in (1e3, 1e6, 1e9):
            times = [
                alone(topology, kind, tuple(range(16)), nbytes)
                for topology in (Topology.load(f"{name}(nodes=2)"), Topology.from_dict(spelled(bandwidth)))
            ]
            assert times[0] == pytest.approx(times[1], rel=1e-9)


def test_a_file_between_two_measured_machines_is_between_them() -> None:
    """At 450 x sqrt(2) GB/s, half-way from an H100 to a B200 in logarithms, 256 MB take the geometric mean of what both take.

    Small messages take what they take on the H100, as those of the B200 were measured with a slower launch.
    """

    def gathered(topology: Topology, nbytes: float) -> float:
        return alone(topology, "all_gather", tuple(range(8)), nbytes)

    measured = {name: Topology.load(name) for name in ("dgx-h100", "dgx-b200")}
    system = Topology.from_dict(spelled(450e9 * 2**0.5))
    small, large = ({name: gathered(one, nbytes) for name, one in measured.items()} for nbytes in (1e3, 256e6))
    assert small["dgx-b200"] > small["dgx-h100"]
    assert gathered(system, 1e3) == pytest.approx(small["dgx-h100"])
    assert gathered(system, 256e6) == pytest.approx((large["dgx-h100"] * large["dgx-b200"]) ** 0.5)
    notes = " ".join(calibration_notes(PacketNetwork(simpy.Environment(), system), 8))
    assert "those of dgx-h100 and dgx-b200 stand in" in notes


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("dgx-h100(bandwidth=400 GB/s)", ""),
        ("dgx-h20", "dgx-h200"),
        ("gb300-nvl4", "dgx-b300"),
        ("rtx-pro-6000-pcie", "l40s-pcie"),
        ("mi300x", "dgx-a100"),
        ("dgx-h100(in_switch_reduction=false)", "dgx-a100"),
        ("switch(8, bandwidth=450 GB/s)", ""),
    ],
)
def test_a_machine_that_nobody_measured_takes_the_nearest_one_and_says_so(
    name: str, machine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topology = Topology.load(name)
    notes = " ".join(calibration_notes(PacketNetwork(simpy.Environment(), topology), 4))
    if not machine:
        assert "stand in" not in notes
    else:
        assert any(f"those of {one} stand in" in notes for one in (machine, "dgx-h100", "dgx-b200", "gb200-nvl4"))
        assert cli.run(["topology", name]) == 0
        assert "stand in" in " ".join(capsys.readouterr().out.split())


def test_a_link_to_each_gpu_of_a_group_makes_small_groups_slower() -> None:
    """Of 8 GPUs with a link between every two, a pair has one seventh of what a GPU has to all; protocols cost the same."""
    pair, whole = (calibration_of(Topology.load(name)) for name in ("mi300x", "dgx-a100(bandwidth=448 GB/s)"))
    assert pair is not None
    assert whole is not None
    linked, switched = (one.parts("all_gather", 2, 2.0**30) for one in (pair, whole))
    assert linked is not None
    assert switched is not None
    wire = 2**29 / (REACHED * 448e9)
    assert linked.moving - switched.moving == pytest.approx(6 * wire)


def bus_bandwidth(topology: Topology, kind: str, gpus: int, nbytes: float = 2.0**30) -> float:
    return sent(kind, gpus) * nbytes / alone(topology, kind, tuple(range(gpus)), nbytes)


def test_many_boards_of_an_unmeasured_server_have_the_rate_of_a_pair() -> None:
    """Eight RTX PRO 6000 are published with 37 to 41 GB/s; only the server of the L40S is known to slow larger groups."""
    boards, measured = Topology.load("rtx-pro-6000-pcie"), Topology.load("l40s-pcie")
    for gpus in (2, 4, 8):
        assert 36e9 < bus_bandwidth(boards, "all_reduce", gpus) < 42e9
    assert bus_bandwidth(measured, "all_reduce", 8) < 3e9 < 18e9 < bus_bandwidth(measured, "all_reduce", 2)
    notes = " ".join(calibration_notes(PacketNetwork(simpy.Environment(), boards), 8))
    assert "the rate of a pair" in notes


def test_an_all_to_all_of_boards_shares_the_links_between_their_switches() -> None:
    """Four of eight GPUs send half of their bytes up one link: 2 S, where each has 7/8 S on its own."""
    boards = Topology.load("a100-pcie")
    four, eight = (bus_bandwidth(boards, "all_to_all", gpus) for gpus in (4, 8))
    assert eight == pytest.approx(four * 7 / 16, rel=0.01)


@pytest.mark.parametrize(("name", "keys"), [("a100-pcie", {}), ("l40s-pcie", {"gpus_per_switch": 2})])
def test_a_server_of_boards_spelled_out_is_its_preset(name: str, keys: dict[str, int]) -> None:
    card = {"bandwidth": "200 Gb/s", "latency": "1 us", "gpus_per_nic": 2}
    links = {"topology": "pcie_tree", "gpus_per_node": 8, "bandwidth": "25 GB/s", "latency": "1 us", "inter_node": card}
    for kind in ("all_reduce", "all_to_all"):
        there, spelled = (
            alone(topology, kind, tuple(range(8)), 1e7)
            for topology in (Topology.load(name), Topology.from_dict(links | keys))
        )
        assert there == pytest.approx(spelled, rel=1e-9)
