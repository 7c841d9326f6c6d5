"""Descriptions of topologies, as files, names and mappings give them: the graph, which may not be built yet, and sections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from triosim.errors import TopologyError
from triosim.input_files.yaml_lines import Path
from triosim.networks.topology.graph import Graph, Regularity, Routing

if TYPE_CHECKING:
    from triosim.networks.topology.shapes import ShapeOutline

T = TypeVar("T")

#: The keys of a topology file that do not describe the graph. Each belongs to another module, which parses it: the photonic
#: network, the calibration of collectives, the price, and the conditions.
SECTIONS = (
    *("photonic", "calibration", "price", "compute_slowdown", "collective_slowdown"),
    *("slow_gpus", "gpu_kinds", "stragglers", "slow_links", "events"),
)


@dataclass(frozen=True, slots=True)
class Location:
    """The source of a mapping, for errors: a file and the lines of its keys, or a name alone."""

    source: str
    lines: Mapping[Path, int] = field(default_factory=dict)

    def where(self, path: Path) -> str:
        """Return "file:line: key", as much of it as is known."""
        known = path
        while known and known not in self.lines:
            known = known[:-1]
        line = f":{self.lines[known]}" if known else ""
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
        return f"{self.source}{line}: {key}" if key else f"{self.source}{line}"

    @contextmanager
    def at(self, *path: str | int) -> Iterator[None]:
        """Give an error that is raised inside this location."""
        try:
            yield
        except TopologyError as error:
            raise TopologyError(error.what, where=self.where(path), fix=error.fix) from None


@dataclass(eq=False, slots=True)
class Section:
    """A section of a topology file, under one of the keys ``SECTIONS``: its value as it was read, and its location."""

    key: str
    said: Any
    location: Location
    _parsed: Any = None

    def where(self, path: Path = ()) -> str:
        """Return where something under the key stands, for an error."""
        return self.location.where((self.key, *path))

    def parsed(self, parse: Callable[[Section], T]) -> T:
        """Return what ``parse``, a function of the room that owns the key, makes of the section; it is called once."""
        if self._parsed is None:
            self._parsed = parse(self)
        found: T = self._parsed
        return found


@dataclass(frozen=True, slots=True)
class PresetUse:
    """The preset that a topology comes from, and the keys that were changed."""

    name: str
    changed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Description:
    """A topology of ``gpus`` GPUs; ``graph`` builds its nodes and links when they are first needed.

    ``mapping`` is what a file would hold to describe it, or None where no file can; ``outline`` is what a preset or a regular
    shape is made of, None for any other topology; ``overridden`` says that single links differ from it.
    """

    name: str
    gpus: int
    routing: Routing
    regularity: Regularity
    graph: Callable[[], Graph]
    location: Location = Location("")
    sections: Mapping[str, Section] = field(default_factory=dict)
    preset: PresetUse | None = None
    mapping: Mapping[str, Any] | None = None
    outline: ShapeOutline | None = None
    overridden: bool = False
