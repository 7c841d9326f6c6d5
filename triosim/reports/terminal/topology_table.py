"""A topology as tables: the number of nodes of each kind, and its links, equal ones in one row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from triosim.networks.calibration.lookup import calibration_of, stand_in
from triosim.networks.photonic.optics import Optics, optics_of
from triosim.networks.topology import Link, Topology
from triosim.networks.topology.summary import summary
from triosim.reports.terminal.tables import shorten, spaced, table
from triosim.units import format_bandwidth, format_bytes, format_time

#: More links than this are shown by kind alone.
MAX_LINKS = 64


def render(topology: Topology) -> RenderableType:
    """Return a topology as something that rich can show."""
    facts = summary(topology)
    counted = ", ".join(f"{count} {plural(kind, count)}" for kind, count in facts.nodes.items())
    total = len(topology.links)
    parts: list[RenderableType] = [
        Text.assemble((topology.name, "bold"), f": {counted}, {total} {plural('link', total)} (one direction each)")
    ]
    if facts.diameter is not None and facts.longest_latency is not None and facts.bisection is not None:
        far, wide = format_time(facts.longest_latency), format_bandwidth(facts.bisection)
        hops = f"{facts.diameter} {plural('link', facts.diameter)}"
        parts.append(Text(f"diameter {hops} ({far}) between GPUs, bisection bandwidth {wide}"))
    calibration = calibration_of(topology)
    if calibration is not None:
        machine = stand_in(topology)
        source = f"those of {machine} stand in; {calibration.note}" if machine else calibration.note or "no note"
        parts.append(Text(f"collectives are calibrated ({', '.join(calibration.kinds)}: {source})"))
    optics = optics_of(topology)
    if optics is not None:
        parts.append(Text(f"optical circuits of the network photonic: {_optics(optics)}"))
    if not total:
        return Group(*parts)
    if topology.memories:
        parts.append(table("Memories", "node", "tier", "capacity", "bandwidth", "at once", rows=_memories(topology)))
    links = pairs(link for link in topology.links.values() if not link.source or link.source != link.destination)
    by_kind = Counter(
        (_kind(topology, link.source), both, _kind(topology, link.destination), link.bandwidth, link.latency)
        for link, both in links
    )
    parts.append(
        _table(
            *("Links by kind", "count"),
            (
                (source, _ARROW[both], destination, f"{count:,}", format_bandwidth(bandwidth), format_time(latency))
                for (source, both, destination, bandwidth, latency), count in by_kind.items()
            ),
        )
    )
    if len(links) <= MAX_LINKS:
        rows = []
        for link, both in links:
            name = "" if link.name == f"{link.source}->{link.destination}" else link.name
            speed = format_bandwidth(link.bandwidth), format_time(link.latency)
            rows.append((shorten(link.source, 18), _ARROW[both], shorten(link.destination, 18), name, *speed))
        parts.append(_table("Links", "name", rows))
    return Group(*spaced(parts))


def _memories(topology: Topology) -> Iterator[Sequence[str]]:
    """Yield the rows of the memories outside of GPUs; what is not known is left blank."""
    for name, one in topology.memories.items():
        capacity = "" if math.isinf(one.capacity) else format_bytes(one.capacity)
        bandwidth = "" if one.port is None else format_bandwidth(topology.links[one.port].bandwidth)
        yield (
            shorten(name, 18),
            one.tier,
            capacity,
            bandwidth,
            "" if one.simultaneous is None else str(one.simultaneous),
        )


def _optics(optics: Optics) -> str:
    """Return the optical circuits that replace links."""
    each = "" if optics.ports_per_circuit == 1 else f", {optics.ports_per_circuit} to a circuit"
    buffer = "" if math.isinf(optics.buffer) else f", a buffer of {format_bytes(optics.buffer)}"
    return (
        f"{optics.ports} {plural('port', optics.ports)} a GPU of {format_bandwidth(optics.bandwidth)}{each}, "
        f"set up in {format_time(optics.setup)} with a latency of {format_time(optics.latency)}{buffer}"
    )


_ARROW = {False: "→", True: "↔"}


def _table(title: str, middle: str, rows: Iterable[Sequence[str]]) -> Table:
    made = table(title, "from", "", "to", middle, "bandwidth", "latency", rows=rows)
    made.columns[2].justify = "left"
    return made


def _kind(topology: Topology, node: str) -> str:
    return topology.nodes[node].kind if node in topology.nodes else ""


def pairs(links: Iterable[Link]) -> list[tuple[Link, bool]]:
    """Return the links, and whether each stands for both directions, which then are equal."""
    found: dict[int, tuple[Link, bool]] = {}
    single: dict[tuple[str, str, float, float], list[int]] = {}  # by what the way back would be
    for number, link in enumerate(links):
        back = single.get((link.source, link.destination, link.bandwidth, link.latency))
        if back:
            other = back.pop()
            found[other] = found[other][0], True
        else:
            found[number] = link, False
            single.setdefault((link.destination, link.source, link.bandwidth, link.latency), []).append(number)
    return list(found.values())


def plural(word: str, count: int) -> str:
    """Return a kind of node, or another noun, for so many of it."""
    one = word.upper() if word == "gpu" else word
    return one if count == 1 else {"switch": "switches", "memory": "memories"}.get(word, f"{one}s")
