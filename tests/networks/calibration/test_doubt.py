"""How far off collectives are expected to be: on the machine that was measured, on another, and between nodes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from triosim import Topology
from triosim.networks.calibration.curves import Sigmoid, TimeParts
from triosim.networks.calibration.doubt import ELSEWHERE, OWN, PER_E_FOLD, UNKNOWN_HOST, PartErrors, relative_error
from triosim.networks.calibration.lookup import calibration_of
from triosim.networks.calibration.model import InterNodeTimes


def doubt(name: str, gpus: int, nbytes: float, nodes: int = 1) -> float:
    calibration = calibration_of(Topology.load(name))
    assert calibration is not None
    found = relative_error(calibration, "all_gather", gpus, nbytes, nodes)
    assert found is not None
    return found


def test_the_parts_of_a_time_err_together() -> None:
    assert PartErrors(0.4, 0.1).of(TimeParts(1.0, 3.0)) == pytest.approx((0.4 * 1 + 0.1 * 3) / 4)


def test_small_collectives_are_less_sure_than_large_ones() -> None:
    assert doubt("dgx-h100", 8, 2.0**32) == pytest.approx(ELSEWHERE.moving, rel=0.01)
    assert doubt("dgx-h100", 8, 512.0) == pytest.approx(ELSEWHERE.latency, rel=0.01)


def test_a_machine_that_nobody_measured_is_less_sure_the_further_it_is() -> None:
    """Twice the bandwidth is ln 2 e-folds away; the two errors are independent."""
    double = doubt("dgx-h100(bandwidth=900 GB/s)", 8, 2.0**34)
    assert double == pytest.approx(math.hypot(ELSEWHERE.moving, math.log(2) * PER_E_FOLD.moving), rel=0.01)
    assert doubt("dgx-h100", 8, 2.0**34) < doubt("mi300x", 8, 2.0**34) < doubt("mi300x", 2, 2.0**34)


def test_more_than_two_boards_of_an_unknown_server_are_less_sure() -> None:
    """How far a host slows them was measured in one server alone, which its own preset stands for."""
    pair, group, measured = (doubt(*one, 2.0**34) for one in (("a100-pcie", 2), ("a100-pcie", 4), ("l40s-pcie", 4)))
    assert pair == pytest.approx(measured, rel=0.01)
    assert group == pytest.approx(math.hypot(pair, UNKNOWN_HOST.moving), rel=0.01)


def test_between_two_measured_machines_it_is_the_nearer_one_that_counts(tmp_path: Path) -> None:
    """A switch of 600 GB/s is ln(600 / 450) e-folds from the H100's and ln(900 / 600) from the B200's."""
    path = tmp_path / "between.yaml"
    path.write_text(
        "topology: switch\ngpus: 16\ngpus_per_node: 8\nbandwidth: 600 GB/s\nlatency: 500 ns\nin_switch_reduction: true\n"
        "inter_node: {bandwidth: 50 GB/s}\n"
    )
    apart = math.log(600 / 450)
    found = doubt(str(path), 8, 2.0**34)
    assert found == pytest.approx(math.hypot(ELSEWHERE.moving, apart * PER_E_FOLD.moving), rel=0.02)


def test_between_nodes_it_is_what_clusters_left_out_were_off() -> None:
    large, small = (doubt("dgx-h100(nodes=4)", 32, nbytes, nodes=4) for nbytes in (2.0**34, 512.0))
    assert 0.10 < large < 0.20 < small < 0.40


def test_a_cluster_of_ones_own_is_as_sure_as_its_fit() -> None:
    shipped = calibration_of(Topology.load("dgx-h100"))
    assert shipped is not None
    own = relative_error(replace(shipped, node=None), "all_gather", 8, 512.0, 1)
    assert own is not None
    assert own < 0.1 < doubt("dgx-h100", 8, 512.0)
    assert relative_error(replace(shipped, kinds={}), "all_gather", 8, 512.0, 1) is None
    between = {"any": InterNodeTimes(10e-6, Sigmoid(50e9, 1.0, 0.0))}
    assert relative_error(replace(shipped, between=between), "all_gather", 32, 512.0, 4) == pytest.approx(
        OWN.latency, rel=0.05
    )
