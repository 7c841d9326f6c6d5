"""DeepEP's kernels: how many GPUs and nodes a token reaches, what goes over which link, and how long it takes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import simpy

from triosim.networks import AnalyticalNetwork, PacketNetwork, Topology
from triosim.networks.calibration import deepep
from triosim.networks.calibration.deepep import (
    BetweenNodes,
    DeepEPCollectives,
    DeepEPConstants,
    DeepEPSystem,
    LowLatencyKernel,
    NormalKernel,
    constants,
    kernel_time,
)
from triosim.networks.collectives.expert_exchange import Exchange, exchange, reached
from triosim.tasks import DeepEP
from validation import deepep as validation
from validation.report import DataAbsent

#: 12 tokens of 100 bytes, each for two of four experts.
SMALL = DeepEP("dispatch", 12, 100.0, 2, 4)
#: DeepSeek-V3's: 4,096 tokens of 7,168 values in fp8 with scales, eight of 256 experts.
LARGE = DeepEP("dispatch", 4096, 7392.0, 8, 256)


# ---- how far a token goes -------------------------------------------------------------------------------------------


def test_two_of_four_experts_miss_one_of_them_half_of_the_time() -> None:
    """Not among the first: 3/4; nor the second: 2/3."""
    assert reached(1, SMALL) == pytest.approx(1 - 3 / 4 * 2 / 3)
    assert reached(2, SMALL) == pytest.approx(1 - 2 / 4 * 1 / 3)
    assert reached(3, SMALL) == reached(4, SMALL) == 1


def test_a_token_that_keeps_two_of_four_groups_reaches_half_of_the_groups() -> None:
    """Eight experts in four groups. A kept group of two of the four experts left is missed with 2/4 x 1/3."""
    limited = DeepEP("dispatch", 1, 1.0, 2, 8, groups=4, kept_groups=2)
    assert reached(2, limited) == pytest.approx(1 / 2 * 5 / 6)
    # Two groups: of the six pairs of groups one has both of them, four have one.
    assert reached(4, limited) == pytest.approx(4 / 6 * 5 / 6 + 1 / 6)
    assert reached(8, limited) == 1


# ---- what goes over which link --------------------------------------------------------------------------------------


def test_a_token_crosses_once_to_each_node_and_is_forwarded_there() -> None:
    """Two nodes of two GPUs with an expert each: 6 tokens of a GPU go to each GPU, and 10 (5/6) to each node."""
    moved = exchange(SMALL, [[0, 1], [2, 3]])
    assert {edge[:2]: edge.nbytes for edge in moved.between} == pytest.approx(
        {(0, 2): 1000, (2, 0): 1000, (1, 3): 1000, (3, 1): 1000}
    )
    # GPU 0 forwards to GPU 1 the tokens of its own and those of GPU 2.
    assert {edge[:2]: edge.nbytes for edge in moved.inside} == pytest.approx(
        {(0, 1): 1200, (1, 0): 1200, (2, 3): 1200, (3, 2): 1200}
    )
    assert (moved.ranks, moved.nodes) == (4, 2)
    assert moved.messages == pytest.approx(24)
    assert moved.forwards == pytest.approx(20)


def test_a_combine_goes_the_same_way_back() -> None:
    there, back = (exchange(replace(SMALL, step=step), [[0, 1], [2, 3]]) for step in ("dispatch", "combine"))
    for one, other in ((there.inside, back.inside), (there.between, back.between)):
        assert {(to, source): nbytes for source, to, nbytes in one} == {edge[:2]: edge.nbytes for edge in other}


def test_the_low_latency_kernels_send_a_token_to_each_of_its_experts() -> None:
    """Of 24 choices 6 are of each GPU."""
    moved = exchange(replace(SMALL, low_latency=True), [[0, 1], [2, 3]])
    assert [edge.nbytes for edge in moved.inside] == pytest.approx([600] * 4)
    assert [edge.nbytes for edge in moved.between] == pytest.approx([600] * 8)
    assert moved.messages == pytest.approx(24)


def test_tokens_that_all_choose_one_gpu_go_there_alone() -> None:
    """Each token has both of its experts on GPU 3."""
    moved = exchange(SMALL.with_rows([0, 0, 0, 24] * 4), [[0, 1], [2, 3]])
    assert {edge[:2]: edge.nbytes for edge in moved.between if edge.nbytes} == {(0, 2): 1200, (1, 3): 1200}
    assert {edge[:2]: edge.nbytes for edge in moved.inside if edge.nbytes} == {(2, 3): 2400}
    assert moved.messages == 48  # that GPU 3 receives


def test_the_order_of_a_group_is_that_of_its_rows() -> None:
    """Ranks 9 and 1 are on two nodes: the group begins with the second."""
    rows = (0.0, 24.0, 0.0, 0.0, 24.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 24.0, 0.0, 0.0, 24.0, 0.0)
    network = PacketNetwork(simpy.Environment(), Topology.load("dgx-h100(gpus=16)"))
    network.env.run(network.exchange(SMALL.with_rows(rows), (9, 1, 8, 0)))
    between = {name: nbytes for name, nbytes in network.bytes_by_link().items() if nbytes and "fabric" in name}
    assert set(between.values()) == {1200.0}


# ---- how long it takes ----------------------------------------------------------------------------------------------

NORMAL = NormalKernel(10e-6, 1e-9, 6e-6, 2e-6, 1e-8, 4e-6, 2e-8, 0.5)
LOW = LowLatencyKernel(5e-6, 1e-9, 1e-6, 1e-7, 1e-9)
SYSTEM = DeepEPSystem("mine", 450e9, {"dispatch": NORMAL}, {"dispatch": LOW})
WIDE = BetweenNodes(3e-6, 5e-8, ((2, 1.0), (8, 0.25)))
FITTED = DeepEPConstants("", (SYSTEM,), {"dispatch": WIDE}, {"dispatch": WIDE})


def test_a_kernel_is_launched_filled_and_limited_by_its_multiprocessors() -> None:
    """150 tokens of 100 bytes to 3 GPUs: 450 messages of 3 us, 150 tokens of 6 us, by 20 multiprocessors."""
    kernel = replace(SMALL, tokens=150, sms=20)
    time = kernel_time(kernel, Exchange((), (), 4, 1, 450, 0), 0.0, 0.0, SYSTEM, FITTED)
    assert time.latency == pytest.approx(10e-6 + 0.1e-6 + 3e-6)
    assert time.moving == pytest.approx((450 * 3e-6 + 150 * 6e-6) / 20)


@pytest.mark.parametrize(("ranks", "sms", "published"), [(8, 16, 550e9), (16, 32, 523e9), (32, 32, 484e9)])
def test_hybridep_dispatches_as_fast_as_it_publishes(ranks: int, sms: int, published: float) -> None:
    """Of the bytes that a GPU of a GB200 rack receives: 4,096 tokens of 7,168 values in bf16, eight experts a GPU."""
    kernel = DeepEP("dispatch", 4096, 14336.0, 8, 8 * ranks, sms=sms, library="hybridep")
    rack = Topology.load(f"gb200-nvl72(gpus={ranks}, gpus_per_node={ranks})")
    seconds = DeepEPCollectives(rack, rack).seconds(range(ranks), kernel)
    received = 4096 * ranks * reached(8, kernel) * 14336
    assert received / seconds == pytest.approx(published, rel=0.12)
    assert DeepEPCollectives(rack, rack).seconds(range(ranks), replace(kernel, library="deepep")) > seconds


def test_over_nodes_there_are_hops_forwards_and_cards() -> None:
    """Four nodes: two hops, 5 us for each of 300 forwards; the card reaches 62.5%, halfway from 2 to 8 in logarithms."""
    kernel = replace(SMALL, tokens=150, sms=20)
    time = kernel_time(kernel, Exchange((), (), 4, 4, 450, 300), 0.0, 0.0, SYSTEM, FITTED)
    assert time.latency == pytest.approx(13.1e-6 + 6e-6)
    assert time.moving == pytest.approx((450 * 3e-6 + 150 * 6e-6 + 300 * 5e-6) / 20)
    assert WIDE.efficiency(4) == pytest.approx(0.625)
    assert WIDE.efficiency(64) == 0.25
    slow_card = kernel_time(kernel, Exchange((), (), 4, 4, 0, 0), 0.0, 1.0, SYSTEM, FITTED)
    assert slow_card.moving == pytest.approx(1 / 0.625, rel=1e-6)


def test_limits_that_are_equal_cost_more_than_one() -> None:
    """The fourth root of two: the links need as long as the multiprocessors."""
    kernel = replace(SMALL, tokens=150, sms=20)
    alone = (450 * 3e-6 + 150 * 6e-6) / 20
    time = kernel_time(kernel, Exchange((), (), 4, 1, 450, 0), alone * 0.5, 0.0, SYSTEM, FITTED)
    assert time.moving == pytest.approx(2**0.25 * alone)


def test_a_low_latency_kernel_looks_at_every_expert_of_its_gpu() -> None:
    """Four experts on two GPUs; 24 copies of 0.1 us and 0.1 us for 100 bytes."""
    kernel = replace(SMALL, low_latency=True)
    time = kernel_time(kernel, Exchange((), (), 2, 1, 24, 0), 0.0, 0.0, SYSTEM, FITTED)
    assert time.latency == pytest.approx(5e-6 + 0.1e-6 + 2e-6)
    assert time.moving == pytest.approx(24 * 0.2e-6)


def test_a_gpu_that_nobody_measured_takes_the_nearest() -> None:
    assert constants().nearest(900e9, "gb200-nvl4").name == "gb200-nvl4"
    assert constants().nearest(300e9, "dgx-a100").name == "dgx-h100"
    assert constants().nearest(900e9, "gb300-nvl72").name == "gb300-nvl4"


def test_a_gpu_in_deepeps_own_table_is_near_what_was_fitted_to_others() -> None:
    """H800s: 200 GB/s of NVLink, 24 multiprocessors. It says 153 and 158 GB/s in a node, 58 and 57 GB/s over four."""
    for row in validation.published():
        assert row.error < 0.15


# ---- on a network ---------------------------------------------------------------------------------------------------


def alone(network_kind: type, topology: str, kernel: DeepEP, ranks: int) -> float:
    env = simpy.Environment()
    env.run(network_kind(env, Topology.load(topology)).exchange(kernel, tuple(range(ranks))))
    return float(env.now)


@pytest.mark.parametrize("gpus", [8, 16, 32])
@pytest.mark.parametrize("kernel", [LARGE, replace(LARGE, step="combine"), replace(LARGE, tokens=64, low_latency=True)])
def test_alone_it_takes_the_same_in_packet_and_analytical(gpus: int, kernel: DeepEP) -> None:
    packet, closed = (alone(one, f"dgx-h100(gpus={gpus})", kernel, gpus) for one in (PacketNetwork, AnalyticalNetwork))
    assert packet == pytest.approx(closed, rel=1e-9)


def test_more_tokens_and_more_nodes_take_longer() -> None:
    times = [
        [
            alone(AnalyticalNetwork, f"dgx-h100(gpus={gpus})", replace(LARGE, tokens=tokens), gpus)
            for tokens in (1, 64, 4096)
        ]
        for gpus in (8, 16, 32, 64, 128, 256)
    ]
    for one in times:
        assert one == sorted(one)
    for one in zip(*times, strict=True):
        assert list(one) == sorted(one)


def test_more_multiprocessors_are_faster_until_links_are_full() -> None:
    few, default, many = (alone(AnalyticalNetwork, "dgx-h100", replace(LARGE, sms=sms), 8) for sms in (4, 20, 24))
    assert few > 3 * default > 3 * many > 2.5 * default


def test_cards_carry_each_token_once_for_each_other_node() -> None:
    """Two nodes: a token reaches the other one but in 128 x 127 x ... 121 of 256 x 255 x ... 249 cases."""
    env = simpy.Environment()
    network = PacketNetwork(env, Topology.load("dgx-h100(gpus=16)"))
    env.run(network.exchange(LARGE, tuple(range(16))))
    missed = math.comb(128, 8) / math.comb(256, 8)
    card = [nbytes for name, nbytes in network.bytes_by_link().items() if nbytes and "fabric" in name]
    assert card == pytest.approx([4096 * 7392 * (1 - missed)] * len(card))
    assert len(card) == 32  # each of 16 cards, in both directions


def test_two_at_once_share_the_links() -> None:
    """The bytes of both take twice as long, after one launch."""
    env = simpy.Environment()
    network = PacketNetwork(env, Topology.load("dgx-h100(gpus=16)"))
    ranks = tuple(range(16))
    latency = deepep.DeepEPCollectives(network.topology, network.topology).plan(ranks, LARGE).steady.latency
    both = [network.exchange(LARGE, ranks) for _ in range(2)]
    env.run(simpy.AllOf(env, both))
    once = alone(PacketNetwork, "dgx-h100(gpus=16)", LARGE, 16)
    assert env.now == pytest.approx(latency + 2 * (once - latency), rel=1e-9)


def test_a_slowed_card_makes_it_longer() -> None:
    """Half the bandwidth, set while nothing is sent: the bytes of that card take twice as long."""
    env = simpy.Environment()
    network = PacketNetwork(env, Topology.load("dgx-h100(gpus=32)"))
    ranks = tuple(range(32))
    plan = deepep.DeepEPCollectives(network.topology, network.topology).plan(ranks, LARGE)
    card = next(
        link for link in network.topology.links.values() if link.source == "gpu0" and "fabric" in link.destination
    )
    network.set_bandwidth(card.source, card.destination, card.bandwidth / 2)
    env.run(network.exchange(LARGE, ranks))
    once = alone(PacketNetwork, "dgx-h100(gpus=32)", LARGE, 32)
    assert env.now == pytest.approx(2 * once - plan.steady.latency, rel=1e-6)


def test_links_as_they_are_take_their_latency_and_bytes() -> None:
    """Four GPUs on a switch at 1 GB/s: 600 bytes from each to each of three others, after two hops of 1 us."""
    topology = Topology.from_dict({"topology": "switch", "gpus": 4, "bandwidth": "1 GB/s", "latency": "1 us"})
    env = simpy.Environment()
    network = PacketNetwork(env, topology)
    env.run(network.exchange(SMALL, (0, 1, 2, 3)))
    assert env.now == pytest.approx(2e-6 + 1800e-9)


@pytest.mark.parametrize(
    ("topology", "gpus"),
    [
        ("dgx-h100(gpus=16)", 8),
        ("dgx-1-v100(gpus=16)", 8),
        ("gb200-nvl4(gpus=8)", 4),
        ("dgx-h100", 8),
        ("ring(6, bandwidth=1 GB/s, latency=1 us)", 6),
    ],
)
def test_a_node_is_what_the_topology_is_made_of(topology: str, gpus: int) -> None:
    assert deepep.gpus_per_node(Topology.load(topology)) == gpus


# ---- against measurements -------------------------------------------------------------------------------------------


def test_errors_are_what_is_claimed() -> None:
    try:
        rows = validation.rows()
    except DataAbsent as absent:
        pytest.skip(str(absent))
    assert [row.what for row in rows if not row.holds] == []
