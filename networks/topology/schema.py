"""The schema of topology files, as pydantic models, from which docs/topology-format.md is written."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from triosim.errors import TopologyError, TriosimError, nearest
from triosim.input_files.limits import GPUS
from triosim.input_files.yaml_lines import Path
from triosim.networks.topology.description import SECTIONS, Location
from triosim.networks.topology.dimensional import BLOCKS, GIB, NS
from triosim.networks.topology.graph import LONGEST_LATENCY, NodeKind, Routing
from triosim.networks.topology.memories import NO_MEMORIES, Drives, Expansion, HostLink, HostMemory, NodeMemories
from triosim.networks.topology.pool import CHUNK, Pool
from triosim.networks.topology.shapes import NetworkName, ShapeSpec, Wire
from triosim.tasks import Tier
from triosim.units import parse_bandwidth, parse_bytes, parse_time

LIST, MAPPING = "[list]", "[mapping]"  # the two forms of `links`; pydantic puts them into an error's path


def _bandwidth(value: Any) -> float:
    number = _quantity(parse_bandwidth, value)
    if not 0 < number < math.inf:
        raise ValueError(f"'{value}' is not a positive number; write a bandwidth such as '450 GB/s'")
    return number


def _latency(value: Any) -> float:
    number = _quantity(parse_time, value)
    if not 0 <= number <= LONGEST_LATENCY:
        what = "more than any link has" if number > LONGEST_LATENCY else "not a time of 0 or more"
        raise ValueError(f"'{value}' is {what}; write a time such as '500 ns'")
    return number


def _capacity(value: Any) -> float:
    number = _quantity(parse_bytes, value)
    if not 0 < number < math.inf:
        raise ValueError(f"'{value}' is not a positive number of bytes; write a capacity such as '2 TB'")
    return number


def _quantity(parse: Any, value: Any) -> float:
    try:
        return float(parse(value))
    except TriosimError as error:
        raise ValueError(str(error)) from None


def _count(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{_shown(value)} is not a whole number from 1 to {GPUS.allowed:.0f}")
    if value > GPUS.allowed:
        raise ValueError(f"{_shown(value)} is more than the limit of {GPUS.allowed:,.0f}; {GPUS.fix(value)}")
    return value


def _shape(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        value = re.split(r"\s*[xX×*,]\s*", value.strip().removeprefix("(").removesuffix(")").rstrip(", "))
    if not isinstance(value, (list, tuple)):
        value = [value]
    if not 1 <= len(value) <= 6:
        raise ValueError(f"{len(value)} sides are not from 1 to 6; write a shape such as [4, 2]")
    sides = tuple(_count(side) for side in value)
    try:
        GPUS.check(math.prod(sides), "")
    except TriosimError as error:
        raise ValueError(str(error)) from None
    return sides


def _even(value: Any) -> int:
    k = _count(value)
    if k % 2 or k > 128:
        raise ValueError(f"{k} is not an even number from 2 to 128")
    return k


def _fanout(value: Any) -> int:
    count = _count(value)
    if count < 2:
        raise ValueError("a switch of a tree needs at least 2 children")
    return count


def _number(expected: str, *, most: float | None = None) -> BeforeValidator:
    """Return the check of a number without a unit, which is positive or, with ``most``, from 0 to that."""

    def checked(value: Any) -> float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not (0 < value <= _LARGEST if most is None else 0 <= value <= most):
            raise ValueError(f"{_shown(value)} is not a {expected}")
        return float(value)

    return BeforeValidator(checked)


#: The largest number without a unit: of GB/s, more than any machine has.
_LARGEST = 1e8
_RATIO = "positive number; 1 gives uplinks the bandwidth of all links below them"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Bandwidth = Annotated[float, BeforeValidator(_bandwidth)]
Latency = Annotated[float, BeforeValidator(_latency)]
Capacity = Annotated[float, BeforeValidator(_capacity)]
Count = Annotated[int, BeforeValidator(_count)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class HostModel(_Strict):
    """The link of each GPU, or of several, to the host memory of its node."""

    bandwidth: Bandwidth
    latency: Latency = 0.0
    gpus_per_link: Count = 1
    gpus_per_host: Count | None = None

    def spec(self) -> HostLink:
        """Return it as the generators take it."""
        return HostLink(**dict(self))


class HostMemoryModel(_Strict):
    """The main memory of a host."""

    capacity: Capacity
    bandwidth: Bandwidth
    simultaneous: Count | None = None

    def spec(self) -> HostMemory:
        """Return it as the generators take it."""
        return HostMemory(**dict(self))


class DrivesModel(_Strict):
    """The solid-state drives of a host, all together."""

    capacity: Capacity
    read: Bandwidth
    write: Bandwidth
    latency: Latency = 0.0
    simultaneous: Count | None = None

    def spec(self) -> Drives:
        """Return it as the generators take it."""
        return Drives(**dict(self))


class ExpansionModel(HostModel):
    """A memory that a node has besides its host's."""

    capacity: Capacity
    memory_bandwidth: Bandwidth
    simultaneous: Count | None = None

    def expansion(self) -> Expansion:
        """Return it as the generators take it."""
        link = HostLink(self.bandwidth, self.latency, self.gpus_per_link, self.gpus_per_host)
        return Expansion(link, HostMemory(self.capacity, self.memory_bandwidth, self.simultaneous))


class PoolModel(_Strict):
    """A pool of memory groups behind switches that all nodes share."""

    groups: Count
    switches: Count
    capacity: Capacity
    bandwidth: Bandwidth
    node_bandwidth: Bandwidth
    group_bandwidth: Bandwidth
    memory_bandwidth: Bandwidth | None = None
    latency: Latency = 0.0
    gathers: bool = False
    chunk: Capacity = CHUNK
    simultaneous: Count | None = None

    def spec(self) -> Pool:
        """Return it as the generators take it."""
        return Pool(**dict(self))


class WireModel(_Strict):
    """The link of a GPU to the fabric between nodes."""

    bandwidth: Bandwidth
    latency: Latency = 0.0
    gpus_per_nic: Count = 1
    network: NetworkName = "infiniband"

    def spec(self) -> Wire:
        """Return it as the generators take it."""
        return Wire(**dict(self))


class OverrideModel(_Strict):
    """A link whose figures differ from those of the others: one direction, or both."""

    source: Name = Field(alias="from")
    destination: Name = Field(alias="to")
    bandwidth: Bandwidth | None = None
    latency: Latency | None = None
    both: bool = False

    @model_validator(mode="after")
    def _changes_something(self) -> OverrideModel:
        if self.bandwidth is None and self.latency is None:
            raise ValueError("an override needs a bandwidth or a latency")
        return self


class NodeModel(_Strict):
    """A node; a kind that is not given follows from the name (gpu0, switch1, host0, memory0).

    The others are of a memory: its tier (host unless that is said), its bytes, and the bandwidth that its accesses share.
    """

    name: Name
    kind: NodeKind | None = None
    tier: Tier | None = None
    capacity: Capacity | None = None
    bandwidth: Bandwidth | None = None
    simultaneous: Count | None = None

    @property
    def says_memory(self) -> bool:
        """Whether it says something of a memory."""
        return not self.model_fields_set <= {"name", "kind"}


class LinkModel(_Strict):
    """A link between two nodes, of both directions unless it says otherwise."""

    source: Name = Field(alias="from")
    destination: Name = Field(alias="to")
    bandwidth: Bandwidth | None = None
    reverse_bandwidth: Bandwidth | None = None
    latency: Latency | None = None
    both: bool = True
    name: Name | None = None


class NamedLinkModel(_Strict):
    """A directed link that has its name as its key; without ends it is used by explicit routes alone."""

    source: Name | None = Field(default=None, alias="from")
    destination: Name | None = Field(default=None, alias="to")
    bandwidth: Bandwidth | None = None
    latency: Latency | None = None


class RouteModel(_Strict):
    """The links, by name, that messages from one node to another take."""

    source: Name = Field(alias="from")
    destination: Name = Field(alias="to")
    links: list[Name]


class ShapeModel(_Strict):
    """A regular topology."""

    topology: str
    name: Name | None = None
    gpus: Count | None = None
    shape: Annotated[tuple[int, ...], BeforeValidator(_shape)] | None = None
    dimensions: Annotated[Literal[1, 2, 3], Field()] = 2
    bandwidth: Bandwidth
    latency: Latency = 0.0
    reverse_bandwidth: Bandwidth | None = None
    fanout: Annotated[int, BeforeValidator(_fanout)] = 2
    levels: Count | None = None
    oversubscription: Annotated[float, _number(_RATIO)] | None = None
    k: Annotated[int, BeforeValidator(_even)] | None = None
    gpus_per_switch: Count = 4
    nodes: Count | None = None
    gpus_per_node: Count | None = None
    inter_node: WireModel | None = None
    host: HostModel | None = None
    host_memory: HostMemoryModel | None = None
    nvme: DrivesModel | None = None
    expansion: ExpansionModel | None = None
    pool: PoolModel | None = None
    routing: Routing | None = None
    in_switch_reduction: bool = False
    overrides: list[OverrideModel] = []

    def changes(self, memories: NodeMemories = NO_MEMORIES) -> dict[str, Any]:
        """Return what the file says, as fields of a ShapeSpec whose other ``memories`` stay as they are."""
        said = {key: getattr(self, key) for key in self.model_fields_set if key in ShapeSpec.__dataclass_fields__}
        if said.get("inter_node") is not None:
            said["inter_node"] = said["inter_node"].spec()
        own = {key: getattr(self, key) for key in self.model_fields_set if key in NodeMemories.__dataclass_fields__}
        specs: dict[str, Any] = {
            key: one.expansion() if isinstance(one, ExpansionModel) else one and one.spec() for key, one in own.items()
        }
        return {**said, "memories": replace(memories, **specs)} if own else said


class PresetModel(ShapeModel):
    """A known system, with changed figures."""

    topology: str = ""
    preset: str
    bandwidth: Bandwidth = 0.0
    network: NetworkName | None = None


class DimensionalModel(_Strict):
    """A network of dimensions, the innermost first: one bandwidth and latency each."""

    topology: Name
    name: Name | None = None
    bandwidth: list[Bandwidth]
    latency: list[Latency]
    overrides: list[OverrideModel] = []


class AstraModel(_Strict):
    """ASTRA-sim's network.yml: bandwidths of a link in its GB/s, which are 2^30 bytes, latencies in ns."""

    topology: Annotated[list[Name], Field(min_length=1)]
    npus_count: list[Count]
    bandwidth: list[Annotated[float, _number("positive number of GB/s, as ASTRA-sim writes bandwidths")]]
    latency: list[Annotated[float, _number("number of ns, as ASTRA-sim writes latencies", most=NS)]]

    def figures(self) -> DimensionalModel:
        """Return it in our units; the bandwidth of a dimension is that of all links of a GPU together."""
        blocks = [BLOCKS.get(word.lower()) for word in self.topology]
        links = [n - 1 if block == "fully_connected" else 1 for block, n in zip(blocks, self.npus_count, strict=False)]
        return DimensionalModel(
            topology="_".join(self.topology),
            bandwidth=[rate * GIB * max(1, number) for rate, number in zip(self.bandwidth, links, strict=False)],
            latency=[late / NS for late in self.latency],
        )


class CustomModel(_Strict):
    """A free list of nodes and links, and of routes if they are given."""

    topology: Literal["custom"] = "custom"
    name: Name | None = None
    bandwidth: Bandwidth | None = None
    latency: Latency = 0.0
    nodes: list[Annotated[NodeModel, BeforeValidator(_named)]] | None = None
    links: Annotated[
        Annotated[list[LinkModel], Tag(LIST)] | Annotated[dict[str, NamedLinkModel], Tag(MAPPING)],
        Discriminator(lambda value: MAPPING if isinstance(value, dict) else LIST),
    ] = []
    routes: list[RouteModel] = []
    routing: Routing = "shortest"
    overrides: list[OverrideModel] = []


#: What YAML calls what pydantic names by Python's types, and how it is written.
_STRUCTURES = {
    "list_type": ("a list", "write '[one, two]', or a line '- one' for each"),
    **dict.fromkeys(("model_type", "dict_type"), ("a mapping", "write '{key: value}'")),
}
#: The models of inner mappings, by the part of an error's path that leads to them.
_INNER: dict[str | int, type[BaseModel]] = {
    "overrides": OverrideModel,
    "routes": RouteModel,
    "nodes": NodeModel,
    "host": HostModel,
    "host_memory": HostMemoryModel,
    "nvme": DrivesModel,
    "expansion": ExpansionModel,
    "pool": PoolModel,
    "inter_node": WireModel,
    LIST: LinkModel,
    MAPPING: NamedLinkModel,
}
_MODELS: dict[str, type[BaseModel]] = {
    model.__name__: model for model in (ShapeModel, PresetModel, DimensionalModel, AstraModel, CustomModel)
}


def validated(model: str, mapping: dict[str, Any], location: Location, bandwidth_fix: str) -> BaseModel:
    """Return a mapping as the model of this name. Raises ``TopologyError`` for the first thing that is wrong in it."""
    try:
        return _MODELS[model].model_validate(mapping)
    except ValidationError as error:
        raise _refusal(error, _MODELS[model], location, bandwidth_fix) from None


def top_keys() -> set[str]:
    """Return the keys that may stand at the top of a file without dimensions."""
    return {*_names(PresetModel), *_names(CustomModel)}


def _refusal(error: ValidationError, model: type[BaseModel], location: Location, bandwidth_fix: str) -> TopologyError:
    """Return the first of pydantic's errors, said in our words; a misspelt key before the key that is missing for it."""

    def path_of(found: Any) -> Path:
        return tuple(part for part in found["loc"] if part not in (LIST, MAPPING))

    errors = error.errors(include_url=False)
    found = min(errors, key=lambda found: (found["type"] != "extra_forbidden", location.lines.get(path_of(found), 0)))
    path, kind, value = path_of(found), found["type"], found["input"]
    key, where = str(path[-1]) if path else "", location.where(path)
    if kind == "extra_forbidden":
        return TopologyError("unknown key", where=where, fix=nearest(key, _known_keys(model, found["loc"])))
    if kind == "missing":
        return TopologyError(f"'{key}' is missing", where=where, fix=bandwidth_fix if key == "bandwidth" else None)
    if kind == "value_error":
        return TopologyError(str(found["ctx"]["error"]), where=where)
    shown = "nothing" if value is None else _shown(value)
    if kind in _STRUCTURES:
        return TopologyError(f"{shown} is not {_STRUCTURES[kind][0]}", where=where, fix=_STRUCTURES[kind][1])
    return TopologyError(f"{shown} is not valid: {found['msg'][:1].lower()}{found['msg'][1:]}", where=where)


def _known_keys(model: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    """Return the keys that the mapping at a location may have, for suggesting one."""
    inner = [_INNER[part] for part in location[:-1] if part in _INNER]
    return _names(inner[-1]) if inner else [*_names(model), *SECTIONS]


def _names(model: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in model.model_fields.items()]
