"""Descriptions of topologies, as files, names and mappings give them: the graph, which may not be built yet, and sections.

Figures without a unit that no machine has are found here: a bandwidth of 400 may be one of GB/s, a latency of 500 of ns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from triosim.errors import TopologyError
from triosim.input_files.yaml_lines import Path
from triosim.networks.topology.graph import Graph, Regularity, Routing
from triosim.units import parse_time

if TYPE_CHECKING:
    from triosim.networks.topology.shapes import ShapeOutline

T = TypeVar("T")

#: The keys of a topology file that do not describe the graph. Each belongs to another module, which parses it: the photonic
#: network, the calibration of collectives, the price, and the conditions.
SECTIONS = (
    *("photonic", "calibration", "price", "compute_slowdown", "collective_slowdown"),
    *("slow_gpus", "gpu_kinds", "stragglers", "slow_links", "events"),
)

#: The smallest bandwidth and capacity, and the longest latency, that are taken for what they say without a unit.
_SMALLEST, _LONGEST = 1e6, 1e-3
#: The longest latency with a unit, in seconds: by a satellite and back it is half of that.
_LONGEST_LATENCY = 1.0


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


@dataclass(frozen=True, slots=True)
class PlainFigure:
    """A number without a unit: the ``path`` of its key, what it is read in, and a unit that may be meant."""

    path: Path
    value: Any
    read_in: str
    meant: str

    @property
    def what(self) -> str:
        """What is wrong."""
        return f"{self.value} has no unit and is read as {self.value} {self.read_in}"

    @property
    def fix(self) -> str:
        """What to write."""
        return f"write one, such as '{self.value} {self.meant}'"


def plain_figures(mapping: Mapping[str, Any]) -> Iterator[PlainFigure]:
    """Yield the figures of a topology's mapping that have no unit and that no machine has in seconds and bytes."""
    for path, value in _figures(mapping):
        key = _key(path)
        with suppress(ValueError, TypeError):
            number = float(value)
            if key in ("latency", "setup") and number > _LONGEST:
                yield PlainFigure(path, value, "s", "ns" if number >= 10 else "us")
            elif key == "capacity" and 0 < number < _SMALLEST:
                yield PlainFigure(path, value, "B", "GB")
            elif key.endswith("bandwidth") and 0 < number < _SMALLEST:
                yield PlainFigure(path, value, "B/s", "GB/s")


def check_figures(mapping: Mapping[str, Any], location: Location) -> None:
    """Raise ``TopologyError`` where a file, or a name with arguments, has a figure that no machine has."""
    for figure in plain_figures(mapping):
        fix = f"{figure.fix}, or '{figure.value} {figure.read_in}'"
        raise TopologyError(figure.what, where=location.where(figure.path), fix=fix)
    for path, value in _figures(mapping):
        if _key(path) == "latency" and value is not None and parse_time(value) > _LONGEST_LATENCY:
            what, fix = f"'{value}' is more than any link has", "write a time such as '500 ns'"
            raise TopologyError(what, where=location.where(path), fix=fix)


def _key(path: Path) -> str:
    return next(str(part) for part in reversed(path) if isinstance(part, str))


def _figures(mapping: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    if "npus_count" not in mapping:  # ASTRA-sim's, in units of its own
        for key, value in mapping.items():
            yield from _below((str(key),), value)


def _below(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    entries = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, (list, tuple)) else None
    )
    if entries is None:
        yield path, value
    else:
        for key, one in entries:
            yield from _below((*path, key), one)
