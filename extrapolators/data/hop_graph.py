"""The communication graph of Hop: the neighbours that each worker sends its parameters to.

The two graphs of Hop's study (Luo et al. 2019; TrioSim, figure 16), a plain ring, a complete graph, and any other from a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from triosim.errors import OptionError, nearest
from triosim.input_files.reading import read_text

Edge = tuple[int, int]

_EDGE = re.compile(r"(\d+)\s*(->|-)\s*(\d+)")


@dataclass(frozen=True, slots=True)
class WorkerGraph:
    """By worker, the neighbours that it sends to and those that it receives from, in ascending order."""

    destinations: Mapping[int, tuple[int, ...]]
    sources: Mapping[int, tuple[int, ...]]

    @classmethod
    def of(cls, name: str, size: int, edges: Iterable[Edge]) -> WorkerGraph:
        """Return the graph of ``size`` workers with directed edges; those from a worker to itself are left out.

        Raises ``OptionError`` where no path leads from one worker to another.
        """
        destinations: dict[int, list[int]] = {worker: [] for worker in range(size)}
        sources: dict[int, list[int]] = {worker: [] for worker in range(size)}
        for a, b in sorted({edge for edge in edges if edge[0] != edge[1]}):
            destinations[a].append(b)
            sources[b].append(a)
        graph = cls(*({one: tuple(found[one]) for one in found} for found in (destinations, sources)))
        for neighbours, direction in ((graph.destinations, "from worker 0 to"), (graph.sources, "to worker 0 from")):
            lost = sorted(set(range(size)) - _reached(neighbours))
            if lost:
                fix = "connect all workers; the file must name every GPU"
                raise OptionError(f"no path leads {direction} worker {lost[0]}", where=f"graph {name}", fix=fix)
        return graph


def load(name: str, size: int) -> WorkerGraph:
    """Return the graph of this name on workers 0 to ``size`` - 1, or the one in a file of edges.

    A file has an edge a line, ``0 -> 1`` or, in both directions, ``0 - 1``; ``#`` begins a comment. Raises ``OptionError``.
    """
    if name in _GRAPHS:
        edges = list(_GRAPHS[name](range(size)))
        return WorkerGraph.of(name, size, [*edges, *((b, a) for a, b in edges)])
    path = Path(name)
    if not path.is_file():
        fix = nearest(name, _GRAPHS) or f"one of {', '.join(_GRAPHS)}, or a file of edges"
        raise OptionError(f"there is no graph '{name}', nor such a file", where="--option graph", fix=fix)
    return WorkerGraph.of(name, size, _read(path, size))


def _ring(workers: range) -> Iterable[Edge]:
    return zip(workers, (*workers[1:], workers[0]), strict=True)


def _ring_based(workers: range) -> Iterable[Edge]:
    """A ring, and an edge from each to the most distant one (of an odd number, to both of them)."""
    half = len(workers) // 2
    yield from _ring(workers)
    yield from zip(workers, (*workers[half:], *workers[:half]), strict=True)


def _double_ring(workers: range) -> Iterable[Edge]:
    """Two ring-based graphs, joined node to node."""
    size, half = len(workers), len(workers) // 2
    if size % 2 or size < 4:
        fix = "take an even number of 4 or more"
        raise OptionError(f"{size} workers do not form two equal rings", where="graph double-ring", fix=fix)
    yield from _ring_based(workers[:half])
    yield from _ring_based(workers[half:])
    yield from zip(workers[:half], workers[half:], strict=True)


#: The graphs that have a name; their edges are used in both directions.
_GRAPHS: dict[str, Callable[[range], Iterable[Edge]]] = {
    "ring-based": _ring_based,
    "double-ring": _double_ring,
    "ring": _ring,
    "complete": lambda workers: combinations(workers, 2),
}


def _read(path: Path, size: int) -> list[Edge]:
    lines = read_text(path, OptionError).splitlines()
    edges: list[Edge] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = _EDGE.fullmatch(text)
        where = f"{path}:{number}"
        if found is None:
            fix = "write '0 -> 1', or '0 - 1' for both ways"
            raise OptionError(f"'{text:.40}' is not an edge", where=where, fix=fix)
        a, b = int(found[1]), int(found[3])
        if max(a, b) >= size:
            raise OptionError(f"there is no worker {max(a, b)}", where=where, fix=f"workers are 0 to {size - 1}")
        edges += [(a, b)] if found[2] == "->" else [(a, b), (b, a)]
    return edges


def _reached(neighbours: Mapping[int, tuple[int, ...]]) -> set[int]:
    """Return the workers that a path leads to from worker 0, with this one."""
    found, todo = {0}, [0]
    while todo:
        new = [worker for worker in neighbours[todo.pop()] if worker not in found]
        found.update(new)
        todo += new
    return found
