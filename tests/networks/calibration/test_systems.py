"""The system that a row of a table was measured on: which preset it is, its nodes, and the network cards of its GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from triosim.errors import TriosimError
from triosim.networks.calibration.fit.systems import (
    LARGER,
    SYSTEMS,
    MeasuredSystem,
    cards_of,
    measured_system,
    node_size,
    preset_of,
)
from triosim.networks.topology.presets import PRESETS

GBIT = 1e9 / 8


def system(name: str, gpus: int, nodes: int | None = None, nic: str = "", **cells: str) -> MeasuredSystem:
    return measured_system({"gpus": str(gpus), "nodes": str(nodes or ""), "nic": nic, **cells}, name)


def card(name: str, gpus: int, nodes: int, nic: str) -> tuple[float, int, str]:
    """The bandwidth of a card in Gb/s, how many GPUs share it, and the kind of network."""
    found = system(name, gpus, nodes, nic).card
    assert found is not None
    return found.bandwidth / GBIT, found.gpus_per_nic, found.network


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("H100-SXM5-80GB (Nebius)", "dgx-h100"),
        ("NVIDIA H200", "dgx-h200"),
        ("b200_sxm", "dgx-b200"),
        ("GB200 (4-GPU tray)", "gb200-nvl4"),
        ("GB200 NVL72", "gb200-nvl72"),
        ("H20", "dgx-h20"),
        ("A100-PCIE-80GB", "a100-pcie"),
        ("V100-SXM3 (DGX-2)", "dgx-2"),
        ("MI300X", "mi300x"),
        ("rtx_pro_6000_server", "rtx-pro-6000-pcie"),
        ("L40S (PCIe)", "l40s-pcie"),
        ("T4 (g4dn class)", "t4-pcie"),
        ("GB10 (DGX Spark)", "gb10"),
        ("H100-PCIe with NVLink bridge (12 links)", "h100-nvl2"),
        ("Tesla P4", "a100-pcie"),  # a board of the catalogue: boards, as fast as its PCIe link
        ("p5en.48xlarge", "dgx-h200"),
        ("Gaudi 3", None),
    ],
)
def test_a_system_is_known_by_the_names_that_tables_use(name: str, preset: str | None) -> None:
    assert preset_of(name) == preset


def test_every_system_is_a_preset() -> None:
    assert {preset for _, preset, _ in SYSTEMS} <= set(PRESETS)
    assert {*LARGER, *LARGER.values()} <= set(PRESETS)


def test_cards_are_read_from_what_people_write() -> None:
    def said(nic: str) -> tuple[str | None, int, float]:
        found = cards_of(nic)
        assert found is not None
        return found.kind, found.count, found.bandwidth / GBIT

    assert said("8x400 Gb/s InfiniBand NDR") == ("infiniband", 8, 400)
    assert said("32x100 Gb/s EFA (8x400 Gb/s total)") == ("efa", 32, 100)
    assert said("4x200 Gb/s GPUDirect-TCPX") == ("sockets", 4, 200)
    assert said("8x200 Gb/s GPUDirect-TCPXO") == ("roce", 8, 200)
    assert said("16x ConnectX-7 InfiniBand NDR per pair (8 a node)") == ("infiniband", 8, 400)
    assert said("4x200 Gb/s (maintainer: 24 GB/s a NIC)") == (None, 4, 200)
    assert said("8×200G RoCEv2") == ("roce", 8, 200)
    assert said("8xHDR InfiniBand") == ("infiniband", 8, 200)
    assert said("100 GbE x 2, TCP") == ("sockets", 2, 100)
    assert said("3200 Gb/s EFA") == ("efa", 8, 400)  # no card is as fast: a node's together
    assert said("TCP sockets (EFA off)") == ("sockets", 0, 0)
    assert said("InfiniBand, speed not stated") == ("infiniband", 0, 0)
    assert cards_of("not stated in the excerpt") is None


def test_a_gpu_has_its_share_of_the_cards_of_its_node() -> None:
    assert card("H100", 16, 2, "8x400 Gb/s InfiniBand NDR") == (400, 1, "infiniband")
    assert card("H100", 16, 2, "32x100 Gb/s EFA (8x400 Gb/s total)") == (400, 1, "efa")
    assert card("A100", 16, 2, "4x100 Gb/s EFA") == (100, 2, "efa")
    assert card("A100", 8, 2, "1x200 Gb/s InfiniBand") == (200, 4, "infiniband")
    assert card("L40S", 16, 2, "200 Gb/s RoCE per GPU") == (200, 1, "roce")
    assert card("L40S", 16, 2, "200 Gb/s RoCE") == (200, 8, "roce")
    assert card("H100", 8, 2, "4x200 Gb/s RoCE") == (200, 1, "roce")  # four GPUs of each node


def test_a_single_gpu_of_a_node_has_one_card() -> None:
    assert card("H100", 2, 2, "4x400 Gb/s RoCE (1 used by one GPU)") == (400, 1, "roce")
    assert card("H200", 2, 2, "1x400 Gb/s RoCE") == (400, 1, "roce")
    assert card("T4", 2, 2, "TCP sockets (EFA off)") == (50, 1, "sockets")  # the card of the preset
    found = system("H200", 2, 2, "1x400 Gb/s RoCE")
    assert tuple(found.ranks) == (0, 8)
    assert len(found.topology().gpus) == 16


def test_nodes_that_are_not_said_follow_from_the_gpus() -> None:
    assert system("dgx-h100", 64).nodes == 8
    assert (system("A100", 8).nodes, system("A100", 8).card) == (1, None)
    assert card("dgx-h100", 64, 0, "") == (400, 1, "infiniband")


def test_a_group_that_is_larger_than_a_node_is_on_larger_nodes() -> None:
    rack = system("GB200 (4-GPU tray)", 8)
    assert (rack.preset, rack.nodes, rack.gpus) == ("gb200-nvl72", 1, 8)
    trays = system("GB200 (4-GPU tray)", 8, 2, "4x400 Gb/s InfiniBand NDR")
    assert (trays.preset, trays.nodes, trays.gpus) == ("gb200-nvl4", 2, 4)
    assert system("V100-SXM2", 4, gpus_per_node="4").preset == "v100-nvl4"
    assert system("H100 NVL", 4).preset == "h100-pcie"
    wide = system("A40", 8, 2, "1x200 Gb/s RoCE")
    assert (wide.per_node, wide.topology().gpus[wide.ranks[-1]]) == (4, "gpu7")


def test_slower_links_than_those_of_the_preset_are_kept() -> None:
    outline = system("H800", 8).topology().outline
    assert outline is not None
    assert outline.spec.bandwidth == 200e9


@pytest.mark.parametrize(
    ("name", "gpus", "nodes", "nic", "reason"),
    [
        ("unstated (4 nodes x 8)", 32, 4, "", "the GPU is not stated"),
        ("Gaudi 3", 8, 1, "", "unknown system 'Gaudi 3'"),
        ("H100", 16, 2, "not stated in the excerpt", "the network cards are not stated"),
        ("H100", 15, 2, "", "15 GPUs are not shared out evenly over 2 nodes"),
        ("H100", 1, 1, "", "a collective has 2 GPUs or more"),
        ("H100", 16, 2, "9999999x400 Gb/s", "nic: '9999999x400 Gb/s' is faster than any node"),
    ],
)
def test_a_row_that_cannot_be_placed_says_why(name: str, gpus: int, nodes: int, nic: str, reason: str) -> None:
    with pytest.raises(TriosimError) as error:
        system(name, gpus, nodes, nic)
    assert error.value.what == reason


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset.spec.gpus_per_node])
def test_every_preset_of_nodes_can_be_the_system_of_a_row(name: str) -> None:
    size = node_size(name)
    found = MeasuredSystem(name, 2, size)
    assert len(found.topology().gpus) == len(found.ranks) == 2 * size


def test_rows_of_all_tables_are_placed_or_hide_their_hardware(data_dir: Path) -> None:
    from triosim.networks.calibration.fit import system_table

    for path in sorted((data_dir / "collectives").glob("[!d]*.csv.gz")):
        reasons = {row.refused for row in system_table.read(str(path))}
        assert reasons <= {"", "the GPU is not stated", "the network cards are not stated"}, path
