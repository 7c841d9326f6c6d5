"""Checks that a system has the GPUs and links that its conditions name, and notes on the conditions of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from triosim import gpus
from triosim.conditions.conditions import Conditions, Stragglers
from triosim.errors import OptionError, TriosimError
from triosim.networks.base import Network
from triosim.networks.extensions import ChangeableLinks
from triosim.networks.photonic.photonic import CircuitTopology
from triosim.networks.topology import Topology
from triosim.units import format_time


def check_conditions(conditions: Conditions, network: Network) -> None:
    """Raise ``OptionError`` for a GPU or a link that the system does not have, or a network whose links cannot change."""
    count = len(network.topology.gpus)
    named = {
        "slow_gpus": conditions.slow_gpus,
        "gpu_kinds": conditions.gpu_kinds,
        "events": [event.rank for event in conditions.gpu_events],
    }
    for key, ranks in named.items():
        for rank in ranks:
            if rank >= count:
                where = f"{network.topology.name}: {key}"
                raise OptionError(f"there is no GPU {rank}", where=where, fix=f"name one from 0 to {count - 1}")
    for rank, name in conditions.gpu_kinds.items():
        try:
            gpus.find(name)
        except TriosimError as error:
            where = f"{network.topology.name}: gpu_kinds: {rank}"
            raise OptionError(
                error.what, where=f"{where}: {error.where}" if error.where else where, fix=error.fix
            ) from None
    if conditions.link_events and not isinstance(network, ChangeableLinks):
        what = f"{type(network).__name__} cannot change links while it runs"
        raise OptionError(what, where="events", fix="take the network 'packet'")
    for event in conditions.link_events:
        network.topology.links_between(event.source, event.destination)


def condition_notes(conditions: Conditions, world: int) -> Iterator[str]:
    """Yield notes on predicted and random times in a run of ``world`` GPUs."""
    ranks_of_kind: dict[str, list[int]] = {}
    for rank, name in conditions.gpu_kinds.items():
        if rank < world:
            ranks_of_kind.setdefault(gpus.find(name).name, []).append(rank)
    for name, ranks in ranks_of_kind.items():
        yield f"{len(ranks)} of the {world} GPUs are {name}: operator times on them are predictions"
    if conditions.slow_links:
        yield f"slow-downs of links are drawn at random ({_settings(conditions.slow_links)})"
    if conditions.stragglers:
        every = "in each iteration" if conditions.stragglers.every == "iteration" else "once for the run"
        yield f"slow-downs of GPUs are drawn at random, {every} ({_settings(conditions.stragglers)})"


def _settings(drawn: Stragglers) -> str:
    return f"{drawn.distribution}, spread {drawn.spread:g}, seed {drawn.seed}"


def notes_without_effect(
    conditions: Conditions, topology: Topology, *, world: int, end_s: float, transfer_kinds: Collection[str]
) -> Iterator[str]:
    """Yield a note for each condition that made no difference to a run that is over.

    The run had ``world`` GPUs, ended at ``end_s`` seconds, and had transfers of some kinds ("all_reduce", "send", "copy").
    """
    for option, ranks in (("slow_gpus", conditions.slow_gpus), ("gpu_kinds", conditions.gpu_kinds)):
        unused = sorted(rank for rank in ranks if rank >= world)
        if unused:
            yield f"{option} has no effect on GPU {unused[0]}: the run uses {world} GPUs"
    times = [*(event.at for event in conditions.gpu_events), *(event.at for event in conditions.link_events)]
    late = min((at for at in times if at >= end_s), default=None)
    if late is not None:
        yield f"the event at {format_time(late)} has no effect: the run ends at {format_time(end_s)}"
    sides = {
        "compute_slowdown": conditions.interference.computation,
        "collective_slowdown": conditions.interference.communication,
    }
    for option, factors in sides.items():
        if transfer_kinds and factors and factors.keys().isdisjoint(transfer_kinds):
            missing, present = " or ".join(factors), " and ".join(sorted(transfer_kinds))
            yield f"{option} has no effect: the run has no {missing}, only {present}"
    if conditions.slow_links and isinstance(topology, CircuitTopology):
        yield "slow_links has no effect on optical circuits"
