"""Reads topologies from YAML files, mappings and names with parameters; errors name file, line and key.

What may be written is in :mod:`triosim.networks.topology.schema`, in words in docs/topology-format.md.
"""

from __future__ import annotations

import importlib
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triosim.errors import TopologyError, TriosimError, nearest
from triosim.input_files import yaml_lines
from triosim.input_files.pipes import STANDARD_INPUT
from triosim.input_files.reading import read_text
from triosim.networks.topology import dimensional
from triosim.networks.topology.description import SECTIONS, Description, Location, PresetUse, Section, check_figures
from triosim.networks.topology.graph import Dimension, Graph, GraphDraft, Node, NodeKind, path, suggested
from triosim.networks.topology.memories import declare
from triosim.networks.topology.presets import PRESETS
from triosim.networks.topology.shapes import SHAPES, ShapeSpec, described, outline
from triosim.units import parse_bandwidth, parse_time

if TYPE_CHECKING:
    from triosim.networks.topology import schema

EXAMPLE = "such as 'switch(8, bandwidth=100 GB/s, latency=1 us)'"
_NAME = re.compile(r"\s*([A-Za-z0-9_-]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_KINDS: tuple[tuple[str, NodeKind], ...] = (
    ("gpu", "gpu"), ("host", "host"), ("cpu", "host"), ("mem", "memory"), ("dram", "memory")
)  # fmt: skip

# The keys that only some shapes take, and those that one of them does not.
_OF_SHAPE = {
    "shape": ("mesh", "torus"),
    "dimensions": ("mesh", "torus"),
    "fanout": ("tree",),
    "levels": ("tree",),
    "oversubscription": ("tree",),
    "k": ("fat_tree",),
    "gpus_per_switch": ("pcie_tree",),
    "reverse_bandwidth": tuple(shape for shape in SHAPES if shape != "bus"),
    "host": tuple(shape for shape in SHAPES if shape != "pcie_tree"),
    "in_switch_reduction": ("switch", "tree", "fat_tree"),
}


def _named(text: str) -> tuple[str, str | None] | None:
    """Return a name and its arguments, if a text is one; a preset's in any case."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    name = match[1].lower() if match[1].lower() in PRESETS else match[1]
    return (name, match[2]) if name in SHAPES or name in PRESETS or match[2] is not None else None


def as_mapping(path_or_name: str) -> dict[str, Any]:
    """Return what a name or a file that :func:`load` has accepted says, as the mapping that a file holds."""
    if dimensional.is_notation(path_or_name):
        return _notation(path_or_name)
    found = _named(path_or_name)
    if found is not None:
        return _arguments(path_or_name.strip(), *found)
    mapping, _ = yaml_lines.parse(read_text(Path(path_or_name), TopologyError), path_or_name)
    return dict(mapping)


def load(path_or_name: str | os.PathLike[str], *, gpus: int | None = None) -> Description:
    """Return the description that a file, a preset or a name with parameters stands for; see ``Topology.load``."""
    if isinstance(path_or_name, str):
        _check_parentheses(path_or_name)
        if dimensional.is_notation(path_or_name):
            return _checked(_notation(path_or_name), Location(path_or_name), gpus)
        found = _named(path_or_name)
        if found is not None:
            return _from_name(path_or_name.strip(), *found, gpus)
    file = os.fspath(path_or_name)
    if file != STANDARD_INPUT and not os.path.exists(file):
        if isinstance(path_or_name, str) and not re.search(r"[./\\]", file):
            raise TopologyError(f"unknown topology '{file}'", fix=nearest(file, (*SHAPES, *PRESETS)))
        raise TopologyError("no such file", where=file, fix=f"give a YAML file, a preset, or a name {EXAMPLE}")
    mapping, lines = yaml_lines.parse(read_text(Path(file), TopologyError), file)
    if not isinstance(mapping, dict):
        what = "is empty" if mapping is None else "not a mapping of keys to values"
        raise TopologyError(what, where=file, fix="begin with 'topology: switch', say")
    return _checked(mapping, Location(file, lines), gpus)


def _checked(mapping: dict[str, Any], location: Location, asked: int | None) -> Description:
    """Return the description of what somebody wrote, whose figures may lack units; those of a mapping in Python have none."""
    found = _from_mapping(mapping, location, asked)
    check_figures(mapping, location)
    return found


def _check_parentheses(text: str) -> None:
    """Raise ``TopologyError`` for the name of a topology with a parenthesis that is not closed, or not opened."""
    name = text.partition("(")[0].strip(" )")
    if name.lower() in (*SHAPES, *PRESETS, *dimensional.BLOCKS) and not os.path.exists(text):
        yaml_lines.check_parentheses(text)


def from_mapping(mapping: Mapping[str, Any], *, source: str = "topology", gpus: int | None = None) -> Description:
    """Return the description that a mapping describes; see ``Topology.from_dict``."""
    if not isinstance(mapping, Mapping):
        raise TopologyError(f"{type(mapping).__name__} is not a mapping of keys to values", where=source)
    return _from_mapping(dict(mapping), Location(source), gpus)


def _from_name(text: str, name: str, arguments: str | None, asked: int | None) -> Description:
    """Return the description of ``name(4x2, bandwidth=65 GB/s)``; arguments without a key are the size."""
    if name not in SHAPES and name not in PRESETS:
        raise TopologyError(f"unknown topology '{name}'", fix=nearest(name, (*SHAPES, *PRESETS)))
    if name in PRESETS and not (arguments or "").strip():
        plain = _from_spec(PRESETS[name].spec, None, Location(text), asked)  # ours, so there is nothing to validate
        return replace(plain, preset=PresetUse(name), mapping={"preset": name, "gpus": plain.gpus})
    return _checked(_arguments(text, name, arguments), Location(text), asked)


def _arguments(text: str, name: str, arguments: str | None) -> dict[str, Any]:
    """Return a name with arguments as the mapping that a file would hold."""
    mapping: dict[str, Any] = {"topology" if name in SHAPES else "preset": name}
    sizes: list[Any] = []
    for key, value in yaml_lines.arguments(arguments or "", text):
        if key in mapping:
            raise TopologyError(f"'{key}' is given twice", where=text, fix="give it once")
        if not key and (meant := _key_of(value)):
            raise TopologyError(f"'{value}' has no key", where=text, fix=f"write '{meant}={value}'")
        if key:
            mapping[key] = value
        else:
            sizes.extend(value if isinstance(value, list) else _tuple(value))
    if not sizes:
        return mapping
    key = "gpus" if len(sizes) == 1 and not re.search(r"\d\s*[xX×*]", str(sizes[0])) else "shape"
    if key in mapping or (len(sizes) > 1 and name not in _OF_SHAPE["shape"]):
        fix = f"write for example '{name}(8, bandwidth=100 GB/s)'"
        raise TopologyError(f"{name} has one number of GPUs, and {len(sizes) + (key in mapping)} are given", text, fix)
    return {**mapping, key: sizes if len(sizes) > 1 else sizes[0]}


def _key_of(value: Any) -> str | None:
    """Return the key whose value a text with a unit can be; None for other texts, such as sizes."""
    for key, parse in (("bandwidth", parse_bandwidth), ("latency", parse_time)):
        with suppress(TriosimError):
            if re.search(r"[A-Za-z]", str(value)) and math.isfinite(parse(value)):
                return key
    return None


def _tuple(value: Any) -> list[Any]:
    """Return the numbers of ``(12, 7)``, or the value itself."""
    inside = re.fullmatch(r"\(([\d\s,]+)\)", str(value))
    return [value] if inside is None else [one.strip() for one in inside[1].split(",") if one.strip()]


def _notation(text: str) -> dict[str, Any]:
    """Return ``Ring(4, bandwidth=100 GB/s, latency=1 us)_Switch(2, bandwidth=...)`` as the mapping that a file would hold."""
    figures: dict[str, list[Any]] = {"bandwidth": [], "latency": []}
    blocks, parts = [], list(dimensional.parts(text))
    for word, _ in parts:
        with Location(text).at():
            dimensional.block_of(word)
    for word, arguments in parts:
        size, *others = yaml_lines.split_arguments(arguments) or [""]
        for argument in (size, *others):
            yaml_lines.check_comma(argument, text)
        said = {key.strip(): value.strip() for key, _, value in (other.partition("=") for other in others)}
        for key in said:
            if key not in figures:
                raise TopologyError("unknown key", where=f"{text}: {key}", fix=nearest(key, figures))
        if "bandwidth" not in said:
            fix = f"write for example '{word}({size.strip()}, bandwidth=100 GB/s)'"
            raise TopologyError("'bandwidth' is missing", where=f"{text}: {word}", fix=fix)
        blocks.append(f"{word}({size.strip()})")
        figures["bandwidth"].append(said["bandwidth"])
        figures["latency"].append(said.get("latency", 0.0))
    return {"topology": "_".join(blocks), **figures}


def _dimensional(said: schema.DimensionalModel, words: list[str], sizes: list[int], location: Location) -> Description:
    """Return the description of blocks and their sizes, one bandwidth and latency a dimension."""
    for key, values in (("npus_count", sizes), ("bandwidth", said.bandwidth), ("latency", said.latency)):
        if len(values) != len(words):
            what, fix = f"{len(values)} values for {len(words)} dimensions", "write one for each, the innermost first"
            raise TopologyError(what, where=location.where((key,)), fix=fix)
    with location.at("topology"):
        blocks = [dimensional.block_of(word) for word in words]
    dimensions = [
        Dimension(block, size, bandwidth, latency)
        for block, size, bandwidth, latency in zip(blocks, sizes, said.bandwidth, said.latency, strict=True)
    ]
    name = said.name or "_".join(f"{word}({size})" for word, size in zip(words, sizes, strict=True))

    def change(result: GraphDraft) -> None:
        _override(result, said.overrides, location)

    with location.at():
        return dimensional.description(name, dimensions, change if said.overrides else None)


def _from_dimensions(mapping: dict[str, Any], location: Location) -> Description:
    """Return the description of a mapping in the notation of dimensions, or with the keys of ASTRA-sim's network.yml."""
    if "npus_count" in mapping or isinstance(mapping["topology"], list):
        astra = _validated("AstraModel", mapping, location)
        return _dimensional(astra.figures(), astra.topology, astra.npus_count, location)
    words, sizes = [], []
    with location.at("topology"):
        for word, size in dimensional.parts(mapping["topology"]):
            if not re.fullmatch(r"\s*\d{1,9}\s*", size) or int(size) < 1:
                raise TopologyError(f"'{size}' is not a number of GPUs", fix=f"write for example '{word}(4)'")
            words.append(word)
            sizes.append(int(size))
    values = dict(mapping)
    for key, missing in (("bandwidth", None), ("latency", 0.0)):
        value = values.get(key, missing)
        if value is not None and not isinstance(value, list):
            values[key] = [value] * len(words)
    return _dimensional(_validated("DimensionalModel", values, location), words, sizes, location)


def _from_mapping(mapping: dict[str, Any], location: Location, asked: int | None) -> Description:
    graph = {key: value for key, value in mapping.items() if key not in SECTIONS}
    sections = {key: Section(key, mapping[key], location) for key in SECTIONS if key in mapping}
    found = _graph(graph, location, asked)
    if asked is not None and found.gpus < asked:
        by_name = "nodes are GPUs if their names begin with gpu or they say 'kind: gpu'"
        fix = None if found.regularity.by_dimension else by_name
        raise TopologyError(f"it has {found.gpus} GPUs, {asked} are asked for", where=location.source, fix=fix)
    implied: dict[
        str, Any
    ] = {}  # what the mapping leaves to the file's name, or to the number of GPUs that was asked for
    if "preset" in mapping or mapping.get("topology") in list(SHAPES):
        implied = {"gpus": found.gpus}
    elif not found.regularity.by_dimension:
        implied = {"name": found.name}
    return replace(found, location=location, sections=sections, mapping={**implied, **mapping})


def custom_mapping(name: str, graph: Graph, routing: str) -> dict[str, Any]:
    """Return a graph as the mapping that a file would hold."""
    links = {}
    for link in graph.links.values():
        if link.source and link.source == link.destination:
            continue  # a memory's, which its node says
        ends = {"from": link.source, "to": link.destination} if link.source else {}
        links[link.name] = {**ends, "bandwidth": link.bandwidth, "latency": link.latency}
    routes = [
        {"from": source, "to": destination, "links": [link.name for link in route]}
        for (source, destination), route in graph.routes.items()
    ]
    nodes = [_node_mapping(node, graph) for node in graph.nodes.values()]
    return {"topology": "custom", "name": name, "nodes": nodes, "links": links, "routes": routes, "routing": routing}


def _node_mapping(node: Node, graph: Graph) -> dict[str, Any]:
    """Return a node as a file has it."""
    said: dict[str, Any] = {"name": node.name, "kind": node.kind}
    memory = graph.memories.get(node.name)
    if memory is None:
        return said
    bandwidth = None if memory.port is None else graph.links[memory.port].bandwidth
    capacity = None if math.isinf(memory.capacity) else memory.capacity
    figures = {"capacity": capacity, "bandwidth": bandwidth, "simultaneous": memory.simultaneous}
    return said | {"tier": memory.tier} | {key: value for key, value in figures.items() if value is not None}


def _graph(mapping: dict[str, Any], location: Location, asked: int | None) -> Description:
    if "preset" in mapping:
        preset = _validated("PresetModel", _with_card(mapping), location)
        if preset.topology:
            raise TopologyError(
                "a preset has a topology of its own", where=location.where(("topology",)), fix="leave one out"
            )
        if preset.preset not in PRESETS:
            fix = nearest(preset.preset, PRESETS)
            raise TopologyError(f"unknown preset '{preset.preset}'", where=location.where(("preset",)), fix=fix)
        spec = _changed(PRESETS[preset.preset].spec, preset, location)
        use = PresetUse(preset.preset, frozenset(preset.model_fields_set))
        return replace(_from_spec(spec, preset, location, asked), preset=use)
    custom = "links" in mapping or "routes" in mapping or isinstance(mapping.get("nodes"), list)
    kind = mapping.get("topology", "custom" if custom else None)
    if "npus_count" in mapping or dimensional.is_written(kind):
        return _from_dimensions({"topology": "", **mapping}, location)
    if kind is None:
        known = _schema().top_keys()
        for key in [key for key in mapping if key not in known]:
            raise TopologyError("unknown key", where=location.where((key,)), fix=nearest(str(key), sorted(known)))
        fix = "write for example 'topology: switch', or 'preset: dgx-h100'"
        raise TopologyError("'topology' is missing", where=location.source, fix=fix)
    if kind == "custom":
        return _custom(_validated("CustomModel", mapping, location), location)
    if not isinstance(kind, str) or kind not in SHAPES:
        fix = nearest(str(kind), (*SHAPES, "custom"))
        if str(kind) in PRESETS:
            fix = f"it is a preset: write 'preset: {kind}'"
        raise TopologyError(f"unknown topology '{kind}'", where=location.where(("topology",)), fix=fix)
    shape = _validated("ShapeModel", mapping, location)
    return _from_spec(ShapeSpec(**shape.changes()), shape, location, asked)


def _with_card(mapping: dict[str, Any]) -> dict[str, Any]:
    """Return the mapping of a preset, whose ``inter_node`` has what it does not say from the preset's."""
    usual, said = PRESETS.get(str(mapping["preset"])), mapping.get("inter_node")
    if usual is None or usual.spec.inter_node is None or not isinstance(said, Mapping):
        return mapping
    return {**mapping, "inter_node": {**asdict(usual.spec.inter_node), **said}}


def _changed(spec: ShapeSpec, said: schema.PresetModel, location: Location) -> ShapeSpec:
    """Return the spec of a preset with what a file says of it."""
    spec = replace(spec, **said.changes(spec.memories) | {"topology": spec.topology})
    if said.network is None:
        return spec
    if spec.inter_node is None:
        where, fix = location.where(("network",)), "leave it out"
        raise TopologyError(f"nothing is between nodes of a {said.preset}", where=where, fix=fix)
    return replace(spec, inter_node=replace(spec.inter_node, network=said.network))


def _from_spec(spec: ShapeSpec, said: schema.ShapeModel | None, location: Location, asked: int | None) -> Description:
    if asked is not None and asked < 1:
        raise TopologyError(f"{asked} GPUs are asked for", where=location.source, fix="ask for at least one")
    for key in said.model_fields_set if said else ():
        if spec.topology not in _OF_SHAPE.get(key, SHAPES):
            fix = f"it is for {', '.join(_OF_SHAPE[key])}"
            raise TopologyError(f"a {spec.topology} has no '{key}'", where=location.where((key,)), fix=fix)
    if spec.inter_node is None:
        for key in ("nodes", "gpus_per_node"):
            if getattr(spec, key) is not None:
                fix = "write for example 'inter_node: {bandwidth: 50 GB/s, latency: 1 us}'"
                raise TopologyError(f"'{key}' needs 'inter_node'", where=location.where((key,)), fix=fix)
    if spec.memories.host is None and spec.topology in _OF_SHAPE["host"]:
        for key in ("host_memory", "nvme"):
            if getattr(spec.memories, key) is not None:
                fix = "write for example 'host: {bandwidth: 50 GB/s, latency: 1 us}'"
                raise TopologyError(f"'{key}' needs 'host'", where=location.where((key,)), fix=fix)
    guilty = next(
        (key for key in ("gpus", "shape", "nodes", "k", "levels") if said and key in said.model_fields_set), None
    )
    with location.at(*([guilty] if guilty else [])):
        found = outline(spec, asked)
    if not (said and said.overrides):
        with location.at():
            return found.description()
    result = found.draft()
    _override(result, said.overrides, location)
    with location.at():
        return replace(described(result, found), overridden=True)


def _custom(said: schema.CustomModel, location: Location) -> Description:
    result = GraphDraft(said.name or os.path.basename(location.source), said.routing)
    for index, node in enumerate(said.nodes or ()):
        with location.at("nodes", index):
            result.node(node.name, node.kind or kind_of(node.name))
            if node.says_memory:
                _declare_memory(result, node)
    if said.nodes is None:
        for name in _mentioned(said):
            result.node(name, kind_of(name))
    entries = said.links.items() if isinstance(said.links, dict) else enumerate(said.links)
    for key, link in entries:
        with location.at("links", key):
            _add_link(result, said, key, link)
    for index, route in enumerate(said.routes):
        with location.at("routes", index):
            pair = (_known(result, route.source), _known(result, route.destination))
            if pair in result.routes:
                raise TopologyError(f"the route from {pair[0]} to {pair[1]} is given twice")
            path(result.links, *pair, route.links)
            result.routes[pair] = route.links
    _override(result, said.overrides, location)
    with location.at():
        return described(result)


def _declare_memory(result: GraphDraft, node: schema.NodeModel) -> None:
    """Take what a node says of its memory."""
    if result.nodes[node.name].kind not in ("host", "memory"):
        raise TopologyError(f"{node.name} is a {result.nodes[node.name].kind}, no memory", fix="write 'kind: memory'")
    capacity = math.inf if node.capacity is None else node.capacity
    declare(result, node.name, node.tier or "host", capacity, node.bandwidth, node.simultaneous)


def kind_of(name: str) -> NodeKind:
    """Return the kind of a node that does not say it: gpu0, host0, cpu0, mem0, dram0; anything else is a switch."""
    return next((kind for prefix, kind in _KINDS if name.lower().startswith(prefix)), "switch")


def _mentioned(said: schema.CustomModel) -> list[str]:
    """Return the nodes that links and routes name, as they come, but GPUs in the order of their numbers."""
    links = said.links.values() if isinstance(said.links, dict) else said.links
    ends = (name for item in (*links, *said.routes) for name in (item.source, item.destination) if name)
    names = dict.fromkeys(ends)
    gpus = sorted((name for name in names if kind_of(name) == "gpu"), key=_natural)
    return gpus + [name for name in names if kind_of(name) != "gpu"]


def _natural(name: str) -> list[tuple[int, int | str]]:
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", name)]


def _known(result: GraphDraft, name: str) -> str:
    if name not in result.nodes:
        raise TopologyError(f"unknown node '{name}'", fix=suggested(name, result.nodes))
    return name


def _add_link(
    result: GraphDraft, said: schema.CustomModel, key: str | int, link: schema.LinkModel | schema.NamedLinkModel
) -> None:
    bandwidth = said.bandwidth if link.bandwidth is None else link.bandwidth
    if bandwidth is None:
        raise TopologyError("bandwidth is missing", fix="write for example 'bandwidth: 100 GB/s'")
    latency = said.latency if link.latency is None else link.latency
    source, destination = (_known(result, name) if name else "" for name in (link.source, link.destination))
    if bool(source) != bool(destination):
        raise TopologyError(
            "a link has both 'from' and 'to', or neither", fix="a link without them is used by explicit routes alone"
        )
    if source and source == destination:
        raise TopologyError(f"a link leads from {source} to itself", fix="name two nodes")
    if isinstance(key, str):
        result.link(source, destination, bandwidth, latency, key)
        return
    name, both = getattr(link, "name", None), getattr(link, "both", False)
    result.link(source, destination, bandwidth, latency, name)
    if both:
        back = getattr(link, "reverse_bandwidth", None) or bandwidth
        result.link(destination, source, back, latency, name and f"{name}.back")


def _override(result: GraphDraft, overrides: list[schema.OverrideModel], location: Location) -> None:
    """Change the links between two nodes, in one direction or both."""
    if not overrides:
        return
    result.uniform = False
    between: dict[tuple[str, str], list[str]] = {}
    for link in result.links.values():
        between.setdefault((link.source, link.destination), []).append(link.name)
    for index, override in enumerate(overrides):
        with location.at("overrides", index):
            ends = (_known(result, override.source), _known(result, override.destination))
            for source, destination in (ends, ends[::-1]) if override.both else (ends,):
                if (source, destination) not in between:
                    near = ", ".join([other for start, other in between if start == source][:8])
                    fix = f"{source} is linked to {near}" if near else None
                    raise TopologyError(f"there is no link from {source} to {destination}", fix=fix)
                for name in between[source, destination]:
                    link = result.links[name]
                    result.links[name] = replace(
                        link,
                        bandwidth=link.bandwidth if override.bandwidth is None else override.bandwidth,
                        latency=link.latency if override.latency is None else override.latency,
                    )


def _schema() -> Any:
    """Return the module of pydantic models, loaded when it is needed: pydantic takes 0.1 s, and a plain preset needs none."""
    return importlib.import_module("triosim.networks.topology.schema")


def _validated(model: str, mapping: dict[str, Any], location: Location) -> Any:
    return _schema().validated(model, mapping, location, _bandwidth_for(location.source))


def _bandwidth_for(source: str) -> str:
    """Return how a bandwidth is given: in a file, or in the brackets of a name."""
    name = _NAME.fullmatch(source)
    if name is None or name[1] not in SHAPES:
        return "write for example 'bandwidth: 100 GB/s'"
    before = f"{name[2].strip()}, " if (name[2] or "").strip() else ""
    return f"write for example '{name[1]}({before}bandwidth=100 GB/s)'"
