"""``what_if``: finds which part of a system limits a step, by running it again with each part twice as fast.

The parts are all GPUs together, each class of links (those that join the same kinds of node with one bandwidth and latency),
and all links together. Latencies, and what a launch costs the host, stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from triosim.config import RunConfig
from triosim.engine import Progress
from triosim.errors import OptionError
from triosim.networks.photonic.photonic import PhotonicNetwork
from triosim.networks.topology import Link
from triosim.pipeline.pricing import price
from triosim.pipeline.reading import TraceLike, read
from triosim.pipeline.system import System, system_of
from triosim.results.link_loads import LinkClass, link_classes
from triosim.results.result import Result
from triosim.results.values import WhatIf
from triosim.simulation import simulate_priced
from triosim.units import format_bandwidth, format_time

#: Classes of links that are tried, those first that carry most of what they could.
MOST_CLASSES = 12


@dataclass(frozen=True, slots=True)
class FasterPart:
    """A faster part of the system: its name, the number of links in it, and the system and configuration of the run."""

    what: str
    links: int
    system: System
    config: RunConfig


def what_if(
    trace: TraceLike,
    parallel: Any = "single",
    *,
    factor: float = 2.0,
    started: Callable[[str], None] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Simulate a step, and again with each part ``factor`` times as fast; ``options`` are those of ``simulate``.

    Returns the result of the system as it is, with the others' step times under ``what_if``, the fastest first. ``started``
    is told of each run. Raises ``TriosimError`` for whatever ``simulate`` does.
    """
    return what_if_config(trace, RunConfig.of(parallel=parallel, **options), factor, started, progress)


def what_if_config(
    trace: TraceLike,
    config: RunConfig,
    factor: float = 2.0,
    started: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> Result:
    """Do what ``what_if`` does, with the options in one value."""
    if not factor > 1.0:
        raise OptionError(f"{factor:g} times as fast is not faster", where="factor", fix="give more than 1")
    tell = started or (lambda _: None)
    priced = price(read(trace, config), config)
    tell("as it is")
    base = simulate_priced(priced, config, progress)
    found = []
    for change in _changes(base, system_of(priced.subject, config), factor, config):
        tell(change.what)
        step = simulate_priced(priced, change.config, progress, change.system).step_time_s
        found.append(WhatIf(change.what, change.links, factor, step, base.step_time_s - step, base.step_time_s / step))
    rows = sorted(found, key=lambda row: row.step_time_s)
    return replace(base, data=replace(base.data, what_if=tuple(rows)))


def _changes(base: Result, system: System, factor: float, config: RunConfig) -> Iterator[FasterPart]:
    config = config.replaced(links=False, timeline=False, draws=1)
    slow = {rank: system.conditions.slow_gpus.get(rank, 1.0) / factor for rank in range(base.world)}
    yield FasterPart("all GPUs", 0, replace(system, conditions=replace(system.conditions, slow_gpus=slow)), config)
    groups = list(_used(base, system))
    for kind, links in groups:
        yield FasterPart(label(kind), len(links), *_faster(base, system, factor, links, config))
    if len(groups) > 1:
        every = [link for _, links in groups for link in links]
        yield FasterPart("all links", len(every), *_faster(base, system, factor, every, config))


def label(kind: LinkClass) -> str:
    """Return the name of a class of links: ``gpu-switch 450 GB/s, 500 ns``."""
    ends = "-".join(end for end in (kind.source, kind.destination) if end)
    return f"{ends or 'links'} {format_bandwidth(kind.bandwidth)}, {format_time(kind.latency)}"


def _used(base: Result, system: System) -> Iterable[tuple[LinkClass, list[Link]]]:
    """Return the classes of links that carried anything, or all where the network does not count bytes."""
    topology = base.topology if isinstance(base.network, PhotonicNetwork) else system.nominal
    assert topology is not None
    groups = link_classes(topology)
    loaded = {link.name: link.utilisation for link in base.data.links}
    if loaded:
        heat = {kind: max(loaded[link.name] for link in links) for kind, links in groups.items()}
        groups = {kind: groups[kind] for kind in sorted(groups, key=lambda kind: -heat[kind]) if heat[kind] > 0}
    return list(groups.items())[:MOST_CLASSES]


def _faster(
    base: Result, system: System, factor: float, links: Iterable[Link], config: RunConfig
) -> tuple[System, RunConfig]:
    """Return the system and configuration in which some links are faster; circuits are an option of their network."""
    names = {link.name for link in links}
    faster = system.nominal.with_links(
        lambda link: replace(link, bandwidth=link.bandwidth * factor) if link.name in names else link
    )
    if isinstance(base.network, PhotonicNetwork) and not names <= system.nominal.links.keys():
        bandwidth = str(base.network.optics.bandwidth * factor)
        config = config.replaced(options={**config.options, "bandwidth": bandwidth})
    return System.under(system.conditions, faster), config
