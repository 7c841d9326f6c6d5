"""``what_if``: which part of a system holds a step up, by running it again with each part twice as fast.

The parts are all GPUs together, each class of links (those that join the same kinds of node with one bandwidth and latency),
and all links together. Latencies, and what a launch costs the host, stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from triosim.conditions import parse_conditions
from triosim.conditions.slow_links import with_bandwidths
from triosim.errors import OptionError
from triosim.networks.photonic.photonic import PhotonicNetwork
from triosim.networks.topology import Link, Topology
from triosim.pipeline.captured_run import representative
from triosim.results.link_loads import LinkClass, link_classes
from triosim.results.result import Result
from triosim.results.values import WhatIf
from triosim.simulation import TopologyLike, TraceLike, gpus_for, no_condition, simulate, topology_for
from triosim.trace import Trace
from triosim.trace.formats import read
from triosim.trace.task_streams import TaskStreams
from triosim.units import format_bandwidth, format_time

#: Classes of links that are tried, those first that carry most of what they could.
MOST_CLASSES = 12


@dataclass(frozen=True, slots=True)
class Change:
    """A part that becomes faster, the number of links in it, and the arguments of ``simulate`` that make it so."""

    what: str
    links: int
    arguments: Mapping[str, Any]


def what_if(
    trace: TraceLike,
    parallel: str | Mapping[str, int] = "single",
    *,
    factor: float = 2.0,
    topology: TopologyLike | None = None,
    conditions: Mapping[str, Any] | None = None,
    links: bool = False,
    timeline: bool = False,
    draws: int = 1,
    started: Callable[[str], None] | None = None,
    **options: Any,
) -> Result:
    """Simulate a step, and again with each part ``factor`` times as fast; ``options`` are those of ``simulate``.

    Returns the result of the system as it is, with the others' step times under ``what_if``, the fastest first. ``started``
    is told of each run. Raises ``TriosimError`` for whatever ``simulate`` does.
    """
    if not factor > 1.0:
        raise OptionError(f"{factor:g} times as fast is not faster", where="factor", fix="give more than 1")
    subject = trace if isinstance(trace, (Trace, TaskStreams)) else read(trace, options.get("trace_format"))
    tell = started or (lambda _: None)
    tell("as it is")
    base = simulate(
        trace,
        parallel,
        topology=topology,
        conditions=conditions,
        links=links,
        timeline=timeline,
        draws=draws,
        **options,
    )
    gpus = subject.world if isinstance(subject, TaskStreams) else gpus_for(parallel, options.get("gpus"))
    copies = bool(options.get("copy_input", False))
    system = copy(topology_for(representative(subject), topology, gpus, copy_input=copies))
    system.conditions = parse_conditions(conditions or {}, no_condition, system.conditions)
    found = []
    for change in _changes(base, system, factor, options):
        tell(change.what)
        step = simulate(subject, parallel, **{**options, **change.arguments}).step_time_s
        found.append(WhatIf(change.what, change.links, factor, step, base.step_time_s - step, base.step_time_s / step))
    rows = sorted(found, key=lambda row: row.step_time_s)
    return replace(base, data=replace(base.data, what_if=tuple(rows)))


def _changes(base: Result, system: Topology, factor: float, options: Mapping[str, Any]) -> Iterator[Change]:
    world = base.world
    slow = {rank: system.conditions.slow_gpus.get(rank, 1.0) / factor for rank in range(world)}
    faster = copy(system)
    faster.conditions = replace(system.conditions, slow_gpus=slow)
    yield Change("all GPUs", 0, {"topology": faster})
    groups = list(_used(base, system))
    for kind, links in groups:
        yield Change(label(kind), len(links), _faster(base, system, factor, links, options))
    if len(groups) > 1:
        every = [link for _, links in groups for link in links]
        yield Change("all links", len(every), _faster(base, system, factor, every, options))


def label(kind: LinkClass) -> str:
    """Return a class of links in words: ``gpu-switch 450 GB/s, 500 ns``."""
    ends = "-".join(end for end in (kind.source, kind.destination) if end)
    return f"{ends or 'links'} {format_bandwidth(kind.bandwidth)}, {format_time(kind.latency)}"


def _used(base: Result, system: Topology) -> Iterable[tuple[LinkClass, list[Link]]]:
    """Return the classes of links that carried something, or, where a network does not tell, all of them."""
    topology = base.topology if isinstance(base.network, PhotonicNetwork) else system
    assert topology is not None
    groups = link_classes(topology)
    loaded = {link.name: link.utilisation for link in base.data.links}
    if loaded:
        heat = {kind: max(loaded[link.name] for link in links) for kind, links in groups.items()}
        groups = {kind: groups[kind] for kind in sorted(groups, key=lambda kind: -heat[kind]) if heat[kind] > 0}
    return list(groups.items())[:MOST_CLASSES]


def _faster(
    base: Result, system: Topology, factor: float, links: Iterable[Link], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of ``simulate`` that make some links faster; circuits are an option of their network."""
    names = {link.name for link in links}
    arguments: dict[str, Any] = {
        "topology": with_bandwidths(
            system, lambda link: link.bandwidth * factor if link.name in names else link.bandwidth
        )
    }
    if isinstance(base.network, PhotonicNetwork) and not names <= system.links.keys():
        bandwidth = base.network.optics.bandwidth * factor
        arguments["options"] = {**(options.get("options") or {}), "bandwidth": str(bandwidth)}
    return arguments
