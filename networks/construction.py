"""Construction of a network from the choices of a run, and notes on what it does not do of what a run asks for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import simpy

from triosim import plugins
from triosim.errors import PluginError
from triosim.networks.base import Network
from triosim.networks.collectives.algorithm import CollectiveAlgorithm
from triosim.networks.collectives.lowering import Form
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

    Raises ``PluginError`` for a plug-in that cannot be made or is no network.
    """
    kind = plugins.find("networks", network)
    chosen = {"algorithm": algorithm, "form": form, "record": record}
    settings = {name: chosen[name] for name in _settings(kind)}
    made = plugins.make(kind, simpy.Environment(), topology, options=options, settings=settings)
    name = type(made).__name__
    if not isinstance(made, Network):
        raise PluginError("is no network", where=name, fix="derive from triosim.networks.Network")
    if not hasattr(made, "topology"):
        raise PluginError(
            "its __init__ leaves out the base class's",
            where=name,
            fix="call super().__init__(env, topology, **options)",
        )
    return made


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


def recording_note(network: Network) -> Iterator[str]:
    """Yield a note where a network cannot tell what its links carried, or when."""
    if not isinstance(network, LinkCounter):
        yield f"{type(network).__name__} simulates no links: what they carried is not known"
    elif not (isinstance(network, LinkRecorder) and network.record):
        yield f"{type(network).__name__} says what links carried, and not when"
