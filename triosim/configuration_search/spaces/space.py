"""A search space: which options of a run vary over which values, and the run of each point.

An axis is an option of ``simulate`` (``micro_batch_size``, ``recompute``, ``gpu``, ``topology``), the size of a parallelism
(``tp``, ``pp``, ``cp``, ``ep``, ``dp``), ``data_parallel``, the parallelism of the replicas (``ddp``, ``zero1``, ``fsdp``),
``option.NAME``, which ``--option`` gives to a part of the run, or ``topology.KEY``, a key of the topology. The size of data
parallelism follows from the GPUs where it does not vary. Options that a point's parallelisms do not read are left out of its
run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from triosim.config import COMMON, RunConfig, readers
from triosim.config.commands import simulate_command
from triosim.config.file import as_json
from triosim.config.run_config import option_named
from triosim.configuration_search.point import Point, Value
from triosim.configuration_search.spaces.cluster import cluster_of
from triosim.configuration_search.spaces.interval import Interval
from triosim.configuration_search.spaces.layout import DATA_PARALLEL, SIZES, Layout, layout_of, resolved
from triosim.configuration_search.spaces.subject import SearchSubject
from triosim.configuration_search.spaces.topology_axes import TOPOLOGY_KEY, changed_topology
from triosim.errors import OptionError
from triosim.trace import Trace
from triosim.units import format_bytes

#: Schedules in which a rank has several stages, and the one that it has without.
INTERLEAVED, PLAIN = "interleaved", "1f1b"


#: By how much a peak may be higher than predicted: the largest error among the steps of docs/memory.md whose tensors were
#: measured (*Described, and made many GPUs*), as a share.
MEMORY_ERROR = 0.01


#: How the axes of options begin that ``--option`` gives.
PART_OPTION = "option."


@dataclass(frozen=True, slots=True)
class Axis:
    """An option and the values that it takes, each once, or an ``interval`` of them."""

    name: str
    values: tuple[Value, ...]
    interval: Interval | None = None

    def plain(self) -> list[Any]:
        """Return its name and its values as JSON holds them."""
        return [self.name, list(self.values) if self.interval is None else str(self.interval)]


@dataclass(frozen=True)
class Space:
    """The points of a search: a subject, the options that all points share (``base``), and the axes.

    ``without_rules`` are the names of rules that are not applied. A point fits where its memory does, were it by the share
    ``memory_margin`` more than predicted. Its network may cost ``network_budget`` at most.
    """

    subject: SearchSubject
    base: RunConfig
    axes: tuple[Axis, ...]
    without_rules: frozenset[str] = frozenset()
    memory_margin: float = MEMORY_ERROR
    network_budget: float | None = None

    def __len__(self) -> int:
        return math.prod(len(axis.values) for axis in self.axes)

    @property
    def is_finite(self) -> bool:
        """Whether all axes have lists of values."""
        return all(axis.interval is None for axis in self.axes)

    def points(self) -> Iterator[Point]:
        """Yield every point, the last axis varying fastest. Raises ``OptionError`` for an interval."""
        for axis in self.axes:
            if axis.interval is not None:
                what = f"'{axis.interval}' is an interval, of which only a sampler draws values"
                fix = "give --sampler tpe, or a list of values"
                raise OptionError(what, where=f"--vary {axis.name}", fix=fix)
        names = [axis.name for axis in self.axes]
        for values in product(*(axis.values for axis in self.axes)):
            yield Point.of(dict(zip(names, values, strict=True)))

    def axis(self, name: str) -> Axis | None:
        """Return an axis by its name; None for an option that does not vary."""
        return self._axes.get(name)

    def neighbours(self, point: Point) -> Iterator[tuple[str, Point]]:
        """Yield the points that are one step away along one axis, with its name."""
        for axis in self.axes:
            value = point.get(axis.name)
            if axis.interval is not None:
                continue
            assert value is not None
            index = axis.values.index(value)
            for other in axis.values[max(index - 1, 0) : index + 2]:
                if other != value:
                    yield axis.name, point.with_value(axis.name, other)

    def layout(self, point: Point) -> Layout:
        """Return how a point divides the GPUs and the batch."""
        return layout_of(point, self.base, cluster_of(self.subject, self.base, point).gpus)

    def network_price(self, point: Point) -> float | None:
        """Return what the network of a point costs; None where its topology does not say."""
        return cluster_of(self.subject, self.base, point).price

    def schedule(self, point: Point, layout: Layout) -> str:
        """Return the schedule of a pipeline: where none is given, one for as many stages as a rank has."""
        given = point.get("schedule") or (self.base.schedule if self.base.is_given("schedule") else None)
        return str(given or (INTERLEAVED if layout.virtual_stages > 1 else PLAIN))

    def source(self, point: Point) -> str | Trace:
        """Return what a point's run reads; a script is captured for it. Raises ``CaptureError``."""
        script = self.subject.script
        return (
            self.subject.source if script is None else script.captured(point, self.gpu(point), self.layout(point).gpus)
        )

    def gpu(self, point: Point) -> str:
        """Return the name of the GPU that a point runs on."""
        gpu: Any = point.get("gpu") or self.base.gpu or self.subject.gpu
        return str(getattr(gpu, "name", gpu))

    def command(self, point: Point) -> str:
        """Return the command that simulates a point; of a script, after the one that captures it."""
        script, config = self.subject.script, self.config(point)
        if script is None:
            return simulate_command(self.subject.name, config)
        captured = f"{Path(script.path).stem}.json.gz"
        capture = script.command(point, self.gpu(point), self.layout(point).gpus, captured)
        return f"{capture} && {simulate_command(captured, config)}"

    def summary(self, point: Point) -> str:
        """Return a point in short: ``fsdp=8,pp=2 · micro-batch 1 · interleaved x2``, without what is as it is by default."""
        if self.subject.script is not None:
            return str(point)
        layout = self.layout(point)
        parts = [_sizes(layout)]
        if point.get("micro_batch_size") is not None:
            parts.append(f"micro-batch {layout.micro_batch_size}")
        if point.get("micro_batches") is not None:
            parts.append(f"{layout.micro_batches} micro-batch{'es' * (layout.micro_batches != 1)}")
        if layout.pp > 1:
            schedule = self.schedule(point, layout)
            several = f" x{layout.virtual_stages}" if layout.virtual_stages > 1 else ""
            parts += [f"{schedule}{several}"] if several or schedule != PLAIN else []
        shown = (*SIZES, DATA_PARALLEL, "micro_batch_size", "micro_batches", "virtual_stages", "schedule")
        others = {name: value for name, value in point.settings if name not in shown}
        parts += [
            _said(name, value) for name, value in others.items() if _is_own(name) or value != option_named(name).default
        ]
        return " · ".join(parts)

    def config(self, point: Point) -> RunConfig:
        """Return the options of a point's run. Raises ``OptionError`` for what cannot be."""
        script, settings = self.subject.script, {k: v for k, v in point.settings if not _is_own(k)}
        given = self._own_options(point)
        if script is not None:
            own = {"gpus": None, "gpu": None}  # which its capture has
            return self.base.replaced(**{k: v for k, v in settings.items() if k not in script.varied} | given | own)
        layout = self.layout(point)
        sizes = {name: getattr(layout, name) for name in SIZES}
        chosen: dict[str, Any] = {
            name: resolved(value, sizes) if option_named(name).kind == "whole" else value
            for name, value in settings.items()
            if name not in (*SIZES, DATA_PARALLEL, "virtual_stages")
        }
        chosen |= {"parallel": layout.parallel, "gpus": layout.ranks, **given}
        if layout.pp > 1:
            chosen |= {"schedule": self.schedule(point, layout), **_stages(layout.virtual_stages)}
        return _without_unread(self.base.replaced(**chosen), layout)

    def _own_options(self, point: Point) -> dict[str, Any]:
        """Return the topology and the options of parts, where a point says some of them."""
        parts = {k.removeprefix(PART_OPTION): v for k, v in point.settings if k.startswith(PART_OPTION)}
        found: dict[str, Any] = {"options": {**self.base.options, **parts}} if parts else {}
        topology = changed_topology(point.get("topology", self.base.topology), point)
        return found if topology is None else found | {"topology": topology}

    @cached_property
    def _axes(self) -> Mapping[str, Axis]:
        return {axis.name: axis for axis in self.axes}

    @cached_property
    def fingerprint(self) -> str:
        """All that outcomes depend on, as JSON: the subject, the options that all points share, axes, rules and margin."""
        base = {name: as_json(option_named(name), getattr(self.base, name)) for name in (*COMMON, *self.base.parts)}
        return json.dumps(
            {
                "subject": self.subject.name,
                "base": {name: value for name, value in base.items() if value is not None},
                "axes": [axis.plain() for axis in self.axes],
                "without_rules": sorted(self.without_rules),
                "memory_margin": self.memory_margin,
                "network_budget": self.network_budget,
                "script": None if self.subject.script is None else self.subject.script.plain(),
            },
            sort_keys=True,
        )


def _sizes(layout: Layout) -> str:
    """Return the parallelisms with more than one rank."""
    named = [part for part in layout.parallel.split(",") if not part.endswith("=1")]
    return ",".join(named) or "one GPU"


def _is_own(name: str) -> bool:
    """Whether an axis is no option of a run by its own name."""
    return name.startswith((PART_OPTION, TOPOLOGY_KEY))


def _said(name: str, value: Value) -> str:
    if _is_own(name):
        return f"{name.removeprefix(PART_OPTION).removeprefix(TOPOLOGY_KEY)}={value}"
    words, kind = name.replace("_", " "), option_named(name).kind
    if isinstance(value, float) and kind == "bytes":
        return f"{words} {format_bytes(value)}"
    return words if value is True else f"no {words}" if value is False else f"{words} {value}"


def _stages(virtual_stages: int) -> dict[str, int]:
    return {"virtual_stages": virtual_stages} if virtual_stages > 1 else {}


def _without_unread(config: RunConfig, layout: Layout) -> RunConfig:
    """Return the options of a run without those of parallelisms that are not in it."""
    names = {part.partition("=")[0] for part in layout.parallel.split(",")}

    def read(options: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in options.items() if not (of := readers(name)) or names & {*of}}

    return replace(config, parts=read(config.parts), options=read(config.options))
