"""Reads Chakra graphs, and ASTRA-sim's files beside them, as the task streams of a run."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from os import PathLike
from pathlib import Path

from triosim import gpus as catalogue
from triosim.chakra.inputs.groups import read_groups
from triosim.chakra.inputs.network_file import is_network, read_network
from triosim.chakra.inputs.remote_memory_file import read_remote_memory
from triosim.chakra.inputs.system_file import Compute, read_system
from triosim.chakra.metadata import StepFacts
from triosim.chakra.streams import GraphSystem, task_streams
from triosim.chakra.workload import read_workload
from triosim.config import COMMON, RunConfig
from triosim.config.option import CHAKRA
from triosim.errors import OptionError
from triosim.garbage_collector import without_collecting
from triosim.trace.task_streams import TaskStreams


@without_collecting()
def graph_streams(prefix: Path, config: RunConfig) -> TaskStreams:
    """Return the graphs of a prefix as task streams. Raises ``TriosimError`` for what is wrong in a file."""
    dimensions = _dimensions(config)
    graphs = read_workload(prefix, prod(dimensions) if dimensions else None, control=config.dependencies == "all")
    groups, memory = _file(prefix, config.groups, "comm_group.json"), _file(prefix, config.memory, "remote_memory.json")
    facts = StepFacts.of(graphs[0].metadata)
    system = GraphSystem(
        groups={} if groups is None else read_groups(groups, len(graphs)),
        dimensions=dimensions,
        compute=_compute(config),
        memory=None if memory is None else read_remote_memory(memory),
        gpu=facts.gpu if config.gpu is None else catalogue.find(config.gpu).name,
        memory_bound=facts.memory_bound,
    )
    return task_streams(graphs, system, str(prefix))


def _file(prefix: Path, given: str | None, name: str) -> Path | None:
    """Return the file that is given, or else the one of ASTRA-sim's usual name beside the graphs."""
    if given is not None:
        return Path(given)
    beside = (prefix if prefix.is_dir() else prefix.parent) / name
    return beside if beside.is_file() else None


def refuse_without_graphs(config: RunConfig) -> None:
    """Raise ``OptionError`` for an option that only graphs follow, where something else is simulated."""
    for option in COMMON.values():
        if option.panel == CHAKRA and config.is_given(option.name):
            raise OptionError("has no effect without Chakra graphs", where=option.where, fix="leave it out")


def _dimensions(config: RunConfig) -> tuple[int, ...]:
    """Return the sizes of the dimensions, of a topology that is a ``network.yml``."""
    if not isinstance(config.topology, (str, PathLike)) or not is_network(Path(config.topology)):
        return ()
    return tuple(dimension.npus for dimension in read_network(Path(config.topology)).dimensions)


def _compute(config: RunConfig) -> Compute:
    """Return what prices computations: system.json's roofline, or that of the GPU that is asked for."""
    found = Compute() if config.system is None else read_system(Path(config.system)).compute
    gpu = None if config.gpu is None else catalogue.find(config.gpu)
    if gpu is None:
        return found
    return replace(found, peak=gpu.rate("bfloat16"), memory_bandwidth=gpu.bandwidth, roofline=True)
