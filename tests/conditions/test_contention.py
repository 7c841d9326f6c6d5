"""What a transfer takes of the multiprocessors and of the memory of its GPUs, by hand from data sheets and NCCL's channels.

Steps are taken to wait for memory in 0.3 of their time, where nothing else is said.
"""

from __future__ import annotations

import pytest

import triosim
from triosim import gpus
from triosim.conditions import Interference
from triosim.conditions.contention import Contention, Slowdown, memory_bound
from triosim.models import Llama
from triosim.networks.topology import Topology
from triosim.trace import Operator

NOTHING = Interference()
ALONE = {"compute_slowdown": 1, "collective_slowdown": 1}


def of(kind: str, ranks: range, topology: str, gpu: str = "H100", stated: Interference = NOTHING) -> Slowdown:
    return Contention(stated, gpus.find(gpu), Topology.load(topology), 0.3).slowdown(kind, tuple(ranks))


def test_an_all_gather_in_a_node_has_24_channels_and_moves_each_byte_twice() -> None:
    """24 of 132 multiprocessors are 0.1818, 2 * 450 of 3352 GB/s 0.2685; 0.1818 + 0.3 * (0.2685 - 0.1818) = 0.2078."""
    found = of("all_gather", range(8), "dgx-h100")
    assert found.computation == pytest.approx(1 / (1 - 0.2078), rel=1e-3)
    assert found.communication == pytest.approx(1 + 0.3 * 0.2685, rel=1e-3)


def test_a_switch_that_reduces_leaves_more_to_others() -> None:
    """16 channels are 0.1212 of 132; an A100's switch does not reduce."""
    assert of("all_reduce", range(8), "dgx-h100").computation == pytest.approx(1 / (1 - 0.1654), rel=1e-3)
    reduced, gathered = (of(kind, range(8), "dgx-h100").computation for kind in ("all_reduce", "all_gather"))
    assert reduced < gathered
    assert of("all_reduce", range(8), "dgx-a100", "A100") == of("all_gather", range(8), "dgx-a100", "A100")


def test_between_nodes_there_are_two_channels_for_each_network_card_that_the_group_reaches() -> None:
    """Eight cards of 50 GB/s: 16 channels and 400 GB/s. One GPU of each node has one card: 2 of 132 and 50 GB/s."""
    found = of("all_gather", range(16), "dgx-h100(gpus=16)")
    assert found.computation == pytest.approx(1 / (1 - (0.1212 + 0.3 * (0.2387 - 0.1212))), rel=1e-3)
    found = of("all_gather", range(0, 32, 8), "dgx-h100(gpus=32)")
    assert found.computation == pytest.approx(1 / (1 - (0.01515 + 0.3 * (0.02983 - 0.01515))), rel=1e-3)


def test_boards_on_pcie_have_two_channels() -> None:
    """2 of 142 multiprocessors; 2 * 25 of 864 GB/s."""
    found = of("all_reduce", range(4), "l40s-pcie", "L40S")
    assert found.computation == pytest.approx(1 / (1 - (0.01408 + 0.3 * (0.05787 - 0.01408))), rel=1e-3)


@pytest.mark.parametrize(("kind", "gpu", "count"), [("send", "H100", 2), ("copy", "H100", 1), ("all_reduce", "CPU", 8)])
def test_what_no_multiprocessor_drives_slows_nothing(kind: str, gpu: str, count: int) -> None:
    assert of(kind, range(count), "dgx-h100", gpu) == Slowdown(1.0, 1.0)


def test_a_side_that_the_user_states_has_no_other_factors() -> None:
    stated = Interference(computation={"all_reduce": 1.5})
    assert of("all_reduce", range(8), "dgx-h100", stated=stated).computation == 1.5
    found = of("all_gather", range(8), "dgx-h100", stated=stated)
    assert found == Slowdown(1.0, of("all_gather", range(8), "dgx-h100").communication)


def test_what_waits_for_memory_is_all_but_products_convolutions_and_attention_before_the_optimizer() -> None:
    """3 ms of products, 1 ms of a norm: a quarter; the optimizer is beside nothing."""
    step = [
        Operator(0, "aten::mm", "forward", "fc", (), (), 2e-3),
        Operator(1, "aten::layer_norm", "forward", "norm", (), (), 1e-3),
        Operator(2, "MmBackward0", "backward", "fc", (), (), 1e-3),
        Operator(3, "aten::_fused_adamw_", "optimizer", "optimizer", (), (), 9e-3),
    ]
    assert memory_bound(step) == pytest.approx(0.25)
    assert memory_bound([]) == 0.0


def test_an_unknown_gpu_slows_nothing() -> None:
    contention = Contention(NOTHING, None, Topology.load("dgx-h100"))
    assert not contention
    assert contention.slowdown("all_reduce", tuple(range(8))) == Slowdown(1.0, 1.0)


SMALL = Llama(layers=3, hidden=512, heads=8, kv_heads=8, feed_forward=2048, vocab=4000, sequence=512)
DIVISIONS = [
    ("fsdp=16", {}),
    ("ddp=16", {}),
    ("fsdp=8,dp=2", {}),
    ("tp=2,fsdp=8", {"tp_style": "megatron"}),
    ("pp=2,dp=8", {"schedule": "1f1b", "micro_batches": 4}),
    ("tp=2,pp=2,fsdp=4", {"schedule": "1f1b", "micro_batches": 4}),
]


@pytest.mark.parametrize("topology", ["dgx-h100(gpus=16)", "switch(16, bandwidth=20 GB/s)"])
@pytest.mark.parametrize(("parallel", "more"), DIVISIONS, ids=[parallel for parallel, _ in DIVISIONS])
def test_ranks_that_slow_each_other_are_folded_exactly(topology: str, parallel: str, more: dict[str, object]) -> None:
    trace = triosim.describe(SMALL, batch=1, gpu="H100")
    once, every = (
        triosim.simulate(trace, parallel, topology=topology, batch_size=4, fold=fold, **more) for fold in (True, False)
    )
    assert not any("every rank is simulated" in note for note in once.data.notes)
    assert once.step_time_s == pytest.approx(every.step_time_s, rel=1e-9)
    for rank, other in zip(once.data.ranks, every.data.ranks, strict=True):
        assert rank.compute_s == pytest.approx(other.compute_s, rel=1e-9)


def test_the_timeline_and_the_figures_do_not_depend_on_how_closely_operators_are_followed() -> None:
    """With a timeline each operator is followed, without it all of a task together."""
    trace = triosim.describe(SMALL, batch=1, gpu="H100")
    plain, shown = (
        triosim.simulate(trace, "fsdp=8", topology="dgx-h100", timeline=timeline) for timeline in (False, True)
    )
    assert plain.step_time_s == pytest.approx(shown.step_time_s, rel=1e-9)
    assert any("beside computation" in note for note in plain.data.notes)


def test_the_note_says_how_much_longer_computation_takes_in_one_step_of_several() -> None:
    trace = triosim.describe(SMALL, batch=1, gpu="H100")
    one, four = (
        [
            note
            for note in triosim.simulate(trace, "ddp=8", topology="dgx-h100", iterations=count).data.notes
            if "beside computation" in note
        ]
        for count in (1, 4)
    )
    assert one
    assert one == four


def test_collectives_beside_computing_make_a_step_longer_and_only_those() -> None:
    trace = triosim.describe(SMALL, batch=1, gpu="H100")
    beside, alone = (
        triosim.simulate(trace, "fsdp=8", topology="dgx-h100", conditions=conditions, host_overhead="none").step_time_s
        for conditions in ({}, ALONE)
    )
    assert alone < beside < 1.27 * alone
    single = [triosim.simulate(trace, conditions=conditions).step_time_s for conditions in ({}, ALONE)]
    assert single[0] == single[1]


def test_computations_that_were_measured_together_with_transfers_slow_transfers_alone() -> None:
    topology, ranks = Topology.load("dgx-h100"), tuple(range(8))
    found = Contention(NOTHING, gpus.find("H100"), topology, 0.3, measured_together=True).slowdown("all_gather", ranks)
    assert (found.computation, found.communication) == (1.0, of("all_gather", range(8), "dgx-h100").communication)
    stated = Interference(computation={"all_gather": 1.5})
    again = Contention(stated, gpus.find("H100"), topology, 0.3, measured_together=True).slowdown("all_gather", ranks)
    assert again.computation == 1.5
