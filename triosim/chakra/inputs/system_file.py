"""ASTRA-sim's ``system.json``: how collectives are done, what computes how fast, and what is modelled of a rank's own bus."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from triosim.chakra.inputs.json_keys import Keys
from triosim.chakra.nodes import CollectiveType
from triosim.errors import TopologyError
from triosim.input_files import yaml_lines
from triosim.input_files.reading import read_object, read_text

#: The collectives that are simulated, and the word for each in the keys.
SIMULATED: Mapping[CollectiveType, str] = {
    CollectiveType.ALL_REDUCE: "all-reduce",
    CollectiveType.ALL_GATHER: "all-gather",
    CollectiveType.REDUCE_SCATTER: "reduce-scatter",
    CollectiveType.ALL_TO_ALL: "all-to-all",
}

#: Keys that files have and that ASTRA-sim has not read since January 2023 (0ea03a3), or that only change what it prints.
_WITHOUT_EFFECT = ("boost-mode", "intra-dimension-scheduling", "inter-dimension-scheduling")
_ALGORITHMS = ("ring", "direct", "halvingDoubling", "doubleBinaryTree", "oneRing", "oneDirect", "oneHalvingDoubling")
_ALGORITHM = re.compile(r"(one)?(ring|direct|halvingDoubling|doubleBinaryTree)(\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The algorithm of a collective in one dimension; ``spans_all`` lays it over all of them as one."""

    name: str
    spans_all: bool = False
    window: int | None = None


@dataclass(frozen=True, slots=True)
class SharedBus:
    """The LogGP model of the bus between a rank's NPU and its NIC: ns, and ns per byte."""

    latency: int = 0
    overhead: int = 0
    gap: int = 0
    gap_per_byte: float = 0.0
    reduction_delay: int = 1


@dataclass(frozen=True, slots=True)
class Compute:
    """What prices a computation: FLOP/s and bytes/s, and whether nodes are timed by them, or by their durations only."""

    peak: float = 0.0
    memory_bandwidth: float = 0.0
    roofline: bool = False
    replay_only: bool = False


@dataclass(frozen=True, slots=True)
class Custom:
    """Collectives that are graphs of their own: a prefix of ``.et`` files by collective, and by the id of a node."""

    by_type: Mapping[CollectiveType, Path] = field(default_factory=dict)
    by_node: Mapping[int, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SystemFile:
    """What a ``system.json`` says; ``notes`` are keys that nobody reads. An ``endpoint_delay`` of None is ASTRA-sim's own."""

    algorithms: Mapping[CollectiveType, tuple[Algorithm, ...]]
    splits: int
    active_chunks: int
    local_bandwidth_aware: bool | None
    endpoint_delay: int | None
    compute: Compute
    bus: SharedBus | None = None
    custom: Custom = Custom()
    track_memory: bool = False
    scheduled: bool = True
    notes: tuple[str, ...] = ()


def read_system(path: Path, folder: Path | None = None) -> SystemFile:
    """Return the system of a file.

    Paths in it are relative to ``folder``, by default the file's own, or else to the current one.
    Raises ``TopologyError`` where a value is of a wrong type.
    """
    keys = Keys(read_object(path, TopologyError), str(path))
    folder = path.parent if folder is None else folder
    optimization = keys.choice("collective-optimization", ("baseline", "localBWAware"))
    bandwidth, peak = keys.number("local-mem-bw", 0.0), keys.number("peak-perf", 0.0)
    custom = _custom(keys, path, folder)
    system = SystemFile(
        algorithms={kind: _algorithms(keys, f"{word}-implementation", path) for kind, word in SIMULATED.items()},
        splits=keys.whole("preferred-dataset-splits", 0),
        active_chunks=keys.whole("active-chunks-per-dimension", 1),
        local_bandwidth_aware=None if optimization is None else optimization == "localBWAware",
        endpoint_delay=keys.whole("endpoint-delay", 0) if "endpoint-delay" in keys else None,
        compute=Compute(peak * 1e12, bandwidth * 1e9, keys.flag("roofline-enabled"), keys.flag("replay-only")),
        bus=_bus(keys),
        custom=custom,
        track_memory=keys.flag("track-local-mem"),
        scheduled=keys.choice("scheduling-policy", ("LIFO", "FIFO", "EXPLICIT")) is not None,
        notes=(),
    )
    unread = keys.unread(*_WITHOUT_EFFECT, "trace-enabled", "local-mem-trace-filename")
    return _with_notes(system, path, unread)


def _with_notes(system: SystemFile, path: Path, unread: list[str]) -> SystemFile:
    return replace(system, notes=tuple(f"{path}: the key '{key}' is not read" for key in unread))


def _bus(keys: Keys) -> SharedBus | None:
    bus = SharedBus(
        keys.whole("L", 0),
        keys.whole("o", 0),
        keys.whole("g", 0),
        keys.number("G", 0.0),
        keys.whole("local-reduction-delay", 1),
    )
    return bus if keys.flag("model-shared-bus") else None


def _algorithms(keys: Keys, key: str, path: Path) -> tuple[Algorithm, ...]:
    return tuple(_algorithm(word, key, path) for word in keys.texts(key) or ())


def _algorithm(word: str, key: str, path: Path) -> Algorithm:
    match = _ALGORITHM.fullmatch(word)
    base = re.sub(r"\d+$", "", word)
    if match is None or base not in _ALGORITHMS or (match[3] and not base.endswith(("direct", "Direct"))):
        raise TopologyError(f"'{key}' has '{word}'", where=str(path), fix=f"write one of {', '.join(_ALGORITHMS)}")
    name = next(known for known in _ALGORITHMS if known.casefold() == match[2].casefold())
    return Algorithm(name, spans_all=match[1] is not None, window=int(match[3]) if match[3] else None)


def _custom(keys: Keys, path: Path, folder: Path) -> Custom:
    by_type = {}
    for kind, word in SIMULATED.items():
        key = f"{word}-implementation-custom"
        prefixes = keys.texts(key)
        if prefixes is not None and len(prefixes) != 1:
            raise TopologyError(
                f"'{key}' has {len(prefixes)} prefixes", where=str(path), fix="give one for all dimensions"
            )
        if prefixes:
            by_type[kind] = _found(folder, prefixes[0])
    nodes = keys.text("per-node-custom-implementation")
    return Custom(by_type, {} if nodes is None else _by_node(_found(folder, nodes), folder))


def _found(folder: Path, name: str) -> Path:
    """Return the path of a file or prefix: in the folder or, as ASTRA-sim has it, where the command runs."""
    beside, here = folder / name, Path(name)
    return here if not any(beside.parent.glob(f"{beside.name}*")) and any(here.parent.glob(f"{here.name}*")) else beside


def _by_node(path: Path, folder: Path) -> dict[int, Path]:
    found, _ = yaml_lines.parse(read_text(path, TopologyError), str(path))
    if not isinstance(found, dict) or not all(
        isinstance(node, int) and isinstance(p, str) for node, p in found.items()
    ):
        raise TopologyError(
            "is not a mapping of node ids to prefixes", where=str(path), fix="write for example '7: my_ring'"
        )
    return {node: _found(folder, prefix) for node, prefix in found.items()}
