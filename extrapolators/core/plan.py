"""The plan: from a trace and ``dp=2,tp=4`` to the task stream of every rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from triosim import plugins
from triosim.compute.compute_model import ComputeModel
from triosim.config import Option, RunConfig, takes_text
from triosim.errors import OptionError, PluginError, TraceError
from triosim.extrapolators.core.extrapolator import LEVELS, Extrapolator, Level
from triosim.extrapolators.core.lowering import Lowering
from triosim.extrapolators.core.memory_footprint import MemoryFootprint
from triosim.extrapolators.core.mesh import Mesh, Subgroups, layout
from triosim.extrapolators.core.program import Program, single_stage
from triosim.extrapolators.core.recompute import recomputed
from triosim.extrapolators.core.schedule_table import accumulate
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.extrapolators.core.training_loop import TrainingLoop
from triosim.garbage_collector import without_collecting
from triosim.operators.features import unknown
from triosim.sharding.reshape import rescaled
from triosim.tasks import TaskStream
from triosim.trace import Operator, Trace

Parallel = str | Mapping[Any, int | None]

#: Reduces the gradients of what sees other data, where the user names nothing that does.
DEFAULT_GRADIENT_REDUCTION = "ddp"


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """What runs on how many GPUs. ``batch_size`` is a replica's, ``options`` what its parallelisms declare.

    ``work`` is the trace and how many times its operators, in a step of all replicas, are run. ``draws`` says whether something
    in it was drawn by chance, from the option ``seed``. Ranks at different places along the axes ``program_axes`` (names and
    sizes) run different programs.
    """

    parallel: str
    mesh: Mesh
    program: Program
    batch_size: int
    global_batch_size: int
    notes: tuple[str, ...]
    options: tuple[Option, ...]
    declared: tuple[Option, ...] | None  # the same; None where a plug-in that declares none may read any
    work: tuple[tuple[Trace, float], ...]
    symmetry: Symmetry | None  # of ranks that do the same
    draws: bool
    lowerings: tuple[tuple[Lowering, ...], ...]  # by iteration, or one for all; then by ``variant``
    program_axes: tuple[tuple[str, int], ...] = ()
    _writer: Extrapolator | None = None  # one that writes the tasks itself

    @property
    def world(self) -> int:
        """How many GPUs take part."""
        return self.mesh.world

    @property
    def known_options(self) -> tuple[str, ...]:
        """What its parallelisms read of ``--option``."""
        return tuple(option.key or option.name for option in self.options if takes_text(option))

    @property
    def training(self) -> bool:
        """Whether a step has a backward pass."""
        return self.program.training

    @property
    def pipeline_axis(self) -> str | None:
        """The axis along which stages follow each other; None without a pipeline."""
        return self.program.stage_axis if len(self.program.stages) > 1 else None

    @property
    def variants(self) -> int:
        """How many different programs there are in an iteration."""
        return len(self.lowerings[0])

    def variant(self, rank: int) -> int:
        """Return which of them a rank runs."""
        found = 0
        for name, size in self.program_axes:
            found = found * size + self.mesh.coordinate(name, rank)
        return found

    def tasks(self, rank: int) -> TaskStream:
        """Return the task stream of one rank."""
        if self._writer is not None:
            return self._writer.tasks(rank)
        return self._in_turn(rank)

    def memory_footprint(self, rank: int) -> MemoryFootprint | None:
        """Return what a rank has in memory where a parallelism writes its own tasks; None where the program says it."""
        return None if self._writer is None else self._writer.memory_footprint(rank)

    def _in_turn(self, rank: int) -> TaskStream:
        variant = self.variant(rank)
        for lowerings in self.lowerings:
            yield from TrainingLoop(lowerings[variant], rank).tasks()


@without_collecting()
def plan(
    trace: Trace,
    parallel: Parallel,
    *,
    gpus: int | None,
    config: RunConfig,
    model: ComputeModel,
    factor: Callable[[int, Operator], float] | None = None,
) -> ParallelPlan:
    """Return the plan for a trace.

    ``parallel`` is ``single``, ``ddp``, ``dp=2,tp=4``, or a mapping of names (or classes) to sizes; one may go without a size
    and takes what is left of ``gpus``. ``factor`` says by how many times longer an operator takes on a rank, where pipeline
    stages are to be balanced over unequal GPUs. Raises ``OptionError`` for what cannot be, ``TraceError`` where the trace
    does not hold what a parallelism needs, ``PluginError`` for a name that is none.
    """
    wanted = [(name, _load(name), size) for name, size in _parse(parallel)]
    without_ranks = [entry for entry in wanted if not entry[1].adds_ranks]
    wanted = [entry for entry in wanted if entry[1].adds_ranks]
    if not wanted:
        raise _adds_none(_name(without_ranks[0][0]))
    sizes = _sizes(wanted, gpus)
    parallelisms = [cls(size, config) for (_, cls, _), size in zip(wanted, sizes, strict=True)]
    for part, (name, cls, _) in zip(parallelisms, wanted, strict=True):
        part.axis = part.axis or (name if isinstance(name, str) else cls.__name__)
    mesh = layout([(part.order, part.axis, part.size) for part in parallelisms])
    replicas = math.prod(part.replicas for part in parallelisms)
    batch_size = _replica_batch(trace, config, replicas)
    program = _program(trace, batch_size, _micro_batches(parallelisms, batch_size, config), config, model)
    data_axes, sharded_axes = _data_axes(parallelisms)
    program = replace(program, data_axes=data_axes, sharded_axes=sharded_axes, factor=factor)
    for name, cls, size in without_ranks:
        mesh = _with_parts(mesh, cls.axis or _name(name), size, data_axes, sharded_axes)
        parallelisms.append(cls(mesh.subgroups[-1].size, config))

    writer = _writer(parallelisms)
    draws = any(part.draws for part in parallelisms)
    different = config.iterations if draws else 1
    program_axes = [part for part in parallelisms if part.programs]
    composition = _Composition(program, parallelisms, mesh, config)
    if draws and any(part.level == "schedule" for part in parallelisms):
        composition.program(0)  # where stages begin is the same for all: as is best in the mean
    programs = [list(composition.variants(iteration, program_axes)) for iteration in range(different)]
    each = config.iterations // different
    lowerings = tuple(
        tuple(Lowering(one, mesh, iterations=each, copy_input=config.copy_input) for one in variants)
        for variants in programs
    )
    program = programs[0][0]
    declared = tuple(option for part in parallelisms for option in part.read_options)
    if writer is not None:
        writer.program, writer.mesh, writer.lowering = program, mesh, lowerings[0][0]
    return ParallelPlan(
        parallel=",".join(f"{part.axis}={part.size}" if part.size > 1 else part.axis for part in parallelisms),
        mesh=mesh,
        program=program,
        batch_size=batch_size,
        global_batch_size=batch_size * replicas,
        notes=program.notes,
        options=declared,
        declared=None if any(_declares_nothing(part) for part in parallelisms) else declared,
        work=((trace, batch_size * replicas / trace.batch_size),),
        symmetry=_symmetry(parallelisms, mesh),
        draws=draws,
        lowerings=lowerings,
        program_axes=tuple((part.axis, part.size) for part in program_axes),
        _writer=writer,
    )


class _Composition:
    """Puts all parallelisms of a plan together. What acts ahead of all that is drawn by chance is put in once."""

    def __init__(self, program: Program, parallelisms: list[Extrapolator], mesh: Mesh, config: RunConfig) -> None:
        self._mesh = mesh
        self._config = config
        acting: list[Extrapolator | None] = []  # None is recomputation
        for level in LEVELS:
            acting += [None] if level == "hooks" else []
            acting += _acting(level, parallelisms, config)
        drawing = [number for number, part in enumerate(acting) if part is not None and part.draws]
        first = drawing[0] if drawing else 0
        self._rest = acting[first:]
        self._begun = self._with(program, acting[:first], 0)

    def variants(self, iteration: int, program_axes: list[Extrapolator]) -> Iterator[Program]:
        """Yield one iteration's programs, for the ranks at each place along the axes along which they differ."""
        for places in product(*(range(part.size) for part in program_axes)):
            for part, place in zip(program_axes, places, strict=True):
                part.at = place
            yield self.program(iteration)

    def program(self, iteration: int) -> Program:
        """Return one iteration's program, at the places that parallelisms are at."""
        return self._with(self._begun, self._rest, iteration)

    def _with(self, program: Program, acting: list[Extrapolator | None], iteration: int) -> Program:
        for part in acting:
            if part is None:
                program = recomputed(program, self._config.recompute)
                continue
            part.iteration = iteration
            program = _transformed(part, program, self._mesh)
        return program


def _with_parts(
    mesh: Mesh, name: str, size: int | None, data_axes: tuple[str, ...], sharded_axes: tuple[str, ...]
) -> Mesh:
    """The mesh with an axis that adds no ranks: parts of those that see other data, by default all of them.

    A part is within a group that shards the optimizer, or is made of whole ones.
    """
    sizes = {axis.name: axis.size for axis in mesh.axes}

    def counted(axes: tuple[str, ...]) -> tuple[int, str]:
        shown = " x ".join(f"{axis}={sizes[axis]}" for axis in axes)
        return math.prod(sizes[axis] for axis in axes), shown

    ranks, shown = counted(data_axes)
    if not data_axes:
        raise _adds_none(name)
    if size is not None and ranks % size:
        raise OptionError(f"{name}={size} does not divide the {ranks} GPUs of {shown}", where="parallel")
    shards, shown = counted(sharded_axes)
    if size is not None and shards % size and size % shards:
        raise OptionError(
            f"{name}={size} neither divides the {shards} GPUs of {shown} nor is a multiple of them", where="parallel"
        )
    return replace(mesh, subgroups=(*mesh.subgroups, Subgroups(name, data_axes, ranks if size is None else size)))


def _adds_none(name: str) -> OptionError:
    return OptionError(
        f"{name} adds no GPUs: it needs some that see other data", where="parallel", fix=f"write dp=8,{name}=8"
    )


def _data_axes(parallelisms: list[Extrapolator]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The axes along which gradients are summed, and those of them over which the optimizer is sharded."""
    reducing = [
        part.axis
        for part in parallelisms
        if part.sums_gradients and part.level == "hooks" and not part.shards_optimizer
    ]
    sharding = [part.axis for part in parallelisms if part.shards_optimizer]
    for names in (reducing, sharding):
        if len(names) > 1:
            raise OptionError(
                f"{' and '.join(names)} do the same in two ways", where="parallel", fix="give one of them"
            )
    inside = [part.axis for part in parallelisms if part.sums_gradients and part.level == "operators"]
    return (*inside, *sharding, *reducing), (*inside, *sharding) if sharding else ()


def _acting(level: Level, parallelisms: list[Extrapolator], config: RunConfig) -> Iterator[Extrapolator]:
    """Yield what acts at a place. Where nothing else reduces the gradients of what divides samples, ``ddp`` does."""
    acting = [part for part in parallelisms if part.level == level]
    if level == "operators":  # the outermost first: what is divided by samples or tokens is then divided by features
        acting.sort(key=lambda part: -part.order)
    yield from acting
    summing = [part for part in parallelisms if part.sums_gradients]
    if level == "hooks" and config.training and summing and all(part.level == "operators" for part in summing):
        yield _load(DEFAULT_GRADIENT_REDUCTION)(1, config)


def _declares_nothing(part: Extrapolator) -> bool:
    """Whether it is a plug-in that declares no options, so that nobody knows which it reads."""
    return not part.options and not type(part).__module__.startswith("triosim.")


def _symmetry(parallelisms: list[Extrapolator], mesh: Mesh) -> Symmetry | None:
    """The ranks that do the same, where there are any and all parallelisms know."""
    axes = [part.axis for part in parallelisms if part.identical_ranks and part.size > 1]
    return (
        Symmetry(mesh, axes, rings=True)
        if axes and all(part.identical_ranks is not None for part in parallelisms)
        else None
    )


def _transformed(part: Extrapolator, program: Program, mesh: Mesh) -> Program:
    after = part.transform(program, mesh)
    if not isinstance(after, Program):
        raise PluginError(
            f"transform() returned a {type(after).__name__}", where=type(part).__name__, fix="return the new Program"
        )
    return after


def gpus_named_by(parallel: Parallel) -> int | None:
    """Return how many GPUs the sizes in ``parallel`` come to; None where one is left open."""
    named = [(_load(name), size) for name, size in _parse(parallel)]
    sizes = [size if size is not None else cls.default_size for cls, size in named if cls.adds_ranks]
    return None if None in sizes else math.prod(size for size in sizes if size is not None)


def _parse(parallel: Parallel) -> list[tuple[Any, int | None]]:
    if isinstance(parallel, Mapping):
        entries = list(parallel.items())
    elif isinstance(parallel, str):
        entries = [_parse_one(part.strip()) for part in parallel.split(",") if part.strip()]
    else:
        entries = [(parallel, None)]  # a class
    if not entries:
        raise OptionError("names no parallelism", where="parallel", fix="write single, ddp, or dp=2,tp=4")
    for name, size in entries:
        if size is not None and (not isinstance(size, int) or size < 1):
            raise OptionError(f"{_name(name)} on {size} GPUs", where="parallel", fix="give a whole number of 1 or more")
    return entries


def _parse_one(text: str) -> tuple[str, int | None]:
    name, equals, size = text.rpartition("=")
    if not equals:
        return text, None
    try:
        return name.strip(), int(size)
    except ValueError:
        raise OptionError(f"'{size}' is no number of GPUs", where=f"parallel {text}", fix="write dp=2,tp=4") from None


def _load(name: Any) -> type[Extrapolator]:
    found = plugins.load("extrapolators", name) if isinstance(name, str) else name
    if not (isinstance(found, type) and issubclass(found, Extrapolator)):
        raise PluginError("is not a class derived from triosim.extrapolators.Extrapolator", where=_name(name))
    if found.transform is Extrapolator.transform and found.tasks is Extrapolator.tasks:
        raise PluginError("has neither 'transform' nor 'tasks'", where=_name(name), fix="define one of them")
    return found


def _name(name: Any) -> str:
    return name if isinstance(name, str) else getattr(name, "__qualname__", repr(name))


def _sizes(wanted: list[tuple[Any, type[Extrapolator], int | None]], gpus: int | None) -> list[int]:
    """The size of each axis; one that has none takes what the others leave."""
    if all(size is None and cls.default_size is not None for _, cls, size in wanted):
        gpus = None  # single: one GPU, however many there are
    wanted = [(name, cls, size if size is not None else cls.default_size) for name, cls, size in wanted]
    open_ = [_name(name) for name, _, size in wanted if size is None]
    given = math.prod(size for _, _, size in wanted if size is not None)
    shown = " x ".join(f"{_name(name)}={size}" for name, _, size in wanted if size is not None)
    if len(open_) > 1:
        raise OptionError(f"{' and '.join(open_)} have no size", where="parallel", fix="leave out at most one")
    if gpus is None:
        if open_:
            raise OptionError(f"{open_[0]} has no size", where="parallel", fix=f"write {open_[0]}=8, or give the GPUs")
        gpus = given
    if open_ and gpus % given:
        raise OptionError(f"{shown} = {given} does not divide {gpus} GPUs", where="parallel")
    if not open_ and given != gpus:
        raise OptionError(
            f"{shown} {'are' if len(wanted) == 1 else f'= {given} are'} not the {gpus} GPUs that are asked for",
            where="parallel",
            fix="let the sizes multiply to the number of GPUs",
        )
    return [size if size is not None else gpus // given for _, _, size in wanted]


def _replica_batch(trace: Trace, config: RunConfig, replicas: int) -> int:
    if config.global_batch_size is None:
        return config.batch_size or trace.batch_size
    if config.global_batch_size % replicas:
        raise OptionError(
            f"a global batch of {config.global_batch_size} does not divide among {replicas} data-parallel replicas",
            fix=f"use a multiple of {replicas}",
        )
    return config.global_batch_size // replicas


def _micro_batches(parallelisms: list[Extrapolator], batch_size: int, config: RunConfig) -> int:
    count = config.micro_batches or max(part.micro_batches for part in parallelisms)
    if batch_size % count:
        raise OptionError(
            f"a batch of {batch_size} does not divide into {count} micro-batches",
            fix="choose a batch size and a number of micro-batches that divide",
        )
    return count


def _program(trace: Trace, batch_size: int, micro_batches: int, config: RunConfig, model: ComputeModel) -> Program:
    """The trace as the program of one replica, in the shapes of a micro-batch."""
    if not any(operator.phase == "forward" for operator in trace.operators):
        raise TraceError("the trace has no operator of the forward pass", where=trace.source or None)
    model.fit(trace)
    size = batch_size // micro_batches
    program = Program(
        (single_stage(trace.operators, training=config.training),),
        model,
        accumulate(micro_batches) if config.training else accumulate(micro_batches).forward_alone(),
        gradient_dtype=config.gradient_dtype,
        training=config.training,
        gpu=trace.gpu,
        batch_size=size,
        deduplicate=config.fold is not False,
    )
    strange = unknown(trace.operators)
    if strange:
        program = program.noted(f"unknown operators, taken to be bound by memory: {', '.join(strange)}")
    found = rescaled(program.operators, trace.batch_size, size)
    return program.noted(*found.notes).reshaped(
        {operator.id: operator for operator in found.operators},
        note=f"operator times are predicted for batch size {size} from those of the trace at {trace.batch_size}",
    )


def _writer(parallelisms: list[Extrapolator]) -> Extrapolator | None:
    """The parallelism that writes its tasks itself, if there is one; it stands alone."""
    writers = [part for part in parallelisms if type(part).tasks is not Extrapolator.tasks]
    if writers and len(parallelisms) > 1:
        raise OptionError(
            f"{type(writers[0]).__name__} writes its own tasks, so it cannot be combined with others", where="parallel"
        )
    return writers[0] if writers else None
