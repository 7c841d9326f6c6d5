"""Folding where ranks copy to and from memories outside of GPUs: the ranks of a host share its memory, those of all a pool."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_folded_run import same

import triosim
from triosim.models import GPT
from triosim.results.values import ResultData
from triosim.trace import Trace

_DRAM = {"capacity": "1 TB", "bandwidth": "6 GB/s"}
_POOL = {"groups": 2, "switches": 2, "capacity": "1 TB", "bandwidth": "4 GB/s"}
_POOL |= {"node_bandwidth": "8 GB/s", "group_bandwidth": "5 GB/s", "memory_bandwidth": "9 GB/s"}
_NODES: dict[str, Any] = {
    "topology": "switch",
    "gpus": 16,
    "bandwidth": "30 GB/s",
    "gpus_per_node": 8,
    "inter_node": {"bandwidth": "5 GB/s", "latency": "2 us"},
    "host": {"bandwidth": "3 GB/s", "latency": "1 us", "gpus_per_link": 2, "gpus_per_host": 4},
    "host_memory": _DRAM,
    "nvme": {"capacity": "1 TB", "read": "2 GB/s", "write": "1 GB/s"},
    "expansion": {"bandwidth": "4 GB/s", "capacity": "1 TB", "memory_bandwidth": "9 GB/s"},
    "pool": _POOL,
}
_TREE = {
    "topology": "pcie_tree",
    "gpus": 16,
    "bandwidth": "10 GB/s",
    "gpus_per_node": 4,
    "inter_node": {"bandwidth": "5 GB/s", "latency": "2 us"},
    "host_memory": _DRAM,
    "nvme": {"capacity": "1 TB", "read": "2 GB/s", "write": "1 GB/s"},
}
#: Each has at least 16 GPUs, and a host, drives, and most an expansion and a pool.
SYSTEMS: dict[str, Any] = {
    "nodes": _NODES,
    "one host for each node": {**_NODES, "host": {"bandwidth": "3 GB/s"}},
    "a node of two hosts": {**_NODES, "gpus_per_node": None, "inter_node": None},
    "switches gather": {**_NODES, "pool": {**_POOL, "gathers": True}},
    "dgx-a100": "dgx-a100(gpus=16)",
    "dgx-h100": "dgx-h100(gpus=16, calibration=none)",
    "PCIe, also between ranks": _TREE,
}
SHARDED = ("fsdp=16", "fsdp=4,dp=4", "tp=2,fsdp=8", "fsdp=8,pp=2", "tp=2,fsdp=2,dp=2,pp=2")
WHOLE = ("ddp=16", "zero1=16", "zero2=8,pp=2", "tp=4,ddp=4", "dp=4,pp=4")
OF_PARAMETERS = (
    "optimizer=host,parameters=host",
    "optimizer=nvme,parameters=nvme",
    "optimizer=host,parameters=expansion",
    "optimizer=nvme,parameters=pool,activations=pool",
)
OF_OTHERS = ("optimizer=host", "optimizer=nvme,activations=host", "activations=expansion", "activations=pool", "none")


@cache
def gpt() -> Trace:
    model = GPT(layers=8, hidden=64, heads=8, vocab=512, sequence=32)
    return triosim.describe(model, batch=8, dtype="fp16", attention="flash", optimizer="master-adamw", gpu="A100")


def run(fold: bool | None, parallel: str, system: str, **options: Any) -> ResultData:
    topology = SYSTEMS[system]
    if isinstance(topology, dict):
        topology = {key: value for key, value in topology.items() if value is not None}
    return triosim.simulate(gpt(), parallel, topology=topology, compute_model="linear", fold=fold, **options).data


def simulates_every_rank(result: ResultData) -> bool:
    return any(note.startswith("every rank is simulated") for note in result.notes)


@settings(max_examples=40)
@given(
    system=st.sampled_from(list(SYSTEMS)),
    what=st.one_of(
        st.tuples(st.sampled_from(SHARDED), st.sampled_from((*OF_PARAMETERS, *OF_OTHERS))),
        st.tuples(st.sampled_from(WHOLE), st.sampled_from(OF_OTHERS)),
    ),
    network=st.sampled_from(["packet", "analytical"]),
    copy_input=st.booleans(),
    recompute=st.sampled_from(["none", "full"]),
)
@pytest.mark.slow
def test_results_are_the_same_with_folding_and_without(
    system: str, what: tuple[str, str], network: str, copy_input: bool, recompute: str
) -> None:
    parallel, offload = what
    if system not in ("nodes", "one host for each node", "a node of two hosts", "switches gather"):
        offload = offload.replace("expansion", "host").replace("pool", "nvme" if "parameters" in offload else "host")
        offload = offload.replace("activations=nvme", "activations=host")
    options = {"network": network, "copy_input": copy_input, "offload": offload, "recompute": recompute}
    same(
        run(False, parallel, system, micro_batches=4, **options),
        run(True, parallel, system, micro_batches=4, **options),
    )


@pytest.mark.parametrize("offload", OF_PARAMETERS)
@pytest.mark.parametrize("system", ["nodes", "switches gather"])
def test_a_rank_stands_for_all_that_do_the_same(system: str, offload: str) -> None:
    folded = run(True, "fsdp=16", system, offload=offload)
    assert not simulates_every_rank(folded)
    same(run(False, "fsdp=16", system, offload=offload), folded)


@pytest.mark.parametrize("parallel", ["fsdp=8,pp=2", "tp=2,fsdp=2,dp=2,pp=2"])
def test_ranks_of_other_stages_have_the_same_host(parallel: str) -> None:
    """Where stages are next to each other, the ranks of both copy to one host's memory, at other times."""
    options = {"offload": "optimizer=host,activations=host", "micro_batches": 4}
    folded = run(True, parallel, "a node of two hosts", **options)
    assert not simulates_every_rank(folded)
    same(run(False, parallel, "a node of two hosts", **options), folded)


@pytest.mark.parametrize("parallel", ["zero2=8,pp=3", "fsdp=6,pp=4", "fsdp=6,dp=4"])
@pytest.mark.parametrize("gpus_per_host", [3, 4])
def test_stages_may_share_hosts_unevenly(parallel: str, gpus_per_host: int) -> None:
    """Of a stage's ranks some may be on hosts of their own, and others on one that another stage copies to: they differ."""
    topology = {key: value for key, value in _NODES.items() if key not in ("gpus_per_node", "inter_node")}
    topology |= {"gpus": 24, "host": {"bandwidth": "3 GB/s", "gpus_per_host": gpus_per_host}}
    options = {"topology": topology, "compute_model": "linear", "micro_batches": 4}
    asked, not_asked = (
        triosim.simulate(gpt(), parallel, offload="optimizer=host,activations=pool", fold=fold, **options).data
        for fold in (True, False)
    )
    same(not_asked, asked)


def test_ranks_that_wait_for_each_other_s_accesses_are_simulated_one_by_one() -> None:
    limited = {**_NODES, "host_memory": {**_DRAM, "simultaneous": 2}}
    options = {"topology": limited, "compute_model": "linear", "offload": "optimizer=host"}
    asked, not_asked = (triosim.simulate(gpt(), "fsdp=16", fold=fold, **options).data for fold in (True, False))
    assert simulates_every_rank(asked)
    same(not_asked, asked)
