"""Reads Chakra graphs, and ASTRA-sim's files beside them, as the task streams of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from os import PathLike
from pathlib import Path

from triosim import gpus as catalogue
from triosim.chakra.inputs.files import input_files
from triosim.chakra.inputs.groups import read_groups
from triosim.chakra.inputs.network_file import is_network, read_network
from triosim.chakra.inputs.remote_memory_file import read_remote_memory
from triosim.chakra.inputs.system_file import Compute, read_system
from triosim.chakra.streams import GraphSystem, task_streams
from triosim.chakra.workload import read_workload
from triosim.config import COMMON, RunConfig
from triosim.config.option import CHAKRA
from triosim.errors import OptionError, TopologyError
from triosim.garbage_collector import without_collecting
from triosim.trace.step_facts import StepFacts
from triosim.trace.task_streams import TaskStreams


@without_collecting()
def graph_streams(prefix: Path, config: RunConfig) -> TaskStreams:
    """Return the graphs of a prefix as task streams. Raises ``TriosimError`` for what is wrong in a file."""
    files = input_files(prefix, **_given(config), has_topology=config.topology is not None)
    dimensions = () if files.network is None else tuple(one.npus for one in read_network(files.network).dimensions)
    graphs = read_workload(prefix, prod(dimensions) if dimensions else None, control=config.dependencies == "all")
    facts = StepFacts.of(graphs[0].metadata)
    described = None if files.system is None else read_system(files.system)
    compute, timed = _compute(Compute() if described is None else described.compute, config, facts)
    if compute.roofline and not (compute.peak and compute.memory_bandwidth):
        what = "roofline-enabled without a peak-perf and a local-mem-bw"
        raise TopologyError(what, where=str(files.system), fix="write both, or turn it off")
    system = GraphSystem(
        groups={} if files.groups is None else read_groups(files.groups, len(graphs)),
        dimensions=dimensions,
        compute=compute,
        memory=None if files.memory is None else read_remote_memory(files.memory),
        gpu=facts.gpu if config.gpu is None else catalogue.find(config.gpu).name,
        memory_bound=facts.memory_bound,
    )
    notes = (*files.notes, *(() if described is None else described.notes), *timed)
    beside = str(files.network) if config.topology is None and files.network is not None else None
    found = task_streams(graphs, system, str(prefix))
    return replace(
        found,
        topology=beside,
        notes=notes,
        measured_together=facts.measured_together,
        global_batch_size=facts.global_batch_size,
        sample_parts=facts.sample_parts,
    )


def refuse_without_graphs(config: RunConfig) -> None:
    """Raise ``OptionError`` for an option that only graphs follow, where something else is simulated."""
    for option in COMMON.values():
        if option.panel == CHAKRA and config.is_given(option.name):
            raise OptionError("has no effect without Chakra graphs", where=option.where, fix="leave it out")


def _given(config: RunConfig) -> Mapping[str, str | None]:
    """Return the files that a run names; its topology is one of them where it is a ``network.yml``."""
    topology = config.topology
    network = str(topology) if isinstance(topology, (str, PathLike)) and is_network(Path(topology)) else None
    return {"network": network, "system": config.system, "memory": config.memory, "groups": config.groups}


def _compute(found: Compute, config: RunConfig, facts: StepFacts) -> tuple[Compute, tuple[str, ...]]:
    """Return what prices computations, and what to note: system.json's roofline, or that of another GPU that is asked for."""
    gpu = None if config.gpu is None else catalogue.find(config.gpu)
    if gpu is None or gpu.name == facts.gpu:
        return found, ()
    note = f"computations with num_ops take what the FLOPs and the memory of a {gpu.name} need"
    return replace(found, peak=gpu.rate("bfloat16"), memory_bandwidth=gpu.bandwidth, roofline=True), (note,)
