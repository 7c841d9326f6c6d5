"""Calibrated collectives: what a fit finds again, what a calibrated machine does idle and shared, and what its file says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import simpy

from triosim import Topology, cli
from triosim.conditions.parsing import conditions_of
from triosim.errors import TopologyError
from triosim.networks import AnalyticalNetwork, PacketNetwork
from triosim.networks.calibration import stored
from triosim.networks.calibration.fit import fitting, judging
from triosim.networks.calibration.fit.fitting import MeasuredCollective
from triosim.networks.calibration.fit.joint import JointFit, MachineRows
from triosim.networks.calibration.lookup import calibration_of
from triosim.networks.calibration.model import Calibration
from triosim.networks.collectives.algorithms.auto import Auto
from triosim.tasks import CollectiveKind

Run = Callable[..., tuple[int, str, str]]
SIZES = [2.0**power for power in range(9, 31)]


def hockney(gpus: int, nbytes: float) -> float:
    """An all-gather of 2 us a GPU, and 200 GB/s."""
    return 2e-6 * gpus + (gpus - 1) / gpus * nbytes / 200e9


def machine(*groups: int, sizes: Sequence[float] = SIZES) -> list[MeasuredCollective]:
    return [
        MeasuredCollective("all_gather", gpus, nbytes, hockney(gpus, nbytes)) for gpus in groups for nbytes in sizes
    ]


def off(calibration: Calibration, gpus: int, nbytes: float) -> float:
    parts = calibration.parts("all_gather", gpus, nbytes)
    assert parts is not None
    return abs(parts.total / hockney(gpus, nbytes) - 1)


def test_latency_and_bandwidth_are_found_again_between_sizes_and_between_group_sizes() -> None:
    found = fitting.fit(machine(2, 4, 8), 8)
    assert max(off(found, gpus, 1.5 * nbytes) for gpus in (2, 4, 8) for nbytes in SIZES[:-1]) < 0.03
    assert max(off(found, gpus, nbytes) for gpus in (3, 5, 6, 7) for nbytes in SIZES) < 0.05
    assert found.kinds["all_gather"].curves[2].sigmoid.ceiling == pytest.approx(200e9, rel=0.1)


def test_more_bytes_take_more_time_and_never_less_than_none() -> None:
    for preset in ("dgx-a100", "dgx-h100", "dgx-h200"):
        calibration = stored.shipped(preset)
        for kind in ("all_reduce", "all_gather", "reduce_scatter"):
            for gpus in range(2, 9):
                parts = [calibration.parts(kind, gpus, 2.0**power) for power in range(20, 36)]
                times = [part.total for part in parts if part is not None]
                assert times[0] > 0
                assert times == sorted(times)


def test_a_size_held_out_is_predicted_from_the_others() -> None:
    left, said = judging.held_out(machine(2, 8, sizes=SIZES[::2]))
    assert {row.nbytes for row in left} == set(SIZES[2:-2:2])
    assert judging.judged(left, said).total.mape_percent < 2.0


def test_a_row_that_took_longer_than_a_larger_size_was_disturbed() -> None:
    """One row in seven takes three times as long; the sizes beside it are still found to 15%, and it is not followed."""
    rows = [
        MeasuredCollective(
            "all_gather", 8, nbytes, (3.0 if place % 7 == 3 and nbytes < 2**20 else 1.0) * hockney(8, nbytes)
        )
        for place, nbytes in enumerate(SIZES)
    ]
    found = fitting.fit(rows, 8)
    assert max(off(found, 8, nbytes) for nbytes in SIZES) < 0.15


def test_repeated_rows_give_the_straggler_ratio() -> None:
    """The quickest of five is at 1 and three quarters of them within 1.3."""
    rows = [
        MeasuredCollective("all_gather", gpus, nbytes, slow * hockney(gpus, nbytes))
        for gpus in (2, 8)
        for nbytes in SIZES
        for slow in (1.0, 1.1, 1.2, 1.3, 3.0)
    ]
    found = fitting.fit(rows, 8)
    assert found.stragglers["all_gather"].ratio(4, 2**20) == pytest.approx(1.3)
    parts = found.parts("all_gather", 8, 2**26)
    assert parts is not None
    assert parts.total == pytest.approx(1.3 * hockney(8, 2**26), rel=0.03)
    assert "all_gather" not in fitting.fit(machine(2, 8), 8).stragglers


def test_the_way_between_nodes_is_fitted_to_rows_of_several() -> None:
    """Cards of 20 GB/s, 10 us a hop, nodes of 8: an all-gather of N nodes sends (8 N - 1)/(8 N) S/8 through each card."""

    def wide(nodes: int, nbytes: float) -> float:
        card = (8 * nodes - 1) / (8 * nodes) * nbytes / 8
        return 2e-6 * 8 + 10e-6 * (nodes - 1) + card / 20e9

    rows = [
        MeasuredCollective("all_gather", 8 * nodes, nbytes, wide(nodes, nbytes), nodes)
        for nodes in (2, 4)
        for nbytes in SIZES
    ]
    found = fitting.fit(machine(2, 4, 8) + rows, 8)
    for nodes in (2, 3, 4, 8):
        parts = found.parts("all_gather", 8 * nodes, 3e8, nodes)
        assert parts is not None
        assert parts.total == pytest.approx(wide(nodes, 3e8), rel=0.06)


def test_a_few_observations_move_a_calibration_to_a_slower_machine() -> None:
    """On a machine that takes 1.5 times as long, the error falls with each collective that is observed."""
    found = fitting.fit(machine(2, 4, 8), 8)
    before = off(found, 8, 2**24)
    for _ in range(10):
        for nbytes in SIZES[::4]:
            found = found.observed("all_gather", 8, nbytes, 1.5 * hockney(8, nbytes), rate=0.3)
    parts = found.parts("all_gather", 8, 2**24)
    assert parts is not None
    assert before < 0.05
    assert parts.total == pytest.approx(1.5 * hockney(8, 2**24), rel=0.05)


def alone(topology: Topology, kind: str, group: tuple[int, ...], nbytes: float) -> float:
    env = simpy.Environment()
    env.run(PacketNetwork(env, topology).collective(kind, group, nbytes))  # type: ignore[arg-type]
    return float(env.now)


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "dgx-h200(gpus=16)"])
@pytest.mark.parametrize(
    "kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather"]
)
def test_a_collective_alone_on_an_idle_machine_takes_the_calibrated_time_on_every_network(name: str, kind: str) -> None:
    topology = Topology.load(name)
    calibration = calibration_of(topology)
    assert calibration is not None
    for group in ((0, 1), (1, 4, 6), tuple(range(8)), tuple(range(len(topology.gpus)))):
        for nbytes in (0.0, 512.0, 3e5, 1e9):
            parts = calibration.parts(kind, len(group), nbytes, len({rank // 8 for rank in group}))
            assert parts is not None
            assert alone(topology, kind, group, nbytes) == pytest.approx(parts.total, rel=1e-9)
            network = AnalyticalNetwork(simpy.Environment(), topology)
            assert network.seconds(kind, group, nbytes) == pytest.approx(parts.total, rel=1e-9)  # type: ignore[arg-type]


def test_two_calibrated_collectives_share_the_links() -> None:
    """Both have their latency at the same time, and half of the bandwidth each; the links carry the real bytes."""
    topology = Topology.load("dgx-a100")
    calibration = calibration_of(topology)
    assert calibration is not None
    parts = calibration.parts("all_reduce", 8, 64e6)
    assert parts is not None
    env = simpy.Environment()
    network = PacketNetwork(env, topology)
    env.run(env.all_of([network.collective("all_reduce", range(8), 64e6) for _ in range(2)]))
    assert env.now == pytest.approx(parts.latency + 2 * parts.moving)
    up = network.bytes_by_link()["gpu3->switch0"]
    assert up == pytest.approx(2 * 2 * 7 / 8 * 64e6)


def test_an_algorithm_that_is_named_takes_the_links_as_they_are() -> None:
    """A ring all-reduce of 80 MB on eight GPUs at 300 GB/s: 14 steps of 1 us, 140 MB.

    Without a calibration ``auto`` takes rotated trees: as many bytes, 2 log2(8) hops of 1 us.
    """
    topology = Topology.load("dgx-a100")
    env = simpy.Environment()
    env.run(PacketNetwork(env, topology, algorithm="ring").collective("all_reduce", range(8), 80e6))
    assert env.now == pytest.approx(14e-6 + 140e6 / 300e9)
    plain = Topology.load("dgx-a100(calibration=none)")
    assert calibration_of(plain) is None
    assert alone(plain, "all_reduce", tuple(range(8)), 80e6) == pytest.approx(6e-6 + 140e6 / 300e9)


@pytest.mark.parametrize("network", [PacketNetwork, AnalyticalNetwork])
def test_auto_is_the_default_also_by_name(network: type[PacketNetwork] | type[AnalyticalNetwork]) -> None:
    """A calibrated collective takes what was measured, whether ``auto`` is written or left out."""
    for name in ("dgx-a100", "switch(8, bandwidth=10 GB/s, latency=1 us)"):
        found = []
        for algorithm in (None, "auto", Auto()):
            env = simpy.Environment()
            made = network(env, Topology.load(name, gpus=8), algorithm=algorithm)
            assert (made.calibrated is not None) == (name == "dgx-a100")
            env.run(made.collective("all_reduce", range(8), 1e6))
            found.append(env.now)
        assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("network", [PacketNetwork, AnalyticalNetwork])
def test_a_slow_link_slows_a_calibrated_collective(network: type[PacketNetwork] | type[AnalyticalNetwork]) -> None:
    """A ring is as fast as its slowest link: at a third of the bandwidth, bytes take three times as long."""
    slow = Topology.load("dgx-h100(overrides=[{from: gpu2, to: switch0, bandwidth: 150 GB/s}])")
    calibration = calibration_of(slow)
    assert calibration is not None
    parts = calibration.parts("all_gather", 8, 1e8)
    assert parts is not None
    env = simpy.Environment()
    env.run(network(env, slow).collective("all_gather", range(8), 1e8))
    assert env.now == pytest.approx(parts.latency + 3 * parts.moving)


def test_a_preset_is_found_in_any_case() -> None:
    assert calibration_of(Topology.load("DGX-A100")) == calibration_of(Topology.load("dgx-a100"))


def test_the_bytes_of_a_node_with_half_the_bandwidth_take_twice_as_long() -> None:
    whole, half = (
        alone(Topology.load(name), "all_gather", tuple(range(8)), 2.0**28)
        for name in ("dgx-h100", "dgx-h100(bandwidth=225 GB/s)")
    )
    calibration = calibration_of(Topology.load("dgx-h100"))
    assert calibration is not None
    parts = calibration.parts("all_gather", 8, 2.0**28)
    assert parts is not None
    assert whole == pytest.approx(parts.latency + parts.moving)
    assert half == pytest.approx(parts.latency + 2 * parts.moving)


def test_plain_shapes_are_links_as_they_are() -> None:
    for name in ("switch(8, bandwidth=450 GB/s)", "ring(8, bandwidth=50 GB/s)", "tpu-v4", "Ring(4)_Switch(2)"):
        bandwidth = ", bandwidth=50 GB/s" if name.startswith("Ring") else ""
        assert (
            calibration_of(Topology.load(name.replace(")_", f"{bandwidth})_").replace("(2)", f"(2{bandwidth})")))
            is None
        )


def test_an_all_to_all_between_nodes_sends_over_the_cards_that_are_there() -> None:
    """An all-to-all of 16 sends half of 8 GB through each card: with half the bandwidth it takes twice as long."""
    fast, slow = (
        alone(Topology.load(name), "all_to_all", tuple(range(16)), 8e9)
        for name in ("dgx-h100(gpus=16)", "dgx-h100(gpus=16, inter_node={bandwidth: 25 GB/s, latency: 1 us})")
    )
    assert slow == pytest.approx(2 * fast, rel=0.01)
    assert fast > 4e9 / 50e9


def carried(topology: Topology, kind: CollectiveKind, root: int | None = None) -> dict[str, float]:
    """The share of its bytes that each link carries in a large collective of all GPUs."""
    network = PacketNetwork(simpy.Environment(), topology)
    network.env.run(network.collective(kind, range(len(topology.gpus)), 2.0**33, root=root))
    return {name: nbytes / 2.0**33 for name, nbytes in network.bytes_by_link().items()}


def test_inside_a_node_an_all_reduce_of_many_nodes_goes_through_the_switches_reduction() -> None:
    """NVLS of 8 GPUs: 9/8 of the bytes on each GPU's NVLinks, where a ring has 2 x 7/8, as on switches without it."""
    assert carried(Topology.load("dgx-h100(nodes=2)"), "all_reduce")["gpu3->node0.switch0"] == pytest.approx(9 / 8)
    assert carried(Topology.load("dgx-a100(nodes=2)"), "all_reduce")["gpu3->node0.switch0"] == pytest.approx(14 / 8)


def test_what_all_cards_carry_is_shared_by_them_whichever_way_it_goes() -> None:
    """Of a broadcast an eighth crosses on each of 8 cards; into the root of a gather over 4 nodes come 3/4, on its own card."""
    cards = carried(Topology.load("dgx-h100(nodes=2)"), "broadcast", root=0)
    assert [cards[f"gpu{gpu}->fabric"] for gpu in range(8)] == pytest.approx([1 / 8] * 8)
    assert carried(Topology.load("dgx-h100(nodes=4)"), "gather", root=0)["fabric->gpu0"] == pytest.approx(3 / 4)


@pytest.mark.parametrize("name", ["dgx-h100(nodes=2)", "dgx-1-v100", "mi300x"])
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_shares_that_are_not_equal_take_what_their_sum_takes(name: str, kind: CollectiveKind) -> None:
    topology = Topology.load(name)
    group = tuple(range(len(topology.gpus)))
    network = PacketNetwork(simpy.Environment(), topology)
    shares = [2.0 * place * 1e9 / (len(group) - 1) / len(group) for place in group]
    network.env.run(network.collective(kind, group, 1e9, shares=shares))
    assert network.env.now == pytest.approx(alone(topology, kind, group, 1e9), rel=1e-9)


def test_a_cube_mesh_uses_all_its_links() -> None:
    """A GPU has six NVLinks, two of them double: of 2 x 7/8, a sixth on each."""
    found = carried(Topology.load("dgx-1-v100"), "all_reduce")
    assert (found["gpu0->gpu1"], found["gpu0->gpu3"]) == pytest.approx((14 / 8 / 6, 2 * 14 / 8 / 6))


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_card_carries_the_bytes_that_the_time_was_priced_at(nodes: int) -> None:
    """1 GiB over 8 cards a node: trees of two nodes send 1/8 of it; a ring of 32 GPUs sends 2 x 31/32 of that."""
    topology = Topology.load(f"dgx-h100(nodes={nodes})")
    env = simpy.Environment()
    network = PacketNetwork(env, topology)
    env.run(network.collective("all_reduce", range(8 * nodes), 2.0**30))
    share = 1.0 if nodes == 2 else 2 * 31 / 32
    assert network.bytes_by_link()["gpu3->fabric"] == pytest.approx(share * 2.0**30 / 8)
    assert env.now > share * 2.0**30 / 8 / 50e9


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: object) -> tuple[int, str, str]:
        status = cli.run([str(one) for one in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return command


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lines = [
        f"all_gather,{row.gpus},{row.nbytes:.0f},{row.seconds * 1e6:.3f}" for row in machine(2, 4, 8, sizes=SIZES[::3])
    ]
    path = tmp_path / "measured.csv"
    path.write_text("\n".join(["collective,num_gpus,bytes,latency_us", *lines]) + "\n")
    return path


def test_a_calibrated_topology_is_a_file_that_says_the_same_again(run: Run, tmp_path: Path, table: Path) -> None:
    calibrated = tmp_path / "box.yaml"
    name = "switch(8, bandwidth=250 GB/s, latency=1 us)"
    status, _, err = run("calibrate", "network", table, "--topology", name, "-o", calibrated)
    assert status == 0
    assert "all_gather: mean error of" in err
    assert alone(Topology.load(calibrated), "all_gather", tuple(range(4)), 2**25) == pytest.approx(
        hockney(4, 2**25), rel=0.03
    )
    status, out, _ = run("calibrate", "evaluate", table, "--topology", calibrated, "--format", "json")
    said = json.loads(out)
    assert status == 0
    assert said["rows"] == 24
    assert said["mape_percent"] < 1.0
    assert said["mape_large_percent"] < 1.0
    assert said["collectives"]["all_gather"]["mape_percent"] == said["mape_percent"]
    again = tmp_path / "again.yaml"
    assert run("calibrate", "network", table, "-t", calibrated, "-o", again)[0] == 0
    assert again.read_text() == calibrated.read_text()


def test_what_was_measured_beside_products_becomes_the_slow_downs_of_the_topology(run: Run, tmp_path: Path) -> None:
    """The median of three sizes; a row without either says nothing."""
    sizes = [(2**20, "1.1,1.5"), (2**21, "1.3,1.6"), (2**22, "1.2,1.4"), (2**10, ",")]
    lines = [f"all_reduce,8,{nbytes},{10 + nbytes / 1e5},{beside}" for nbytes, beside in sizes]
    header = "collective,num_gpus,bytes,latency_us,compute_slowdown,collective_slowdown"
    table, made = tmp_path / "t.csv", tmp_path / "box.yaml"
    table.write_text("\n".join([header, *lines]) + "\n")
    status, _, err = run("calibrate", "network", table, "-t", "switch(8, bandwidth=250 GB/s)", "-o", made)
    assert status == 0
    assert "compute slowdown: all_reduce 1.2" in err
    conditions = conditions_of(Topology.load(made))
    assert conditions.interference.computation["all_reduce"] == 1.2
    assert conditions.interference.communication["all_reduce"] == 1.5


def test_a_topology_says_that_it_is_calibrated(run: Run) -> None:
    for name, said in (("dgx-h100", True), ("dgx-h100(calibration=none)", False), ("dgx-b200", True)):
        status, out, _ = run("topology", name)
        assert status == 0
        assert ("collectives are calibrated" in out) is said


def test_what_was_not_measured_again_is_kept(run: Run, tmp_path: Path, table: Path) -> None:
    calibrated = tmp_path / "mine.yaml"
    assert run("calibrate", "network", table, "-t", "dgx-h100", "-o", calibrated)[0] == 0
    found, shipped = calibration_of(Topology.load(calibrated)), stored.shipped("dgx-h100")
    assert found is not None
    assert found.kinds["all_reduce"] == shipped.kinds["all_reduce"]
    assert found.kinds["all_gather"] != shipped.kinds["all_gather"]


def test_online_moves_what_there_is(run: Run, tmp_path: Path, table: Path) -> None:
    moved = tmp_path / "moved.yaml"
    assert run("calibrate", "network", table, "-t", "dgx-h100", "-o", moved, "--online")[0] == 0
    found, shipped = calibration_of(Topology.load(moved)), stored.shipped("dgx-h100")
    assert found is not None
    assert found.kinds["all_gather"].curves == shipped.kinds["all_gather"].curves
    assert off(found, 8, 2**26) < off(shipped, 8, 2**26)
    status, _, err = run("calibrate", "network", table, "-t", "switch(8, bandwidth=1 GB/s)", "-o", moved, "--online")
    assert status == 2
    assert "is not calibrated, so that there is nothing to adjust" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("calibration: 5", "calibration: 5 is not a calibration; write none, the name"),
        ("calibration: dgx-2", "'dgx-2' has no calibration"),
        ("calibration: {gpus_per_node: 8}", "'collectives' is missing"),
        ("calibration: {gpus_per_node: 8, collectives: {all_redcue: {}}}", "unknown collective 'all_redcue'"),
        ("calibration: {gpus_per_node: 8, collectives: {all_reduce: {groups: {}}}}", "holds no group size"),
        ("calibration: {gpus_per_node: 8, collectives: {}}", "collectives: holds no collective; give one, or write"),
        (
            "calibration: {gpus_per_node: 8, collectives: {all_reduce: {groups: "
            "{2: {latency: 1.0e-6, ceiling: -1, steepness: 0.5, middle: 1}}}}}",
            "ceiling: -1 is not a number above 0",
        ),
        (
            "calibration: {gpus_per_node: 8, collectives: {all_reduce: {groups: "
            "{2: {latency: 1.0e-6, ceiling: 1, steepness: 1.5, middle: 1}}}}}",
            "1.5 is above 1, so that more bytes would take less time",
        ),
        (
            "calibration: {gpus_per_node: 8, collectives: {all_reduce: {groups: "
            "{2: {latency: 1.0e-6, ceiling: 1, steepness: 0.5, middle: 1e6}}}}}",
            "1e+06 is not a logarithm of bytes; write for example 13.9 for 1 MiB",
        ),
        (
            "calibration: {gpus_per_node: 8, collectives: {all_reduce: {correction: [0, 0, 99, 0], groups: "
            "{2: {latency: 1.0e-6, ceiling: 1, steepness: 0.5, middle: 1}}}}}",
            "99 is not a weight of the correction",
        ),
        (
            "calibration: {gpus_per_node: 4, collectives: {all_reduce: {groups: "
            "{2: {latency: 1.0e-6, ceiling: 1, steepness: 0.5, middle: 1}}}}}",
            "gpus_per_node: the nodes of the topology have 8 GPUs, not 4; write 8, or calibrate such nodes",
        ),
    ],
)  # fmt: skip
def test_a_wrong_calibration_is_said_with_its_key(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(f"{{preset: dgx-h100, nodes: 2,\n{text}}}\n")
    with pytest.raises(TopologyError, match=r"t\.yaml:2") as error:
        calibration_of(Topology.load(path))
    assert said in str(error.value)


def test_numbers_may_be_written_without_a_point(tmp_path: Path) -> None:
    """YAML takes 1e-5 for text. The latency, and half of 1 MB at 1 GB/s."""
    group = "{2: {latency: 1e-5, ceiling: 1e9, steepness: 1, middle: -100}}"
    path = tmp_path / "t.yaml"
    path.write_text(
        f"preset: dgx-h100\ncalibration: {{gpus_per_node: 8, collectives: {{all_gather: {{groups: {group}}}}}}}"
    )
    network = AnalyticalNetwork(simpy.Environment(), Topology.load(path))
    assert network.seconds("all_gather", range(2), 1e6) == pytest.approx(10e-6 + 500e-6)


@pytest.mark.parametrize(("gpus", "said"), [(9, "9 GPUs are not evenly distributed over 2 nodes"), (0, "0' is not")])
def test_rows_that_a_topology_has_no_place_for_are_not_fitted(run: Run, tmp_path: Path, gpus: int, said: str) -> None:
    path, destination = tmp_path / "t.csv", tmp_path / "t.yaml"
    path.write_text(f"collective,num_gpus,bytes,latency_us\nall_reduce,{gpus},8,30\n")
    status, _, err = run("calibrate", "network", path, "-t", "dgx-h100", "-o", destination)
    assert (status, said in err, destination.exists()) == (2, True, False)


def test_a_wrong_section_is_not_copied_into_a_calibrated_topology(run: Run, tmp_path: Path) -> None:
    table, system, destination = tmp_path / "t.csv", tmp_path / "system.yaml", tmp_path / "calibrated.yaml"
    table.write_text("collective,num_gpus,bytes,latency_us\nall_reduce,8,8,30\n")
    system.write_text("preset: dgx-h100\nslow_gpus: {0: -2}\n")
    status, _, err = run("calibrate", "network", table, "-t", system, "-o", destination)
    assert (status, "system.yaml:2: slow_gpus" in err, destination.exists()) == (2, True, False)


def test_groups_that_do_not_fit_are_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("collective,num_gpus,bytes,latency_us\nall_reduce,16,8,30\n")
    status, _, err = run("calibrate", "evaluate", path, "--topology", "switch(8, bandwidth=1 GB/s)")
    assert status == 2
    assert err.count("\n") == 1
    status, out, _ = run("calibrate", "evaluate", path, "--topology", "dgx-h100", "--format", "json")
    assert json.loads(out)["rows"] == 1


def test_what_ships_is_within_its_claim_on_the_rows_that_are_here() -> None:
    from validation import collectives
    from validation.report import DataAbsent

    for machine in collectives.MACHINES:
        try:
            rows = machine.rows()
        except DataAbsent as absent:
            pytest.skip(str(absent))
        one = judging.judged(rows, judging.predict(Topology.load(machine.preset), rows))
        assert one.large is not None
        assert one.small is not None
        assert one.large.mape_percent < 6.0
        assert one.small.mape_percent < 15.0


def test_sizes_that_one_machine_lacks_are_known_from_another_of_its_generation() -> None:
    """Both switch protocols at 1 MiB, where the time jumps by half; the second has no row from 512 KiB to 4 MiB."""

    def seconds(nbytes: float) -> float:
        return (1e-5 + nbytes / 1e11) * (1.5 if nbytes >= 2**20 else 1.0)

    known = [MeasuredCollective("all_gather", 8, size, seconds(size)) for size in SIZES]
    gap = [replace(row, seconds=0.9 * row.seconds) for row in known if not 2**19 <= row.nbytes <= 2**22]
    fit = JointFit([MachineRows("first", "one", known), MachineRows("second", "one", gap)])
    missing = [MeasuredCollective("all_gather", 8, 2.0**power, 0.0) for power in (19, 20, 21, 22)]
    for row, said in zip(missing, fit.seconds("second", missing), strict=True):
        assert said == pytest.approx(0.9 * seconds(row.nbytes), rel=0.05)


def test_other_group_sizes_of_an_a100_machine() -> None:
    from validation import collectives
    from validation.report import DataAbsent

    try:
        percent = collectives.other_groups("a100").percent
    except DataAbsent as absent:
        pytest.skip(str(absent))
    assert set(percent) == {3, 5, 6, 7}
    assert max(percent.values()) < 2.0


def test_between_nodes_the_median_cluster_is_within_the_claim() -> None:
    from validation import internode
    from validation.report import DataAbsent

    try:
        assert all(row.holds for row in internode.rows())
    except DataAbsent as absent:
        pytest.skip(str(absent))


@pytest.mark.parametrize(("kind", "growth"), [("all_reduce", 1), ("all_gather", 4), ("all_to_all", 4)])
def test_small_collectives_grow_with_the_hops_between_nodes_and_an_all_to_all_with_its_peers(
    kind: CollectiveKind, growth: float
) -> None:
    """From 64 nodes to 256 a tree gets as many levels as from 16 to 64; a ring, and an all-to-all, four times as many ranks."""
    few, some, many = (
        AnalyticalNetwork(simpy.Environment(), Topology.load(f"dgx-h100(nodes={nodes})")).seconds(
            kind, range(8 * nodes), 1024.0
        )
        for nodes in (16, 64, 256)
    )
    assert few < some < many
    assert (many - some) / (some - few) == pytest.approx(growth, rel=0.01)


def test_a_collective_of_no_bytes_takes_its_latency() -> None:
    for name in ("dgx-a100", "dgx-h100(gpus=16)", "dgx-b200(gpus=64)"):
        topology = Topology.load(name)
        for kind in ("all_reduce", "all_to_all", "all_gather"):
            seconds = alone(topology, kind, tuple(range(len(topology.gpus))), 0.0)
            assert 0 < seconds <= alone(topology, kind, tuple(range(len(topology.gpus))), 8.0)
