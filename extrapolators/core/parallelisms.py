"""The parallelisms of a run, read from ``dp=2,tp=4``, and the mesh of ranks that they span."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from triosim import plugins
from triosim.config import Option, RunConfig
from triosim.errors import OptionError, PluginError
from triosim.extrapolators.core.extrapolator import Extrapolator, Level
from triosim.extrapolators.core.mesh import Mesh, Subgroups, layout
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.input_files.limits import GPUS

Parallel = str | Mapping[Any, int | None]

#: Reduces gradients where the user names parallelisms that see other data, and none that reduces.
DEFAULT_GRADIENT_REDUCTION = "ddp"
#: Applied to what all parallelisms have made; it is none itself, so that no plug-in is called so.
OFFLOADING = "triosim.extrapolators.offload.offload:Offloading"


class NamedParallelism(NamedTuple):
    """A parallelism that a user names: the name as messages show it, its class, and its size if one is given."""

    shown: str
    kind: type[Extrapolator]
    size: int | None

    @property
    def known_size(self) -> int | None:
        """The size that is given, or the parallelism's default; None where it takes what the others leave."""
        return self.size if self.size is not None else self.kind.default_size


@dataclass(frozen=True, slots=True)
class Parallelisms:
    """The parallelisms of a run on their mesh, in the order in which the user wrote them.

    The ranks along ``data_axes`` have the same parameters and see other data; ``sharded_axes`` are those of them over which the
    optimizer is sharded.
    """

    all: tuple[Extrapolator, ...]
    mesh: Mesh
    data_axes: tuple[str, ...]
    sharded_axes: tuple[str, ...]

    @classmethod
    def of(cls, parallel: Parallel, gpus: int | None, config: RunConfig) -> Parallelisms:
        """Return the parallelisms that a user names. Raises ``OptionError`` or ``PluginError``."""
        named = named_parallelisms(parallel)
        spanning = [one for one in named if one.kind.adds_ranks]
        dividing = [one for one in named if not one.kind.adds_ranks]
        if not spanning:
            raise _adds_none(dividing[0].shown)
        sizes = _sizes(spanning, dividing, gpus)
        found = [one.kind(size, config, one.shown) for one, size in zip(spanning, sizes, strict=True)]
        GPUS.check(math.prod(sizes), "--parallel")
        mesh = layout([(part.order, part.axis, part.size) for part in found])
        data_axes, sharded_axes = _data_axes(found)
        for one in dividing:
            mesh = _divided(mesh, one.kind.axis or one.shown, one.size, data_axes, sharded_axes)
            found.append(one.kind(mesh.subgroups[-1].size, config, one.shown))
        writers = [part for part in found if part.writes_tasks]
        if writers and len(found) > 1:
            name = type(writers[0]).__name__
            raise OptionError(f"{name} writes its own tasks, so it cannot be combined with others", where="parallel")
        return cls(tuple(found), mesh, data_axes, sharded_axes)

    def at(self, level: Level) -> list[Extrapolator]:
        """Return the parallelisms that act at a level, in the order in which they are applied."""
        found = [part for part in self.all if part.level == level]
        # Of operators the outermost first: their samples and tokens are divided, and then their features.
        return sorted(found, key=lambda part: -part.order) if level == "operators" else found

    def default_reduction(self, config: RunConfig) -> list[Extrapolator]:
        """Return the parallelism that reduces gradients where none that the user names does."""
        summing = [part for part in self.all if part.sums_gradients]
        if not (config.training and summing and all(part.level == "operators" for part in summing)):
            return []
        return [_load(DEFAULT_GRADIENT_REDUCTION)(1, config)]

    def offloading(self, config: RunConfig) -> list[Extrapolator]:
        """Return what moves parts of the step out of the GPUs' memory, where that is asked for."""
        return [_load(OFFLOADING)(1, config)] if config.offload != "none" else []

    @property
    def replicas(self) -> int:
        """The number of replicas, each of which trains on a batch of its own."""
        return math.prod(part.replicas for part in self.all)

    @property
    def is_random(self) -> bool:
        """Whether something is drawn at random, in each iteration anew."""
        return any(part.is_random for part in self.all)

    @property
    def program_axes(self) -> tuple[tuple[str, int], ...]:
        """The axes, and their sizes, along which ranks run different programs."""
        return tuple((part.axis, part.size) for part in self.all if part.differs_along_axis)

    @property
    def task_writer(self) -> Extrapolator | None:
        """The parallelism that writes its tasks itself, if there is one."""
        return next((part for part in self.all if part.writes_tasks), None)

    @property
    def symmetry(self) -> Symmetry | None:
        """The symmetry of identical ranks; None where there are none, or a parallelism does not say whether there are."""
        axes = [part.axis for part in self.all if part.identical_ranks and part.size > 1]
        known = all(part.identical_ranks is not None for part in self.all)
        return Symmetry(self.mesh, axes, rings=True) if axes and known else None

    @property
    def options(self) -> tuple[Option, ...]:
        """The options that the parallelisms read."""
        return tuple(option for part in self.all for option in part.read_options)

    @property
    def declare_their_options(self) -> bool:
        """Whether all declare their options; a plug-in that declares none may read any."""
        return all(part.options or type(part).__module__.startswith("triosim.") for part in self.all)

    def __str__(self) -> str:
        """The parallelisms with their sizes, as a user writes them."""
        return ",".join(f"{part.axis}={part.size}" if part.size > 1 else part.axis for part in self.all)


def gpus_named_by(parallel: Parallel) -> int | None:
    """Return the number of GPUs by the sizes in ``parallel``; None where one is left open."""
    sizes = [one.known_size for one in named_parallelisms(parallel) if one.kind.adds_ranks]
    return None if None in sizes else math.prod(size for size in sizes if size is not None)


def named_parallelisms(parallel: Parallel) -> list[NamedParallelism]:
    """Return the parallelisms in ``dp=2,tp=4``, or in a mapping of names or classes to sizes, or a class by itself."""
    if isinstance(parallel, Mapping):
        entries = list(parallel.items())
    elif isinstance(parallel, str):
        entries = [_parse_one(part.strip()) for part in parallel.split(",") if part.strip()]
    else:
        entries = [(parallel, None)]
    if not entries:
        raise OptionError("names no parallelism", where="parallel", fix="write single, ddp, or dp=2,tp=4")
    for name, size in entries:
        if size is not None and (not isinstance(size, int) or size < 1):
            fix = "give a whole number of 1 or more"
            raise OptionError(f"{_shown(name)} on {size} GPUs", where="parallel", fix=fix)
    return [NamedParallelism(_shown(name), _load(name), size) for name, size in entries]


def _parse_one(text: str) -> tuple[str, int | None]:
    name, equals, size = text.rpartition("=")
    if not equals:
        return text, None
    try:
        return name.strip(), int(size)
    except ValueError:
        what = f"'{size}' is not a number of GPUs"
        raise OptionError(what, where=f"parallel {text}", fix="write dp=2,tp=4") from None


def _load(name: Any) -> type[Extrapolator]:
    found = plugins.load("extrapolators", name) if isinstance(name, str) else name
    if not (isinstance(found, type) and issubclass(found, Extrapolator)):
        raise PluginError("is not a class derived from triosim.extrapolators.Extrapolator", where=_shown(name))
    if found.transform is Extrapolator.transform and found.tasks is Extrapolator.tasks:
        raise PluginError("has neither 'transform' nor 'tasks'", where=_shown(name), fix="define one of them")
    return found


def _shown(name: Any) -> str:
    return name if isinstance(name, str) else getattr(name, "__qualname__", repr(name))


def _sizes(spanning: list[NamedParallelism], dividing: list[NamedParallelism], gpus: int | None) -> list[int]:
    """Return the size of each axis of ``spanning``; one that has none takes what the others leave."""
    if all(one.size is None and one.kind.default_size is not None for one in spanning):
        gpus = None  # single: one GPU, however many there are
    known = [(one.shown, one.known_size) for one in spanning]
    open_ = [name for name, size in known if size is None]
    given = math.prod(size for _, size in known if size is not None)
    shown = " x ".join(f"{name}={size}" for name, size in known if size is not None)
    if len(open_) > 1:
        fix = "leave out the size of at most one"
        raise OptionError(f"{' and '.join(open_)} have no size", where="parallel", fix=fix)
    if gpus is None:
        if open_:
            raise OptionError(f"{open_[0]} has no size", where="parallel", fix=f"write {open_[0]}=8, or give the GPUs")
        gpus = given
    sizes = [name for name, size in known if size is not None]
    if open_ and gpus % given:
        what = f"{shown}{'' if len(sizes) == 1 else f' = {given}'} does not divide {gpus} GPUs"
        raise OptionError(what, where="parallel")
    if not open_ and given != gpus:
        what = f"{shown}{'' if len(known) == 1 else f' = {given} GPUs'}, but {gpus} GPUs are asked for"
        fix = "let the sizes multiply to the number of GPUs"
        within = " and ".join(f"{one.shown}={one.size}" for one in dividing)
        raise OptionError(what, where="parallel", fix=f"{fix}; {within} divides them and adds none" if within else fix)
    return [size if size is not None else gpus // given for _, size in known]


def _data_axes(parts: list[Extrapolator]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the axes along which gradients are summed, and those of them over which the optimizer is sharded."""
    summing = [part for part in parts if part.sums_gradients]
    reducing = [part.axis for part in summing if part.level == "hooks" and not part.shards_optimizer]
    sharding = [part.axis for part in parts if part.shards_optimizer]
    for names in (reducing, sharding):
        if len(names) > 1:
            what = f"{' and '.join(names)} both divide the data, so they cannot be combined"
            raise OptionError(what, where="parallel", fix="give one of them")
    inside = [part.axis for part in summing if part.level == "operators"]
    return (*inside, *sharding, *reducing), (*inside, *sharding) if sharding else ()


def _divided(
    mesh: Mesh, name: str, size: int | None, data_axes: tuple[str, ...], sharded_axes: tuple[str, ...]
) -> Mesh:
    """Return the mesh with an axis that adds no ranks: it divides those that see other data, by default into one subgroup.

    A subgroup lies within a group that shards the optimizer, or is made of whole ones.
    """
    sizes = {axis.name: axis.size for axis in mesh.axes}

    def counted(axes: tuple[str, ...]) -> tuple[int, str]:
        count = math.prod(sizes[axis] for axis in axes)
        return count, f"{count} GPUs of {' x '.join(f'{axis}={sizes[axis]}' for axis in axes)}"

    ranks, shown = counted(data_axes)
    if not data_axes:
        raise _adds_none(name)
    if size is not None and ranks % size:
        raise OptionError(f"{name}={size} does not divide the {shown}", where="parallel")
    shards, shown = counted(sharded_axes)
    if size is not None and shards % size and size % shards:
        raise OptionError(f"{name}={size} neither divides the {shown} nor is a multiple of them", where="parallel")
    return replace(mesh, subgroups=(*mesh.subgroups, Subgroups(name, data_axes, ranks if size is None else size)))


def _adds_none(name: str) -> OptionError:
    what = f"{name} adds no GPUs of its own: it divides those of data parallelism"
    return OptionError(what, where="parallel", fix=f"write dp=8,{name}=8")
