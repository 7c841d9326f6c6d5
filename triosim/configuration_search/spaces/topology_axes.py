"""Axes that change a topology: ``--vary-topology "bandwidth=25 GB/s..400 GB/s"`` and ``--vary-topology dims``.

A key is one of the topology's file, of a mapping in it by a dot (``inter_node.bandwidth``), and of a list by the number of
the dimension, from 1 on (``bandwidth.2``). ``dims`` arranges the GPUs of a network of dimensions anew: its axes are the sizes
of the dimensions (``topology.shape``, some of which may be 1) and what joins each of them (``topology.block.1``: Ring, FC or
Switch).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from triosim.configuration_search.point import Point, Value
from triosim.errors import OptionError
from triosim.networks.topology import SECTIONS, Topology
from triosim.networks.topology.dimensional import is_written, parts
from triosim.networks.topology.file import as_mapping

#: How the axes of a topology's keys begin.
TOPOLOGY_KEY = "topology."
SHAPE, BLOCK = f"{TOPOLOGY_KEY}shape", f"{TOPOLOGY_KEY}block."
#: What ``--vary-topology`` calls the arrangement of the GPUs.
DIMENSIONS = "dims"
_BLOCKS = ("Ring", "FC", "Switch")
_WHERE = "--vary-topology"


def changes_of(point: Point) -> dict[str, Value]:
    """Return what a point says of its topology, by the names of axes."""
    return {name: value for name, value in point.settings if name.startswith(TOPOLOGY_KEY)}


def changed_mapping(topology: Any, point: Point) -> dict[str, Any] | None:
    """Return what a file would hold of a point's topology; None where the point does not change it.

    Raises ``OptionError`` for a topology that has no such keys.
    """
    changes = changes_of(point)
    if not changes:
        return None
    mapping = mapping_of(topology)
    sizes = str(changes[SHAPE]).split("x") if SHAPE in changes else [size for _, size in _dimensions(mapping)]
    blocks = [block for block, _ in _dimensions(mapping)]
    for number in range(len(blocks)):
        blocks[number] = str(changes.get(f"{BLOCK}{number + 1}", blocks[number]))
    if blocks:
        mapping["topology"] = "_".join(f"{block}({size})" for block, size in zip(blocks, sizes, strict=True))
    for name, value in changes.items():
        if name != SHAPE and not name.startswith(BLOCK):
            _set(mapping, name.removeprefix(TOPOLOGY_KEY), value, len(blocks))
    return mapping


def changed_topology(topology: Any, point: Point) -> str | Mapping[str, Any] | None:
    """Return a point's topology as the command line takes it, or as a mapping, where that has no words for it.

    None where the point does not change it.
    """
    mapping = changed_mapping(topology, point)
    if mapping is None:
        return None
    kept = {key: value for key, value in mapping.items() if key != "price"}
    return _name(kept) or kept


def mapping_of(topology: Any) -> dict[str, Any]:
    """Return what a file would hold of a topology. Raises ``OptionError`` for one whose keys cannot vary."""
    if topology is None:
        raise OptionError("there is no topology to vary", where=_WHERE, fix="give --topology")
    if isinstance(topology, str):
        Topology.load(topology)
        mapping: Mapping[str, Any] | None = as_mapping(topology)
    else:
        mapping = topology.mapping if isinstance(topology, Topology) else topology
    if mapping is None or not ("preset" in mapping or isinstance(mapping.get("topology"), str)):
        fix = "give a preset, a shape, or dimensions such as 'Ring(4, bandwidth=100 GB/s)_Switch(8, bandwidth=25 GB/s)'"
        raise OptionError("a list of links has no keys that vary", where=_WHERE, fix=fix)
    return dict(mapping)


def arrangements(topology: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield the names and values of the axes that arrange the GPUs of a network of dimensions anew.

    Raises ``OptionError`` for any other network.
    """
    dimensions = list(_dimensions(mapping_of(topology)))
    if not dimensions:
        fix = "give dimensions, such as 'Ring(4, bandwidth=100 GB/s)_Switch(8, bandwidth=25 GB/s)'"
        raise OptionError(f"the topology has no dimensions for '{DIMENSIONS}'", where=_WHERE, fix=fix)
    gpus = prod(int(size) for _, size in dimensions)
    yield SHAPE, ["x".join(map(str, sizes)) for sizes in _factors(gpus, len(dimensions))]
    for number in range(len(dimensions)):
        yield f"{BLOCK}{number + 1}", list(_BLOCKS)


def is_repeated(point: Point) -> bool:
    """Whether another point has the same links: a dimension of one GPU needs none, and two are joined alike by Ring and FC."""
    changes = changes_of(point)
    if SHAPE not in changes:
        return False
    for number, size in enumerate(str(changes[SHAPE]).split("x"), 1):
        block = changes.get(f"{BLOCK}{number}")
        if (size == "1" and block not in (None, _BLOCKS[0])) or (size == "2" and block == "FC"):
            return True
    return False


def _factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield the ordered ways to write a number as a product of so many."""
    if count == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            yield from ((first, *rest) for rest in _factors(number // first, count - 1))


def _dimensions(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the block and the size of each dimension; none of any other topology."""
    said = mapping.get("topology")
    if not isinstance(said, str) or not is_written(said):
        return []
    return [(block, size.partition(",")[0].strip()) for block, size in parts(said)]


def _set(mapping: dict[str, Any], key: str, value: Value, dimensions: int) -> None:
    """Change a key; what it is in is copied. Raises ``OptionError`` for a place that is none."""
    where = f"{_WHERE} {key}"
    first, _, rest = key.partition(".")
    if not rest:
        mapping[first] = value
        return
    held = mapping.get(first)
    if rest.isdecimal():
        if not 1 <= int(rest) <= dimensions:
            raise OptionError(f"there is no dimension {rest}", where=where, fix=f"give 1 to {dimensions}")
        listed = list(held) if isinstance(held, list) else [held] * dimensions
        listed[int(rest) - 1] = value
        mapping[first] = listed
        return
    if held is not None and not isinstance(held, Mapping):
        raise OptionError(f"'{first}' has no keys", where=where, fix=f"vary {first}")
    mapping[first] = {**(held or {})}
    _set(mapping[first], rest, value, dimensions)


def _name(mapping: Mapping[str, Any]) -> str | None:
    """Return a topology as a name with parameters; None where it has what a name has no words for."""
    dimensions = _dimensions(mapping)
    if dimensions and mapping.keys() <= {"topology", "bandwidth", "latency"}:
        return "_".join(
            f"{block}({', '.join((size, *_figures(mapping, number)))})"
            for number, (block, size) in enumerate(dimensions)
        )
    if dimensions or not {*SECTIONS}.isdisjoint(mapping):
        return None
    kind = "preset" if "preset" in mapping else "topology"
    return f"{mapping[kind]}({', '.join(f'{key}={_text(value)}' for key, value in mapping.items() if key != kind)})"


def _figures(mapping: Mapping[str, Any], number: int) -> Iterator[str]:
    for key in ("bandwidth", "latency"):
        value = mapping.get(key)
        if value is not None:
            yield f"{key}={_text(value[number] if isinstance(value, list) else value)}"


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_text, value)) + "]"
    return value if isinstance(value, str) else json.dumps(value)
