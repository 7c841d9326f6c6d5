"""Construction of a run's network and collective algorithm, and notes on what a network cannot do of what was asked for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import simpy

from triosim import plugins
from triosim.config import parsed
from triosim.errors import PluginError
from triosim.networks.base import Network, initialised
from triosim.networks.calibration.calibrated_times import CalibratedNetwork
from triosim.networks.calibration.lookup import stand_in
from triosim.networks.collectives.algorithm import CollectiveAlgorithm
from triosim.networks.collectives.lowering import Form
from triosim.networks.collectives.phased.chunk_schedule import ChunkOrder
from triosim.networks.extensions import LinkCounter, LinkRecorder
from triosim.networks.topology import Topology


def make_network(
    network: str | type,
    topology: Topology,
    *,
    algorithm: CollectiveAlgorithm | None,
    form: Form,
    record: bool,
    options: Mapping[str, Any],
) -> Network:
    """Return a network, given by name or class, on a clock of its own; ``algorithm`` None is the network's default.

    Raises ``PluginError`` for a plug-in that cannot be made or is not a network.
    """
    kind = plugins.find("networks", network)
    chosen = {"algorithm": algorithm, "form": form, "record": record}
    settings = {name: chosen[name] for name in _settings(kind)}
    made = plugins.make(kind, simpy.Environment(), topology, options=parsed(kind, options), settings=settings)
    where = plugins.label(kind)
    if not isinstance(made, Network):
        raise PluginError("is not a network", where=where, fix="derive from triosim.networks.Network")
    if not initialised(made):
        fix = "call super().__init__(env, topology, **options)"
        raise PluginError("its __init__ leaves out the base class's", where=where, fix=fix)
    return made


def make_algorithm(
    algorithm: str | type, options: Mapping[str, Any], *, chunk_schedule: ChunkOrder
) -> CollectiveAlgorithm:
    """Return a collective algorithm, given by name or class. Raises ``PluginError`` for a plug-in that cannot be made."""
    kind = plugins.find("collective_algorithms", algorithm)
    settings = {"chunk_schedule": chunk_schedule} if _takes_chunk_schedule(kind) else {}
    made: CollectiveAlgorithm = plugins.make(kind, options=parsed(kind, options), settings=settings)
    return made


def algorithm_options(algorithm: str | type) -> tuple[str, ...]:
    """Return the names of the options that an algorithm's constructor reads, beside what a run asks of every algorithm."""
    return plugins.option_names(plugins.find("collective_algorithms", algorithm), settings=("chunk_schedule",))


def _takes_chunk_schedule(kind: Any) -> bool:
    return "chunk_schedule" in inspect.signature(kind).parameters


def network_options(network: str | type) -> tuple[str, ...]:
    """Return the names of the options that a network's constructor reads, beside what a run asks of every network."""
    kind = plugins.find("networks", network)
    return plugins.option_names(kind, 2, _settings(kind))


def _settings(kind: Any) -> tuple[str, ...]:
    records = isinstance(kind, type) and issubclass(kind, LinkRecorder)
    return ("algorithm", "form", "record") if records else ("algorithm", "form")


def form_note(network: Network, form: Form) -> Iterator[str]:
    """Yield a note where a form of collectives was asked for that the network does not take."""
    parameters = inspect.signature(type(network)).parameters
    takes_form = "form" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    if form != "pipelined" and not takes_form:
        yield f"--collective-form has no effect with the network {type(network).__name__}"


def chunk_schedule_note(network: Network, algorithm: CollectiveAlgorithm | None, schedule: ChunkOrder) -> Iterator[str]:
    """Yield a note where a schedule of chunks was asked for, and collectives are not cut into chunks along dimensions."""
    if schedule == "in-order":
        return
    if isinstance(network, CalibratedNetwork) and network.calibrated is not None:
        yield "--chunk-schedule has no effect: collectives take what was measured; give --collective hierarchical"
    elif not _takes_chunk_schedule(type(algorithm)) or len(network.topology.dimensions) < 2:
        fix = "give hierarchical or auto, and a topology of several dimensions"
        yield f"--chunk-schedule has no effect with {type(algorithm).__name__} on {network.topology.name}: {fix}"


def recording_note(network: Network) -> Iterator[str]:
    """Yield a note where a network cannot tell what its links carried, or when."""
    if not isinstance(network, LinkCounter):
        yield f"{type(network).__name__} simulates no links: the bytes of each link are unknown"
    elif not (isinstance(network, LinkRecorder) and network.record):
        yield f"{type(network).__name__} records the bytes of each link, but not their times"


def calibration_notes(network: Network, world: int) -> Iterator[str]:
    """Yield what a reader should know of a network's collectives: that they are not calibrated, or what was assumed."""
    if not isinstance(network, CalibratedNetwork):
        return
    found = network.calibrated
    if found is None:
        return
    name, machine = found.topology.name, stand_in(found.topology)
    if machine and world > 1:
        yield f"{name}: nobody measured its collectives: those of {machine} stand in, scaled by the links' bandwidth"
    if found.calibration.scale.gpus_per_switch and world > 2:
        yield f"{name}: groups of more than two boards have the rate of a pair; a host that slows them is not known"
    per_node = found.calibration.gpus_per_node
    if found.calibration.internode is not None and world > per_node:
        yield f"{name}: collectives between nodes take what other clusters with this kind of network take"
