"""The communication graph of decentralised training: to which neighbours each worker sends its parameters.

The two graphs of Hop's study (Luo et al., "Hop: Heterogeneity-Aware Decentralized Training", ASPLOS 2019; TrioSim, figure 16),
the plain ring, all with all, and any other from a file of edges.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from triosim.errors import OptionError, nearest

Edge = tuple[int, int]

#: The graphs that have a name.
NAMES = ("ring-based", "double-ring", "ring", "complete")

_EDGE = re.compile(r"(\d+)\s*(->|-)\s*(\d+)")


@dataclass(frozen=True, slots=True)
class WorkerGraph:
    """By worker: whom it sends to, and whom it receives from, in ascending order."""

    name: str
    destinations: Mapping[int, tuple[int, ...]]
    sources: Mapping[int, tuple[int, ...]]

    @classmethod
    def of(cls, name: str, size: int, edges: Iterable[Edge]) -> WorkerGraph:
        """Return the graph of ``size`` workers with directed edges; what a worker sends to itself is left out.

        Raises ``OptionError`` where what one worker learns never reaches another.
        """
        destinations: dict[int, list[int]] = {worker: [] for worker in range(size)}
        sources: dict[int, list[int]] = {worker: [] for worker in range(size)}
        for a, b in sorted({edge for edge in edges if edge[0] != edge[1]}):
            destinations[a].append(b)
            sources[b].append(a)
        graph = cls(name, *({one: tuple(found[one]) for one in found} for found in (destinations, sources)))
        for neighbours, direction in ((graph.destinations, "from worker 0 to"), (graph.sources, "to worker 0 from")):
            lost = sorted(set(range(size)) - _reached(neighbours))
            if lost:
                fix = "join all workers, or let the file name every GPU"
                raise OptionError(f"no path leads {direction} worker {lost[0]}", where=f"graph {name}", fix=fix)
        return graph


def load(name: str, size: int) -> WorkerGraph:
    """Return the graph of this name on workers 0 to ``size`` - 1, or the one in a file of edges.

    A file has an edge a line, ``0 -> 1`` or, in both directions, ``0 - 1``; ``#`` begins a comment. Raises ``OptionError``.
    """
    if name == "ring":
        return WorkerGraph.of(name, size, _both(_ring(range(size))))
    if name == "ring-based":
        return WorkerGraph.of(name, size, _both(_ring_based(range(size))))
    if name == "double-ring":
        return WorkerGraph.of(name, size, _both(_double_ring(size)))
    if name == "complete":
        return WorkerGraph.of(name, size, ((a, b) for a in range(size) for b in range(size)))
    path = Path(name)
    if not path.is_file():
        fix = nearest(name, NAMES) or f"one of {', '.join(NAMES)}, or a file of edges"
        raise OptionError(f"there is no graph '{name}', nor such a file", where="--option graph", fix=fix)
    return WorkerGraph.of(name, size, _read(path, size))


def _ring(workers: range) -> Iterable[Edge]:
    return ((worker, workers[(place + 1) % len(workers)]) for place, worker in enumerate(workers))


def _ring_based(workers: range) -> Iterable[Edge]:
    """A ring, and an edge from each to the most distant one (of an odd number, to both of them)."""
    yield from _ring(workers)
    for place, worker in enumerate(workers):
        yield worker, workers[(place + len(workers) // 2) % len(workers)]


def _double_ring(size: int) -> Iterable[Edge]:
    """Two ring-based graphs, joined node to node."""
    if size % 2 or size < 4:
        fix = "take an even number of 4 or more"
        raise OptionError(f"{size} workers do not form two equal rings", where="graph double-ring", fix=fix)
    half = size // 2
    yield from _ring_based(range(half))
    yield from _ring_based(range(half, size))
    yield from ((worker, worker + half) for worker in range(half))


def _both(edges: Iterable[Edge]) -> Iterable[Edge]:
    for a, b in edges:
        yield a, b
        yield b, a


def _read(path: Path, size: int) -> list[Edge]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot be read: {error}", where=str(path), fix="give a text file of edges") from None
    edges: list[Edge] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = _EDGE.fullmatch(text)
        where = f"{path}:{number}"
        if found is None:
            raise OptionError(
                f"'{text:.40}' is not an edge", where=where, fix="write '0 -> 1', or '0 - 1' for both ways"
            )
        a, b = int(found[1]), int(found[3])
        if max(a, b) >= size:
            fix = f"workers are 0 to {size - 1}"
            raise OptionError(f"there is no worker {max(a, b)}", where=where, fix=fix)
        edges += [(a, b)] if found[2] == "->" else [(a, b), (b, a)]
    return edges


def _reached(neighbours: Mapping[int, tuple[int, ...]]) -> set[int]:
    """Return the workers that some way leads to from worker 0, which is one of them."""
    found, todo = {0}, [0]
    while todo:
        new = [worker for worker in neighbours[todo.pop()] if worker not in found]
        found.update(new)
        todo += new
    return found
