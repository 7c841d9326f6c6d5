"""What is kept outside of GPUs: bytes and times worked out by hand, what each rank holds where, and what is refused."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from traces import draw, planned, transformer

import triosim
from triosim.cli import run
from triosim.config.offload import Offload
from triosim.errors import OptionError
from triosim.models import GPT
from triosim.results.result import Result
from triosim.results.values import step_parts
from triosim.tasks import Copy, ReduceScatter
from triosim.trace import Trace

LENGTH, WIDTH, LAYERS, WORDS = 128, 256, 4, 512
P = LAYERS * (12 * WIDTH**2 + 13 * WIDTH) + (WORDS + LENGTH + 2) * WIDTH  # parameters
PCIE, DRAM, READ, WRITE = 2e9, 5e9, 1e9, 0.5e9
NODE = {
    "topology": "switch",
    "bandwidth": "300 GB/s",
    "host": {"bandwidth": PCIE},
    "host_memory": {"capacity": "1 TB", "bandwidth": DRAM},
    "nvme": {"capacity": "1 TB", "read": READ, "write": WRITE},
}


@cache
def gpt(optimizer: str = "master-adamw") -> Trace:
    """A small GPT in fp16."""
    model = GPT(layers=LAYERS, hidden=WIDTH, heads=8, vocab=WORDS, sequence=LENGTH)
    return triosim.describe(model, batch=2, dtype="fp16", attention="flash", optimizer=optimizer, gpu="A100")


def offloaded(offload: str, parallel: str = "single", **options: Any) -> Result:
    topology = {**NODE, **options.pop("topology", {})}
    return triosim.simulate(gpt(), parallel, offload=offload, topology=topology, host_overhead="none", **options)


def copied(result: Result, axis: str) -> float:
    """The bytes of a kind of copy on all ranks."""
    return sum(row.bytes * row.count for row in result.data.collectives if row.kind == "copy" and row.axis == axis)


def exposed(result: Result, axis: str) -> float:
    return sum(row.exposed_s for row in result.data.axes if row.axis == axis)


def held(result: Result) -> dict[str, dict[str, int]]:
    assert result.memory is not None
    return {tier: dict(sizes) for tier, sizes in result.memory.fullest.outside.items()}


# ---- the optimizer on the host ----------------------------------------------------------------------------------


def test_gradients_leave_and_updated_parameters_come_back_once() -> None:
    """Adam reads 2 + 12 bytes a parameter (a gradient, its copy in fp32 and two states), and writes 12 + 2."""
    result = offloaded("optimizer=host")
    assert copied(result, "gradients") == pytest.approx(2 * P)
    assert copied(result, "parameters") == pytest.approx(2 * P)
    assert copied(result, "cpu optimizer") == pytest.approx(28 * P)
    assert held(result) == {"host": {"optimizer_state": 12 * P, "gradient": 2 * P}}
    assert result.memory is not None
    assert "optimizer_state" not in result.memory.fullest.by_category


def test_the_update_takes_what_the_hosts_memory_needs_for_its_bytes() -> None:
    result = offloaded("optimizer=host")
    assert exposed(result, "cpu optimizer") == pytest.approx(28 * P / DRAM)  # one tile: nothing is behind it
    assert exposed(result, "parameters") == pytest.approx(2 * P / PCIE)


def test_the_update_on_the_host_is_a_part_of_the_step_of_its_own() -> None:
    result = offloaded("optimizer=host")
    (rank,) = result.data.ranks
    parts = {part.name: part.seconds(rank) for part in step_parts([rank])}
    assert parts["host computation"] == pytest.approx(28 * P / DRAM)
    assert parts["exposed communication"] == pytest.approx(rank.exposed_communication_s - 28 * P / DRAM)
    assert "host computation" in repr(result)
    assert "host computation" in str(result)


def test_gpus_of_a_host_share_its_memory_and_divide_the_update_only_where_the_optimizer_is_sharded() -> None:
    for parallel, times in (("zero1", 1), ("zero2", 1), ("fsdp", 1), ("ddp", 4), ("dp", 4)):
        result = offloaded("optimizer=host", parallel, gpus=4)
        assert copied(result, "cpu optimizer") == pytest.approx(times * 28 * P, rel=1e-2)  # shares are rounded up
        assert copied(result, "gradients") == pytest.approx(times * 2 * P, rel=1e-2)
        assert exposed(result, "cpu optimizer") == pytest.approx(times * 28 * P / DRAM, rel=0.02)
        assert any("zero1, zero2 and fsdp do" in note for note in result.data.notes) == (times > 1)


def test_a_unit_s_gradients_are_copied_when_they_are_reduced_while_others_are_computed() -> None:
    tasks = draw(planned(transformer(blocks=3), "fsdp", 4, offload="optimizer=host,parameters=host").tasks(0))
    scatters = [place for place, task in enumerate(tasks) if isinstance(task, ReduceScatter)]
    for place in scatters:
        copy = tasks[place + 1]
        assert isinstance(copy, Copy)
        assert (copy.source, copy.destination, copy.nbytes) == ("device", "host", tasks[place].nbytes / 4)
        assert copy.after


def test_gradients_of_later_micro_batches_are_added_on_the_host() -> None:
    once = offloaded("optimizer=host,parameters=host", "fsdp", gpus=2)
    twice = offloaded("optimizer=host,parameters=host", "fsdp", gpus=2, micro_batches=2)
    assert copied(twice, "gradients") == pytest.approx(2 * copied(once, "gradients"))
    more = copied(twice, "cpu optimizer") - copied(once, "cpu optimizer")
    assert more == pytest.approx(3 * copied(once, "gradients"))  # two tensors read, one written


def test_states_on_drives_are_read_ahead_of_their_update_and_written_behind_it() -> None:
    result = offloaded("optimizer=nvme")
    assert copied(result, "states") == pytest.approx(24 * P)
    # One tile: parameters are copied to the GPU while states are written.
    waited = exposed(result, "states") + exposed(result, "parameters")
    assert waited == pytest.approx(12 * P / READ + 12 * P / WRITE)
    assert held(result)["nvme"] == {"optimizer_state": 12 * P}
    assert held(result)["host"]["communication"] == 36 * P  # three tiles in pinned buffers


# ---- parameters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [1, 4])
def test_parameters_are_fetched_for_each_pass_and_nothing_comes_back_after_the_update(gpus: int) -> None:
    """The root and the last unit are kept between the passes; every rank fetches its share of the others twice."""
    result = offloaded("optimizer=host,parameters=host", "fsdp", gpus=gpus)
    block = 12 * WIDTH**2 + 13 * WIDTH
    assert copied(result, "parameters") == pytest.approx(2 * (P + (LAYERS - 1) * block), rel=1e-2)
    assert held(result)["host"]["parameter"] == pytest.approx(2 * P / gpus, rel=1e-2)
    assert result.memory is not None
    assert "parameter" not in result.memory.fullest.by_category
    kept = triosim.rank_memory(gpt(), "fsdp", gpus=gpus).fullest.peak_bytes
    assert result.memory.fullest.peak_bytes < kept


def test_shares_that_were_fetched_are_freed_once_they_are_in_the_all_gathers_buffer() -> None:
    """As under FSDP2: what is left on the GPU for communication is what it is without offload."""
    kept, fetched = (
        triosim.rank_memory(gpt(), "fsdp", gpus=4, offload=offload).fullest.by_category["communication"]
        for offload in ("none", "optimizer=host,parameters=host")
    )
    assert fetched == kept


def test_parameters_on_drives_go_through_the_host_and_are_written_after_the_update() -> None:
    on_host = offloaded("optimizer=host,parameters=host", "fsdp", gpus=2)
    result = offloaded("optimizer=host,parameters=nvme", "fsdp", gpus=2)
    assert copied(result, "parameters") == pytest.approx(2 * copied(on_host, "parameters") + 2 * P, rel=1e-2)
    assert held(result)["nvme"]["parameter"] == pytest.approx(P, rel=1e-2)
    carried = {link.name: link.bytes for link in result.data.links}
    assert carried["nvme0->host0"] == pytest.approx(copied(on_host, "parameters"))
    assert carried["host0->nvme0"] == pytest.approx(2 * P, rel=1e-2)
    assert result.data.step_time_s > on_host.data.step_time_s + 2 * P / WRITE


def test_inference_reads_parameters_that_are_not_on_the_gpu() -> None:
    result = offloaded("parameters=host", "fsdp", gpus=1, training=False)
    assert copied(result, "parameters") == pytest.approx(2 * P)


POOL: dict[str, Any] = {"groups": 2, "switches": 1, "capacity": "1 TB", "bandwidth": "10 GB/s"}
POOL |= {"node_bandwidth": "10 GB/s", "group_bandwidth": "10 GB/s"}


def test_switches_that_gather_what_is_loaded_send_every_unit_whole_to_every_rank() -> None:
    """All of the parameters, and again those that are not kept between the passes; what is updated is written in shares."""
    by_ranks, by_switches = (
        offloaded("optimizer=host,parameters=pool", "fsdp", gpus=4, topology={"pool": {**POOL, "gathers": gathers}})
        for gathers in (False, True)
    )
    block = 12 * WIDTH**2 + 13 * WIDTH
    loaded = 2 * (P + (LAYERS - 1) * block)
    assert copied(by_ranks, "parameters") == pytest.approx(loaded + 2 * P, rel=1e-2)
    assert copied(by_switches, "parameters") == pytest.approx(2 * P, rel=1e-2)
    for result, times in ((by_ranks, 1), (by_switches, 4)):
        carried = {link.name: link.bytes for link in result.data.links}
        assert carried["pool0->pool_switches"] == pytest.approx(loaded, rel=1e-2)
        assert carried["pool_port0->gpu3"] == pytest.approx(times * loaded / 4, rel=1e-2)
        assert carried["pool_switches->pool0"] == pytest.approx(2 * P, rel=1e-2)
    assert held(by_switches)["pool"] == held(by_ranks)["pool"]
    assert by_switches.memory is not None
    assert by_ranks.memory is not None
    assert by_switches.memory.fullest.peak_bytes <= by_ranks.memory.fullest.peak_bytes


@pytest.mark.parametrize("offload", ["optimizer=nvme", "optimizer=host,parameters=pool"])
def test_circuits_between_gpus_leave_the_links_to_memories_as_they_are(offload: str) -> None:
    """On circuits no switch gathers: ranks load their shares, and gather them."""
    topology = {"pool": {**POOL, "gathers": True}}
    electrical, photonic = (
        offloaded(offload, "fsdp", gpus=4, network=network, topology=topology) for network in ("packet", "photonic")
    )
    assert copied(photonic, "cpu optimizer") == copied(electrical, "cpu optimizer")
    assert exposed(photonic, "cpu optimizer") == pytest.approx(exposed(electrical, "cpu optimizer"), rel=0.05)
    if offload == "optimizer=nvme":
        assert copied(photonic, "states") == copied(electrical, "states")
    else:
        block = 12 * WIDTH**2 + 13 * WIDTH
        assert copied(photonic, "parameters") == pytest.approx(2 * (P + (LAYERS - 1) * block) + 2 * P, rel=1e-2)


def test_inference_may_gather_in_switches_too() -> None:
    topology = {"pool": {**POOL, "gathers": True}}
    result = offloaded("parameters=pool", "fsdp", gpus=16, topology=topology, training=False, fold=True)
    assert [row.bytes for row in result.data.links if row.name == "pool0->pool_switches"] == [
        pytest.approx(2 * P, rel=1e-2)
    ]
    assert not any("every rank is simulated" in note for note in result.data.notes)


# ---- activations ------------------------------------------------------------------------------------------------


def test_inputs_of_recomputed_modules_are_all_that_leaves_the_gpu() -> None:
    """Of each module but the last: one tensor of 2 x 128 x 256 numbers in two bytes, out and back."""
    inputs = (LAYERS - 1) * 2 * LENGTH * WIDTH * 2
    result = offloaded("activations=host", recompute="full")
    assert copied(result, "activations") == pytest.approx(2 * inputs)
    assert held(result) == {"host": {"activation": inputs}}


def test_activations_take_no_memory_while_they_are_away() -> None:
    stays, leaves = (triosim.rank_memory(gpt(), offload=offload) for offload in ("none", "activations=host"))
    before, after = (one.fullest.by_category["activation"] for one in (stays, leaves))
    away = leaves.fullest.outside["host"]["activation"]
    assert before - away <= after < before - away / LAYERS  # those of a module or two are there at any time
    assert stays.fullest.by_category["parameter"] == leaves.fullest.by_category["parameter"]


def test_a_fast_link_hides_the_copies_of_activations_and_a_slow_one_does_not() -> None:
    plain = offloaded("none").data.step_time_s
    fast = offloaded("activations=host", topology={"host": {"bandwidth": 1e12}, "host_memory": None}).data.step_time_s
    slow = offloaded("activations=host")
    assert fast == pytest.approx(plain, rel=0.01)
    assert slow.data.step_time_s == pytest.approx(plain + exposed(slow, "activations"), rel=0.01)
    assert slow.data.step_time_s > copied(slow, "activations") / PCIE


def test_stages_and_micro_batches_offload_their_own_activations() -> None:
    stages = ("transformer.layers.2",)
    options = {"micro_batches": 4, "batch_size": 8, "stages": stages}
    result = offloaded("activations=host,optimizer=host", "pp=2", **options)
    tied = WORDS * WIDTH  # which both stages have
    assert copied(result, "gradients") == pytest.approx(2 * (P + tied))
    memory = triosim.rank_memory(gpt(), "pp=2", offload="activations=host", **options)
    of_first, of_second = (one.outside["host"]["activation"] for one in memory.ranks)
    received = 2 * LENGTH * WIDTH * 2  # the second stage's input, which stays
    assert of_first == 2 * (of_second + received)  # two micro-batches are under way in the first stage
    assert [one.outside_during["host"] for one in memory.ranks] == ["0F1", "1F0"]
    with_states = triosim.rank_memory(gpt(), "pp=2", offload="optimizer=nvme", **options)
    assert [one.outside_during["nvme"] for one in with_states.ranks] == ["start", "start"]


def test_threads_that_an_update_needs_are_noted() -> None:
    noted = [note for note in offloaded("optimizer=host").data.notes if "OMP_NUM_THREADS" in note]
    assert len(noted) == 1
    assert not any("OMP_NUM_THREADS" in note for note in offloaded("activations=host").data.notes)


# ---- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("weights=host", "'weights' is nothing that can be offloaded"),
        ("optimizer", "'optimizer' does not say where it is kept; write optimizer=host or nvme"),
        ("activations=nvme", "activations cannot be kept in 'nvme'"),
        ("optimizer=host,optimizer=nvme", "'optimizer' is given twice"),
        ("parameters=host", "write parameters=host,optimizer=host"),
        ("", "'' is nothing that can be offloaded"),
    ],
)
def test_an_offload_that_cannot_be_is_refused(said: str, error: str) -> None:
    with pytest.raises(OptionError) as found:
        Offload.of(said)
    assert error in str(found.value)


SMALL_POOL = (
    "dgx-h100(pool={groups: 16, switches: 1, capacity: 1 GB, bandwidth: 1 GB/s, node_bandwidth: 1 GB/s, "
    "group_bandwidth: 1 GB/s})"
)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["-p", "ddp=2", "--offload", "optimizer=host,parameters=host"], "use --parallel fsdp"),
        (["-p", "fsdp=2", "--offload", "optimizer=host,parameters=pool"], "has no memory pool"),
        (["-p", "fsdp=2", "--offload", "optimizer=host", "-t", "dgx-h20"], "the bandwidth of dgx-h20's host memory"),
        (["--inference", "--offload", "optimizer=host"], "inference has no optimizer"),
        (
            ["--optimizer", "none", "--offload", "optimizer=host"],
            "the step has no optimizer whose states could be offloaded",
        ),
        (["--offload", "optimizer=host", "-t", "switch(1, bandwidth=1 GB/s)"], "has no host memory"),
        (
            ["--offload", "optimizer=host", "-t", "dgx-h100(host_memory={capacity: 60 GB, bandwidth: 1 GB/s})"],
            "60.0 GB",
        ),
        (
            ["-p", "fsdp=2", "--offload", "optimizer=host,parameters=pool", "-t", SMALL_POOL],
            "16.1 GB are offloaded to pool0 (memory pool), which has 16.0 GB",
        ),
    ],
)
def test_the_command_says_in_one_line_what_cannot_be_offloaded(
    options: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", "llama-3.1-8b", "--seq", "512", "--gpu", "H100", *options]) == 2
    printed = capsys.readouterr().err
    assert error in printed
    assert printed.count("\n") == 1


def test_memory_alone_checks_what_the_memory_of_the_topology_can_take(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight ranks keep 8.03e9 parameters: 2 bytes each of parameters and gradients, and 4 of two states. A socket has four."""
    asked = ["memory", "llama-3.1-8b", "--seq", "512", "--gpu", "H100", "--parallel", "fsdp", "--offload"]
    both = "optimizer=host,parameters=host"
    for capacity, status in (("32 GB", 2), ("33 GB", 0)):
        topology = f"dgx-h100(host_memory={{capacity: {capacity}, bandwidth: 400 GB/s}})"
        assert run([*asked, both, "-t", topology, "-q"]) == status
    assert "32.1 GB are offloaded to host0 (host memory), which has 32.0 GB" in capsys.readouterr().err
    assert run([*asked, "optimizer=host,parameters=pool", "-q"]) == 2
    assert "dgx-h100 has no memory pool; give a topology that has it" in capsys.readouterr().err


def test_memory_counts_the_gpus_of_a_topology() -> None:
    assert triosim.rank_memory(gpt(), "fsdp", topology="dgx-h100(gpus=16)").world == 16
