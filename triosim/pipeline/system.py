"""The system that a run takes place on: its topology, its conditions, and the network that shares its links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from triosim import gpus as catalogue
from triosim.conditions import Conditions, conditions_of, parse_conditions
from triosim.conditions.heterogeneity import with_slow_links
from triosim.config import RunConfig
from triosim.errors import OptionError
from triosim.networks.base import Network
from triosim.networks.calibration.lookup import calibration_of
from triosim.networks.collectives.algorithm import CollectiveAlgorithm
from triosim.networks.construction import (
    algorithm_options,
    chunk_schedule_note,
    form_note,
    make_algorithm,
    make_network,
    network_options,
    recording_note,
)
from triosim.networks.extensions import TransportNetwork
from triosim.networks.photonic.optics import optics_of
from triosim.networks.topology import Topology
from triosim.networks.topology.description import plain_figures
from triosim.networks.topology.price import prices_of
from triosim.pipeline.reading import Subject
from triosim.trace import Trace

TopologyLike = Topology | Mapping[str, Any] | str | PathLike[str]

#: The topology assumed for a GPU when none is given, by the beginning of its name in the catalogue.
ASSUMED_TOPOLOGY = {
    "H100-SXM": "dgx-h100",
    "H100-PCIe": "h100-pcie",
    "H100-NVL": "h100-pcie",
    "H800": "dgx-h100(bandwidth=200 GB/s)",
    "H200": "dgx-h200",
    "H20": "dgx-h20",
    "GH200": "gh200",
    "B200": "dgx-b200",
    "B300": "dgx-b300",
    "GB200": "gb200-nvl72",
    "GB300": "gb300-nvl72",
    "GB10": "gb10",
    "MI300X": "mi300x",
    "A100-SXM": "dgx-a100",
    "A100-PCIe": "a100-pcie",
    "A40": "a40-pcie",
    "A10G": "a10g-pcie",
    "L40S": "l40s-pcie",
    "L4": "l4-pcie",
    "T4": "t4-pcie",
    "RTX-PRO-6000": "rtx-pro-6000-pcie",
    "RTX-5090": "rtx-5090-pcie",
    "RTX-4090": "rtx-4090-pcie",
    "V100-SXM2": "dgx-1-v100",
}


@dataclass(frozen=True, slots=True)
class System:
    """A topology and the conditions on it.

    ``nominal`` is the topology as it was given, before links were drawn to be slower; ``notes`` say what was assumed.
    """

    topology: Topology
    nominal: Topology
    conditions: Conditions
    notes: tuple[str, ...] = ()

    @classmethod
    def under(cls, conditions: Conditions, nominal: Topology, notes: tuple[str, ...] = ()) -> System:
        """Return a system whose links are drawn to be slower, where its conditions say so."""
        slow = conditions.slow_links
        return cls(nominal if slow is None else with_slow_links(nominal, slow), nominal, conditions, notes)


def system_of(subject: Subject, config: RunConfig) -> System:
    """Return the system that is asked for, or the one that is assumed where none is."""
    topology = config.topology
    if topology is None and subject.streams is not None:
        topology = subject.streams.topology
    reaches_host = config.copy_input or config.offload != "none"
    nominal = topology_for(subject.trace, topology, subject.gpus, copy_input=reaches_host)
    notes: tuple[str, ...] = ()
    if topology is None and nominal.links:
        notes = (f"no topology given: {assumed_topology(subject.trace.gpu, subject.gpus)} is assumed",)
    notes = (*notes, *notes_on_units(nominal))
    return System.under(parse_conditions(config.conditions, _condition_error, conditions_of(nominal)), nominal, notes)


def topology_for(trace: Trace, topology: TopologyLike | None, gpus: int | None, *, copy_input: bool) -> Topology:
    """Return the topology that is asked for, or the one that is assumed where none is."""
    if topology is None:
        if gpus == 1 and not copy_input:  # there is nothing to send, unless it comes from the host
            return Topology.from_dict({"nodes": ["gpu0"], "links": [], "name": "one GPU"})
        return Topology.load(assumed_topology(trace.gpu, gpus), gpus=gpus)
    if isinstance(topology, Topology):
        found = topology
    elif isinstance(topology, Mapping):
        found = Topology.from_dict(topology, gpus=gpus)
    else:
        found = Topology.load(str(topology), gpus=gpus)
    check_sections(found)
    if not found.gpus:
        fix = "nodes are GPUs if their names begin with gpu or they say 'kind: gpu'"
        raise OptionError("the topology has no GPUs", where=found.name, fix=fix)
    return found


def assumed_topology(gpu: str, gpus: int | None) -> str:
    """Return the topology that a GPU usually comes in; for one without a preset, a switch that its links reach."""
    known = catalogue.get(gpu)
    if known is None:
        return "dgx-h100"
    for beginning, preset in ASSUMED_TOPOLOGY.items():
        if known.name.startswith(beginning):
            return preset
    bandwidth = known.nvlink_bandwidth or known.pcie_bandwidth
    if not bandwidth:
        return "dgx-h100"
    return f"switch({gpus or 8}, bandwidth={bandwidth / 1e9:g} GB/s, latency=1 us)"


def notes_on_units(topology: Topology) -> Iterator[str]:
    """Yield a note where a number without a unit makes links slower than any are: it may be of GB/s, or of ns."""
    notes = (f"{topology.name}: {one.path[-1]} {one.what}; {one.fix}" for one in plain_figures(topology.mapping or {}))
    yield from dict.fromkeys(notes)


def check_sections(topology: Topology) -> None:
    """Raise ``TopologyError`` for what is wrong in the sections of a topology's file, whoever needs them."""
    optics_of(topology)
    if "calibration" in topology.sections:
        calibration_of(topology)
    prices_of(topology)
    conditions_of(topology)


def check_condition_values(conditions: Mapping[str, Any]) -> None:
    """Raise ``OptionError`` for a condition that cannot be, on whatever system."""
    parse_conditions(conditions, _condition_error, Conditions())


def _condition_error(path: tuple[str | int, ...], what: str, fix: str | None) -> OptionError:
    """Return the error for a condition that cannot be, named by its flag."""
    option = "event" if path[0] == "events" else str(path[0]).replace("_", "-")
    return OptionError(what, where=f"--{option}", fix=fix)


@dataclass(frozen=True, slots=True)
class NetworkFactory:
    """Makes networks of a run, each on a clock of its own; ``options_read`` are the names of the options that they read."""

    topology: Topology
    algorithm: Any
    config: RunConfig
    options_read: tuple[str, ...]

    def __call__(self) -> Network:
        """Return a network on which nothing was sent yet. Raises ``PluginError`` for a plug-in that is none."""
        return make_network(
            self.config.network,
            self.topology,
            algorithm=self.algorithm,
            form=self.config.collective_form,
            record=self.config.timeline or self.config.links,
            options=self.config.options,
        )


def network_factory(system: System, config: RunConfig) -> NetworkFactory:
    """Return what makes the networks of a run, with the collective algorithm that is asked for."""
    name = config.collective
    if name is None and config.chunk_schedule != "in-order":
        name = "auto"
    if name is None:
        return NetworkFactory(system.topology, None, config, network_options(config.network))
    algorithm = make_algorithm(name, config.options, chunk_schedule=config.chunk_schedule)
    read = (*algorithm_options(name), *network_options(config.network))
    return NetworkFactory(system.topology, algorithm, config, read)


def network_notes(network: Network, algorithm: CollectiveAlgorithm | None, config: RunConfig) -> Iterator[str]:
    """Yield what a network cannot tell of its links, the options that it does not read, and how it times transports."""
    if config.links:
        yield from recording_note(network)
    yield from form_note(network, config.collective_form)
    yield from chunk_schedule_note(network, algorithm, config.chunk_schedule)
    if isinstance(network, TransportNetwork) and config.ep_transport != "nccl":
        yield from network.transport_notes(config.ep_transport)
