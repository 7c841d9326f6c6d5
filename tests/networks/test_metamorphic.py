"""Changes of a system whose effect on a collective is known without a figure: what is faster is not slower, more is not less.

Systems are drawn: plain shapes, the notation of dimensions, mappings of several nodes, presets with changed keys. Each
statement is checked on a few of them in the fast set, and on hundreds in the slow one, in ``analytical`` and in ``packet``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from itertools import pairwise
from typing import Any, get_args

import pytest
import simpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from triosim.networks import AnalyticalNetwork, PacketNetwork, Topology
from triosim.networks.topology.presets import PRESETS
from triosim.tasks import CollectiveKind

KINDS = get_args(CollectiveKind)
TOLERANCE = 1.01
System = Mapping[str, Any]  # the keys of a topology file

#: A few examples in the fast set, hundreds in the slow one.
examples = pytest.mark.parametrize("examples", [12, pytest.param(300, marks=pytest.mark.slow)])
networks = pytest.mark.parametrize("network", [AnalyticalNetwork, PacketNetwork])

bandwidths = st.floats(1, 900).map(lambda found: round(found, 1) * 1e9)
latencies = st.sampled_from([0.0, 1e-7, 5e-7, 1e-6, 2e-6, 1e-5])
factors = st.sampled_from([1.01, 1.1, 1.5, 2.0, 3.0, 10.0])
kinds = st.sampled_from(KINDS)
sizes = st.one_of(st.sampled_from([2.0**power for power in range(0, 33, 2)]), st.floats(1, 1e10))
wires = {"bandwidth": bandwidths, "latency": latencies}


def seconds(
    network: Callable[..., Any], system: System, kind: CollectiveKind, nbytes: float, ranks: range | None = None
) -> float:
    """Return what a collective of some ranks, by default all of them, takes on an idle system."""
    topology = Topology.from_dict(system)
    env = simpy.Environment()
    group = range(len(topology.gpus)) if ranks is None else ranks
    env.run(network(env, topology).collective(kind, group, nbytes))
    return env.now


def holds(examples: int, **drawn: Any) -> Callable[[Callable[..., None]], None]:
    """Check a statement on so many drawn examples, the same ones at each run."""

    def check(statement: Callable[..., None]) -> None:
        silent = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
        tried = settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=silent)
        tried(given(**drawn)(statement))()

    return check


@st.composite
def plain_shapes(draw: st.DrawFn) -> System:
    shape = draw(st.sampled_from(["ring", "switch", "fully_connected", "bus", "tree", "fat_tree", "mesh", "torus"]))
    system: dict[str, Any] = {"topology": shape, **{key: draw(value) for key, value in wires.items()}}
    if shape in ("mesh", "torus"):
        sides = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).filter(lambda found: math.prod(found) > 1))
        return system | {"shape": sides}
    if shape == "switch":
        system["in_switch_reduction"] = draw(st.booleans())
    return system | {"gpus": draw(st.integers(2, 24))}


@st.composite
def notations(draw: st.DrawFn) -> System:
    blocks = draw(st.lists(st.sampled_from(["Ring", "FC", "Switch"]), min_size=1, max_size=3))
    parts = [f"{block}({draw(st.integers(2, 5))})" for block in blocks]
    return {
        "topology": "_".join(parts),
        "bandwidth": [draw(bandwidths) for _ in parts],
        "latency": [draw(latencies) for _ in parts],
    }


@st.composite
def nodes(draw: st.DrawFn, ratio: float = 0.5) -> System:
    """Nodes as docs/topology-format.md writes them; a card has ``ratio`` of the bandwidth of a link, or less."""
    shape = draw(st.sampled_from(["switch", "switch", "fully_connected", "ring", "pcie_tree", "hybrid_cube_mesh"]))
    per_node = 8 if shape == "hybrid_cube_mesh" else draw(st.sampled_from([2, 4, 8]))
    system: dict[str, Any] = {"topology": shape, "gpus_per_node": per_node, "nodes": draw(st.integers(1, 6))}
    if shape == "switch":
        system["in_switch_reduction"] = draw(st.booleans())
    system |= {key: draw(value) for key, value in wires.items()}
    card = {
        "bandwidth": system["bandwidth"] * ratio * draw(st.sampled_from([1.0, 0.7, 0.3, 0.1, 0.01])),
        "latency": draw(latencies),
        "gpus_per_nic": draw(st.sampled_from([1, 1, 2])),
    }
    return system | {"inter_node": card}


@st.composite
def changed_presets(draw: st.DrawFn) -> System:
    preset = draw(st.sampled_from(["dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "dgx-1-v100", "tpu-v4"]))
    return {"preset": preset, "gpus": 8 * draw(st.integers(1, 6)), **{key: draw(value) for key, value in wires.items()}}


systems = st.one_of(plain_shapes(), notations(), nodes(), changed_presets())

#: The presets that NCCL runs on.
MACHINES = {name: preset.spec for name, preset in PRESETS.items() if name not in ("tpu-v4", "wafer-84")}
machines = st.sampled_from(sorted(MACHINES))
counts = st.sampled_from([1, 2, 3, 4, 6, 8])


def preset(name: str, nodes: int, **keys: Any) -> System:
    """Return some nodes of a preset."""
    spec = MACHINES[name]
    return {"preset": name, "gpus": nodes * (spec.gpus_per_node or spec.gpus or 8), **keys}


def figures(name: str) -> dict[str, Any]:
    """Return the keys of a preset that say how fast its links are, with the preset's own figures."""
    spec = MACHINES[name]
    found: dict[str, Any] = {"bandwidth": spec.bandwidth, "latency": spec.latency}
    if spec.inter_node is not None:
        found["inter_node"] = {key: getattr(spec.inter_node, key) for key in spec.inter_node.__slots__}
    return found


def of_wires(system: System, key: str) -> list[tuple[Any, ...]]:
    """Return where a system says the bandwidth, or the latency, of one kind of its links."""
    said = system[key]
    found: list[tuple[Any, ...]] = (
        [(key, number) for number in range(len(said))] if isinstance(said, list) else [(key,)]
    )
    return found + ([("inter_node", key)] if "inter_node" in system else [])


def scaled(system: System, path: tuple[Any, ...], factor: float) -> System:
    """Return a system with another figure at one place."""
    changed: Any = deepcopy(dict(system))
    where = changed
    for step in path[:-1]:
        where = where[step]
    where[path[-1]] *= factor
    return changed  # type: ignore[no-any-return]


@examples
@networks
def test_more_bandwidth_is_never_slower(network: Any, examples: int) -> None:
    @holds(examples, system=systems, kind=kinds, nbytes=sizes, factor=factors, data=st.data())
    def statement(system: System, kind: CollectiveKind, nbytes: float, factor: float, data: st.DataObject) -> None:
        wider = scaled(system, data.draw(st.sampled_from(of_wires(system, "bandwidth"))), factor)
        assert seconds(network, wider, kind, nbytes) <= TOLERANCE * seconds(network, system, kind, nbytes)


@examples
@networks
def test_a_faster_link_is_never_slower(network: Any, examples: int) -> None:
    """One link, in one direction, among others that stay as they are: at half, at its own, or at three times its speed."""
    pairs = st.sampled_from([(0.5, 0.95), (0.95, 1.0), (1.0, 1.05), (1.0, 3.0)])
    some = st.one_of(plain_shapes(), notations(), nodes())

    @holds(examples, system=some, kind=kinds, nbytes=sizes, pair=pairs, which=st.integers(0, 1000))
    def statement(system: System, kind: CollectiveKind, nbytes: float, pair: tuple[float, float], which: int) -> None:
        links = list(Topology.from_dict(system).links.values())
        link = links[which % len(links)]
        one = {"from": link.source, "to": link.destination}
        slow, fast = ({**system, "overrides": [{**one, "bandwidth": link.bandwidth * speed}]} for speed in pair)
        assert seconds(network, fast, kind, nbytes) <= TOLERANCE * seconds(network, slow, kind, nbytes)


@examples
@networks
def test_less_latency_is_never_slower(network: Any, examples: int) -> None:
    @holds(examples, system=systems, kind=kinds, nbytes=sizes, factor=factors, data=st.data())
    def statement(system: System, kind: CollectiveKind, nbytes: float, factor: float, data: st.DataObject) -> None:
        nearer = scaled(system, data.draw(st.sampled_from(of_wires(system, "latency"))), 1 / factor)
        assert seconds(network, nearer, kind, nbytes) <= TOLERANCE * seconds(network, system, kind, nbytes)


@examples
@networks
def test_more_cards_are_never_slower(network: Any, examples: int) -> None:
    """Twice as many cards, each of the same bandwidth."""

    @holds(examples, system=nodes(), kind=kinds, nbytes=sizes, parts=st.sampled_from([1, 2, 4]))
    def statement(system: System, kind: CollectiveKind, nbytes: float, parts: int) -> None:
        shared = max(system["gpus_per_node"] // parts, 2)
        few = {**system, "inter_node": {**system["inter_node"], "gpus_per_nic": shared}}
        many = {**system, "inter_node": {**system["inter_node"], "gpus_per_nic": shared // 2}}
        assert seconds(network, many, kind, nbytes) <= TOLERANCE * seconds(network, few, kind, nbytes)


@examples
@networks
def test_more_bytes_never_take_less_time(network: Any, examples: int) -> None:
    @holds(examples, system=systems, kind=kinds, nbytes=sizes, factor=factors)
    def statement(system: System, kind: CollectiveKind, nbytes: float, factor: float) -> None:
        fewer = seconds(network, system, kind, nbytes)
        assert fewer <= TOLERANCE * seconds(network, system, kind, factor * nbytes)


@examples
@networks
def test_more_nodes_never_take_less_time(network: Any, examples: int) -> None:
    """At a fixed number of GPUs and cards a node, the same bytes. Cards have a quarter of the bandwidth of a link, or less.

    (Of an all-to-all less is left inside a node where there are more nodes, and faster cards would carry the rest sooner.)
    """

    @holds(examples, system=nodes(0.25), kind=kinds, nbytes=sizes, more=st.integers(1, 6))
    def statement(system: System, kind: CollectiveKind, nbytes: float, more: int) -> None:
        larger = {**system, "nodes": system["nodes"] + more}
        assert seconds(network, system, kind, nbytes) <= TOLERANCE * seconds(network, larger, kind, nbytes)


@examples
@networks
def test_no_bytes_take_the_latency_of_a_collective_alone(network: Any, examples: int) -> None:
    """No more than a byte takes; on plain links without latency nothing."""

    @holds(examples, system=st.one_of(plain_shapes(), notations(), nodes()), kind=kinds)
    def statement(system: System, kind: CollectiveKind) -> None:
        launch = seconds(network, system, kind, 0)
        assert launch <= seconds(network, system, kind, 1)
        if "inter_node" in system:
            return
        near = system
        for path in of_wires(system, "latency"):
            near = scaled(near, path, 0.0)
        assert seconds(network, near, kind, 0) == 0.0


@examples
def test_what_stays_in_a_node_takes_no_card(examples: int) -> None:
    @holds(examples, system=nodes(), kind=kinds)
    def statement(system: System, kind: CollectiveKind) -> None:
        network = PacketNetwork(simpy.Environment(), Topology.from_dict(system))
        network.env.run(network.collective(kind, range(system["gpus_per_node"]), 1e6))
        used = {name for name, carried in network.bytes_by_link().items() if carried}
        assert used
        assert not any("fabric" in name or "nic" in name for name in used)


@examples
def test_what_a_link_carries_is_what_the_time_was_priced_at(examples: int) -> None:
    """The time of a plain system is its latency, what its busiest link needs for its bytes, and at most a quarter for filling.

    (The pipeline of a system of several dimensions is filled and drained; on a bus and in trees, flows share links.)
    """
    regular = st.one_of(
        plain_shapes().filter(lambda system: system["topology"] not in ("bus", "tree", "fat_tree")), notations()
    )

    @holds(examples, system=regular, kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]), nbytes=sizes)
    def statement(system: System, kind: CollectiveKind, nbytes: float) -> None:
        topology = Topology.from_dict(system)
        network = PacketNetwork(simpy.Environment(), topology)
        network.env.run(network.collective(kind, range(len(topology.gpus)), 0))
        launch = network.env.now
        network.env.run(network.collective(kind, range(len(topology.gpus)), nbytes))
        busiest = max(carried / topology.links[name].bandwidth for name, carried in network.bytes_by_link().items())
        moving = network.env.now - 2 * launch
        assert busiest * (1 - 1e-6) - 1e-12 <= moving <= busiest * 1.25 + 4e-10 * network.env.now + launch


# On systems that are priced by what was measured with NCCL


@examples
def test_no_link_carries_more_than_it_can_in_the_time_of_a_collective(examples: int) -> None:
    """All ranks, one of each node, or those of half a node: what their links carry fits into the time at full bandwidth."""

    @holds(
        examples, name=machines, nodes=counts, kind=kinds, nbytes=sizes, which=st.sampled_from(["all", "one", "half"])
    )
    def statement(name: str, nodes: int, kind: CollectiveKind, nbytes: float, which: str) -> None:
        topology = Topology.from_dict(preset(name, nodes))
        gpus = len(topology.gpus)
        size = gpus // nodes
        group = {"all": range(gpus), "one": range(0, gpus, size), "half": range(size // 2)}[which]
        network = PacketNetwork(simpy.Environment(), topology)
        if len(group) > 1:
            network.env.run(network.collective(kind, group, nbytes))
        carried = {topology.links[name]: nbytes for name, nbytes in network.bytes_by_link().items()}
        assert all(nbytes <= link.bandwidth * network.env.now * (1 + 1e-9) for link, nbytes in carried.items())


@examples
@networks
def test_bandwidth_makes_no_jumps(network: Any, examples: int) -> None:
    """From 100 GB/s to 1.1 TB/s inside a node, over all that was measured: 5% more never makes up for more than 5%."""
    sweep = [100e9 * 1.05**step for step in range(50)]

    @holds(examples, system=nodes().filter(lambda system: system["topology"] != "ring"), kind=kinds, nbytes=sizes)
    def statement(system: System, kind: CollectiveKind, nbytes: float) -> None:
        times = [seconds(network, {**system, "bandwidth": bandwidth}, kind, nbytes) for bandwidth in sweep]
        assert all(faster <= TOLERANCE * slower <= 1.05 * TOLERANCE**2 * faster for slower, faster in pairwise(times))


@examples
@networks
def test_a_preset_and_the_same_preset_spelled_out_agree(network: Any, examples: int) -> None:
    @holds(examples, name=machines, nodes=counts, kind=kinds, nbytes=sizes, data=st.data())
    def statement(name: str, nodes: int, kind: CollectiveKind, nbytes: float, data: st.DataObject) -> None:
        said = figures(name)
        keys = data.draw(st.lists(st.sampled_from(sorted(said)), min_size=1, unique=True))
        spelled = preset(name, nodes, **{key: said[key] for key in keys})
        expected = seconds(network, preset(name, nodes), kind, nbytes)
        assert seconds(network, spelled, kind, nbytes) == pytest.approx(expected, rel=1e-9)


@examples
@networks
def test_a_preset_with_faster_links_is_never_slower(network: Any, examples: int) -> None:
    """Than the preset as it is, which may be one that was measured."""

    @holds(examples, name=machines, nodes=counts, kind=kinds, nbytes=sizes, factor=factors, data=st.data())
    def statement(
        name: str, nodes: int, kind: CollectiveKind, nbytes: float, factor: float, data: st.DataObject
    ) -> None:
        key = data.draw(st.sampled_from(["bandwidth", "latency"]))
        said = preset(name, nodes, **figures(name))
        path = data.draw(st.sampled_from(of_wires(said, key)))
        faster = scaled(said, path, factor if key == "bandwidth" else 1 / factor)
        slower = scaled(said, path, 1 / factor if key == "bandwidth" else factor)
        usual = seconds(network, preset(name, nodes), kind, nbytes)
        assert seconds(network, faster, kind, nbytes) <= TOLERANCE * usual
        assert usual <= TOLERANCE * seconds(network, slower, kind, nbytes)


@examples
@networks
def test_more_nodes_of_a_preset_never_take_less_time(network: Any, examples: int) -> None:
    @holds(examples, name=machines, nodes=counts, kind=kinds, nbytes=sizes, more=st.integers(1, 8))
    def statement(name: str, nodes: int, kind: CollectiveKind, nbytes: float, more: int) -> None:
        larger = seconds(network, preset(name, nodes + more), kind, nbytes)
        assert seconds(network, preset(name, nodes), kind, nbytes) <= TOLERANCE * larger


@examples
@networks
def test_more_bytes_on_a_preset_never_take_less_time(network: Any, examples: int) -> None:
    """Four times the bytes: from one size to the next, measured times inside a node fall in places, where protocols change."""

    @holds(examples, name=machines, nodes=counts, kind=kinds, nbytes=sizes, factor=st.sampled_from([4.0, 16.0]))
    def statement(name: str, nodes: int, kind: CollectiveKind, nbytes: float, factor: float) -> None:
        more = seconds(network, preset(name, nodes), kind, factor * nbytes)
        assert seconds(network, preset(name, nodes), kind, nbytes) <= TOLERANCE * more


@examples
@networks
def test_no_bytes_on_a_preset_take_at_most_a_launch(network: Any, examples: int) -> None:
    """What one byte takes is all launch and latency."""

    @holds(examples, name=machines, nodes=counts, kind=kinds)
    def statement(name: str, nodes: int, kind: CollectiveKind) -> None:
        if preset(name, nodes)["gpus"] == 1:
            return
        launch = seconds(network, preset(name, nodes), kind, 1)
        assert 0 < seconds(network, preset(name, nodes), kind, 0) <= launch
