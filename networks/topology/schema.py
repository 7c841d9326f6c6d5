"""The keys of a topology file, each with its type and its default; docs/topology-format.md is written from it."""

# ruff: noqa: RUF009 - key() declares a field

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from triosim.errors import TriosimError
from triosim.networks.topology.description import SECTIONS, Location
from triosim.networks.topology.dimensional import GIB, NS
from triosim.networks.topology.graph import LONGEST_LATENCY, NodeKind, Routing
from triosim.networks.topology.keys import (
    Keys,
    Problems,
    boolean,
    chosen,
    key,
    listed,
    named_text,
    nested,
    optional,
    text,
)
from triosim.networks.topology.shapes import MOST_GPUS, Spec, Wire
from triosim.units import parse_bandwidth, parse_time

K = TypeVar("K", bound=Keys)


def _bandwidth(value: Any) -> float:
    number = _quantity(parse_bandwidth, value)
    if not 0 < number < math.inf:
        raise ValueError(f"'{value}' is not a positive number; write a bandwidth such as '450 GB/s'")
    return number


def _latency(value: Any) -> float:
    number = _quantity(parse_time, value)
    if not 0 <= number <= LONGEST_LATENCY:
        raise ValueError(f"'{value}' is not from 0 to {LONGEST_LATENCY:g} s; write a time such as '500 ns'")
    return number


def _quantity(parse: Any, value: Any) -> float:
    try:
        return float(parse(value))
    except TriosimError as error:
        raise ValueError(str(error)) from None


def _count(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_GPUS:
        raise ValueError(f"{_shown(value)} is not a whole number from 1 to {MOST_GPUS}")
    return value


def _shape(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        value = re.split(r"\s*[xX×]\s*", value.strip())
    if not isinstance(value, (list, tuple)):
        value = [value]
    if not 1 <= len(value) <= 6:
        raise ValueError(f"{len(value)} sides are not from 1 to 6; write a shape such as [4, 2]")
    sides = tuple(_count(side) for side in value)
    if math.prod(sides) > MOST_GPUS:
        raise ValueError(f"{math.prod(sides)} GPUs are too many; write at most {MOST_GPUS}")
    return sides


def _even(value: Any) -> int:
    k = _count(value)
    if k % 2 or k > 128:
        raise ValueError(f"k: {k} is not an even number from 2 to 128")
    return k


def _fanout(value: Any) -> int:
    if _count(value) < 2:
        raise ValueError("a switch of a tree needs at least 2 children")
    return _count(value)


def _ratio(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{_shown(value)} is not a positive number; 1 gives uplinks the sum of what is below them")
    return float(value)


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{_shown(value)} is not a positive number of GB/s, as ASTRA-sim writes bandwidths")
    return float(value)


def _positive_or_zero(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LONGEST_LATENCY * NS:
        raise ValueError(f"{_shown(value)} is not a number of ns, as ASTRA-sim writes latencies")
    return float(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _links(value: Any, problems: Problems) -> Any:
    """Read links with their names as keys, or a list of them."""
    if isinstance(value, dict):
        return {name: nested(NamedLinkKeys)(one, problems.at(name)) for name, one in value.items()}
    return listed(nested(LinkKeys))(value, problems)


def _node(value: Any, problems: Problems) -> NodeKeys:
    return nested(NodeKeys)({"name": value} if isinstance(value, str) else value, problems)


@dataclass(frozen=True, slots=True)
class WireKeys(Keys):
    """The link of a GPU to the fabric between nodes."""

    bandwidth: float = key(_bandwidth)
    latency: float = key(_latency, 0.0)
    gpus_per_nic: int = key(_count, 1)

    def wire(self) -> Wire:
        """Return it as the generators take it."""
        return Wire(self.bandwidth, self.latency, self.gpus_per_nic)


@dataclass(frozen=True, slots=True)
class HostKeys(Keys):
    """The link of each GPU to the host memory of its node."""

    bandwidth: float = key(_bandwidth)
    latency: float = key(_latency, 0.0)

    def wire(self) -> Wire:
        """Return it as the generators take it."""
        return Wire(self.bandwidth, self.latency)


@dataclass(frozen=True, slots=True)
class OverrideKeys(Keys):
    """A link whose figures differ from those of the others: one direction, or both."""

    source: str = key(named_text, called="from")
    destination: str = key(named_text, called="to")
    bandwidth: float | None = key(optional(_bandwidth), None)
    latency: float | None = key(optional(_latency), None)
    both: bool = key(boolean, False)

    def check(self) -> None:
        """Refuse an override that changes nothing."""
        if self.bandwidth is None and self.latency is None:
            raise ValueError("an override needs a bandwidth or a latency")


@dataclass(frozen=True, slots=True)
class NodeKeys(Keys):
    """A node; a kind that is not given follows from the name (gpu0, switch1, host0, memory0)."""

    name: str = key(named_text)
    kind: NodeKind | None = key(optional(chosen(*get_args(NodeKind))), None)


@dataclass(frozen=True, slots=True)
class LinkKeys(Keys):
    """A link between two nodes, of both directions unless it says otherwise."""

    source: str = key(named_text, called="from")
    destination: str = key(named_text, called="to")
    bandwidth: float | None = key(optional(_bandwidth), None)
    reverse_bandwidth: float | None = key(optional(_bandwidth), None)
    latency: float | None = key(optional(_latency), None)
    both: bool = key(boolean, True)
    name: str | None = key(optional(named_text), None)


@dataclass(frozen=True, slots=True)
class NamedLinkKeys(Keys):
    """A directed link that has its name as its key; without ends it is used by explicit routes alone."""

    source: str | None = key(optional(named_text), None, called="from")
    destination: str | None = key(optional(named_text), None, called="to")
    bandwidth: float | None = key(optional(_bandwidth), None)
    latency: float | None = key(optional(_latency), None)


@dataclass(frozen=True, slots=True)
class RouteKeys(Keys):
    """The links, by name, that messages from one node to another take."""

    source: str = key(named_text, called="from")
    destination: str = key(named_text, called="to")
    links: list[str] = key(listed(named_text))


@dataclass(frozen=True, slots=True)
class ShapeKeys(Keys):
    """A regular topology."""

    topology: str = key(text)
    name: str | None = key(optional(named_text), None)
    gpus: int | None = key(optional(_count), None)
    shape: tuple[int, ...] | None = key(optional(_shape), None)
    dimensions: int = key(chosen(1, 2, 3), 2)
    bandwidth: float = key(_bandwidth)
    latency: float = key(_latency, 0.0)
    reverse_bandwidth: float | None = key(optional(_bandwidth), None)
    fanout: int = key(_fanout, 2)
    levels: int | None = key(optional(_count), None)
    oversubscription: float | None = key(optional(_ratio), None)
    k: int | None = key(optional(_even), None)
    gpus_per_switch: int = key(_count, 4)
    nodes: int | None = key(optional(_count), None)
    gpus_per_node: int | None = key(optional(_count), None)
    inter_node: WireKeys | None = key(optional(nested(WireKeys)), None)
    host: HostKeys | None = key(optional(nested(HostKeys)), None)
    routing: Routing | None = key(optional(chosen(*get_args(Routing))), None)
    in_switch_reduction: bool = key(boolean, False)
    overrides: list[OverrideKeys] = key(listed(nested(OverrideKeys)), ())

    def changes(self) -> dict[str, Any]:
        """Return what the file says, as fields of a Spec."""
        said = {name: getattr(self, name) for name in self.given if name in Spec.__dataclass_fields__}
        return {name: one.wire() if isinstance(one, (WireKeys, HostKeys)) else one for name, one in said.items()}


@dataclass(frozen=True, slots=True)
class PresetKeys(ShapeKeys):
    """A known system, and what is different in this one."""

    topology: str = key(text, "")
    preset: str = key(text)
    bandwidth: float = key(_bandwidth, 0.0)


@dataclass(frozen=True, slots=True)
class DimensionalKeys(Keys):
    """A network of dimensions, the innermost first: one bandwidth and latency each."""

    topology: str = key(named_text)
    name: str | None = key(optional(named_text), None)
    bandwidth: list[float] = key(listed(_bandwidth))
    latency: list[float] = key(listed(_latency))
    overrides: list[OverrideKeys] = key(listed(nested(OverrideKeys)), ())


@dataclass(frozen=True, slots=True)
class AstraKeys(Keys):
    """ASTRA-sim's network.yml: bandwidths in its GB/s, which are 2^30 bytes, latencies in ns."""

    topology: list[str] = key(listed(named_text, least=1))
    npus_count: list[int] = key(listed(_count))
    bandwidth: list[float] = key(listed(_positive))
    latency: list[float] = key(listed(_positive_or_zero))

    def figures(self) -> DimensionalKeys:
        """Return it with bandwidths and latencies in our units."""
        return DimensionalKeys(
            topology="_".join(f"{word}({n})" for word, n in zip(self.topology, self.npus_count, strict=True)),
            bandwidth=[rate * GIB for rate in self.bandwidth],
            latency=[late / NS for late in self.latency],
        )


@dataclass(frozen=True, slots=True)
class CustomKeys(Keys):
    """A free list of nodes and links, and of routes if they are given."""

    topology: str = key(chosen("custom"), "custom")
    name: str | None = key(optional(named_text), None)
    bandwidth: float | None = key(optional(_bandwidth), None)
    latency: float = key(_latency, 0.0)
    nodes: list[NodeKeys] | None = key(optional(listed(_node)), None)
    links: list[LinkKeys] | dict[str, NamedLinkKeys] = key(_links, ())
    routes: list[RouteKeys] = key(listed(nested(RouteKeys)), ())
    routing: Routing = key(chosen(*get_args(Routing)), "shortest")
    overrides: list[OverrideKeys] = key(listed(nested(OverrideKeys)), ())


def read(keys: type[K], mapping: Mapping[str, Any], location: Location, bandwidth_fix: str) -> K:
    """Return the values of a mapping's keys. Raises ``TopologyError`` for the first problem, as ``Problems`` has it."""
    problems = Problems(location, bandwidth_fix)
    found = nested(keys, SECTIONS)(mapping, problems)
    problems.refuse()
    return found
