"""The plan of a run: from a trace and ``dp=2,tp=4`` to the task stream of every rank."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, product, takewhile

from triosim import gpus as catalogue
from triosim.compute.compute_model import ComputeModel
from triosim.compute.pricing.gradient_accumulation import AddedGradient, with_added_gradients
from triosim.config import Option, RunConfig, takes_text
from triosim.config.stacks import STACKS
from triosim.errors import OptionError, PluginError, TraceError
from triosim.extrapolators.core.extrapolator import Extrapolator
from triosim.extrapolators.core.flags import EP_OVERLAP, GRADIENT_DTYPE
from triosim.extrapolators.core.lowering import Lowering
from triosim.extrapolators.core.memory import MemoryFootprint
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.parallelisms import Parallel, Parallelisms
from triosim.extrapolators.core.program import Block, Program, Stage
from triosim.extrapolators.core.program.kept_programs import KEPT, ProgramSource, of_operators_alone
from triosim.extrapolators.core.program.shape_differences import ShapeDifferences, shape_differences
from triosim.extrapolators.core.recompute import recomputed
from triosim.extrapolators.core.schedule_table import accumulate
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.extrapolators.core.training_loop import TrainingLoop
from triosim.garbage_collector import without_collecting
from triosim.operators.features import is_pooled_look_up, unknown
from triosim.sharding.reshape import rescaled
from triosim.tasks import TaskStream, Tier
from triosim.trace import Operator, Trace

#: Turns a program into another one.
Transform = Callable[[Program], Program]


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """A program lowered for every rank of a mesh. ``batch_size`` is that of one replica.

    - ``options`` are those that its parallelisms declare; ``declared`` is the same, or None where a plug-in that declares none
      may read any.
    - ``work`` is the trace, and how many times its operators are run in a step of all replicas.
    - A plan ``is_random`` where something in it was drawn at random, from the option ``seed``.
    - Ranks at different coordinates along ``program_axes`` (names and sizes) run different programs. ``differences`` are the
      shapes in which all programs differ, None where there is one program, or they differ in more.
    """

    parallel: str
    mesh: Mesh
    program: Program
    batch_size: int
    global_batch_size: int
    notes: tuple[str, ...]
    options: tuple[Option, ...]
    declared: tuple[Option, ...] | None
    work: tuple[tuple[Trace, float], ...]
    symmetry: Symmetry | None  # of identical ranks
    is_random: bool
    lowerings: tuple[tuple[Lowering, ...], ...]  # by iteration, or one for all; then by ``variant``
    differences: ShapeDifferences | None = None
    program_axes: tuple[tuple[str, int], ...] = ()
    task_writer: Extrapolator | None = None

    @property
    def world(self) -> int:
        """The number of GPUs."""
        return self.mesh.world

    @property
    def known_options(self) -> tuple[str, ...]:
        """The names that its parallelisms read of ``--option``."""
        return tuple(option.key or option.name for option in self.options if takes_text(option))

    @property
    def training(self) -> bool:
        """Whether a step has a backward pass."""
        return self.program.training

    @property
    def sample_parts(self) -> int:
        """In how many parts a sample of its trace is: a trace of one GPU has it whole."""
        return 1

    @property
    def pipeline_axis(self) -> str | None:
        """The axis along which stages follow each other; None without a pipeline."""
        return self.program.stage_axis if len(self.program.stages) > 1 else None

    @property
    def variants(self) -> int:
        """The number of different programs in an iteration."""
        return len(self.lowerings[0])

    def variant(self, rank: int) -> int:
        """Return the index of the program that a rank runs."""
        found = 0
        for name, size in self.program_axes:
            found = found * size + self.mesh.coordinate(name, rank)
        return found

    def tasks(self, rank: int) -> TaskStream:
        """Return the task stream of one rank."""
        if self.task_writer is not None:
            return self.task_writer.tasks(rank)
        return self._training(rank)

    def memory_footprint(self, rank: int) -> MemoryFootprint | None:
        """Return a rank's memory where a parallelism writes its own tasks; None where it follows from the program."""
        return None if self.task_writer is None else self.task_writer.memory_footprint(rank)

    def _training(self, rank: int) -> TaskStream:
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
    slowdown: Callable[[int, Operator], float] | None = None,
    gathering_memories: frozenset[Tier] = frozenset(),
) -> ParallelPlan:
    """Return the plan for a trace.

    ``parallel`` is ``single``, ``ddp``, ``dp=2,tp=4``, or a mapping of names (or classes) to sizes; one may go without a size
    and takes what is left of ``gpus``. ``slowdown`` is by how many times longer an operator takes on a rank, where pipeline
    stages are to be balanced over unequal GPUs; ``gathering_memories`` are behind switches that gather what ranks
    load. Raises ``OptionError`` for options that contradict each other, ``TraceError`` where the trace lacks what a parallelism
    needs, ``PluginError`` for an unknown name.
    """
    parallelisms = Parallelisms.of(parallel, gpus, config)
    batch_size, micro_batches = batches(parallelisms, config, trace.batch_size)
    overlaps = EP_OVERLAP in parallelisms.options and config.value_of(EP_OVERLAP)
    schedule = accumulate(micro_batches, side_by_side=overlaps)
    composition = _Composition(parallelisms, config)
    begun = replace(
        composition.begun(trace, batch_size // micro_batches, model),
        schedule=schedule if config.training else schedule.forward_alone(),
        data_axes=parallelisms.data_axes,
        sharded_axes=parallelisms.sharded_axes,
        slowdown=slowdown,
        gathering_memories=gathering_memories,
    )
    different = config.iterations if parallelisms.is_random else 1
    programs = composition.programs(begun, different)
    lowerings, differences = _lowered(programs, parallelisms.mesh, config)
    program, writer = programs[0][0], parallelisms.task_writer
    if config.training and parallelisms.replicas > 1:
        _check_updates(program)
    return ParallelPlan(
        parallel=str(parallelisms),
        mesh=parallelisms.mesh,
        program=program,
        batch_size=batch_size,
        global_batch_size=batch_size * parallelisms.replicas,
        notes=(*program.notes, *_notes(trace, config, batch_size, micro_batches, overlaps=overlaps)),
        options=parallelisms.options,
        declared=parallelisms.options if parallelisms.declare_their_options else None,
        work=((trace, batch_size * parallelisms.replicas / trace.batch_size),),
        symmetry=parallelisms.symmetry,
        is_random=parallelisms.is_random,
        lowerings=lowerings,
        differences=differences,
        program_axes=parallelisms.program_axes,
        task_writer=None if writer is None else writer.lowered(lowerings[0][0]),
    )


def _check_updates(program: Program) -> None:
    """Raise ``OptionError`` where replicas update their own copies of embedding tables, which nothing keeps equal."""
    for operator in program.operators:
        written = {tensor.storage for tensor in operator.outputs if tensor.category == "parameter"}
        if operator.phase == "backward" and is_pooled_look_up(operator) and written - program.experts:
            what = f"the kernel of {operator.layer} updates its tables, so that those of replicas would differ"
            raise OptionError(what, where="--parallel", fix="divide them among the replicas: ddp=8,tables=8")


def _notes(trace: Trace, config: RunConfig, batch_size: int, micro_batches: int, *, overlaps: bool) -> Iterator[str]:
    """Yield what a user may not expect of the batch that was asked for."""
    said = (config.batch_size, config.global_batch_size)
    if config.micro_batch_size is not None and said == (None, None) and "described" not in trace.software:
        yield f"--micro-batch-size makes a replica's batch {batch_size} samples, not the trace's {trace.batch_size}"
    if overlaps and micro_batches == 1:
        yield f"{EP_OVERLAP.where} has no effect with one micro-batch: no pass of another one can run beside it"


def _lowered(
    programs: Sequence[Sequence[Program]], mesh: Mesh, config: RunConfig
) -> tuple[tuple[tuple[Lowering, ...], ...], ShapeDifferences | None]:
    """Return the lowerings of each iteration's programs, and the shapes in which these differ, if in no more."""
    first, *others = chain.from_iterable(programs)
    differences = shape_differences((first, *others)) if others else None
    lower = partial(Lowering, mesh=mesh, iterations=config.iterations // len(programs), copy_input=config.copy_input)
    begun = lower(first)
    parameters = {gradient.parameter.storage for gradients in begun.gradients for gradient in gradients}
    like = None if differences is None or differences.storages & parameters else begun
    return tuple(
        tuple(begun if program is first else lower(program, like=like) for program in some) for some in programs
    ), differences


class _Composition:
    """Applies the parallelisms to a program: to operators, then hooks, then the schedule; recomputation precedes hooks.

    Transforms ahead of the first random parallelism are the same in all iterations, and applied once.
    """

    def __init__(self, parallelisms: Parallelisms, config: RunConfig) -> None:
        self._parallelisms, self._config = parallelisms, config
        hooks = [*parallelisms.at("hooks"), *parallelisms.default_reduction(config)]
        after = [*hooks, *parallelisms.at("schedule"), *parallelisms.offloading(config)]
        before = parallelisms.at("operators")
        self._transforms = [
            *map(self._transform, before),
            lambda program: _with_added_gradients(recomputed(program, config.recompute)),
            *map(self._transform, after),
        ]
        random = [part is not None and part.is_random for part in (*before, None, *after)]
        self._first_random = random.index(True) if any(random) else 0
        self._alone = list(takewhile(of_operators_alone, before))
        self._recomputed_alone = len(self._alone) == len(before)

    def begun(self, trace: Trace, batch_size: int, model: ComputeModel) -> Program:
        """Return a trace's program with the transforms that depend on its operators alone, which later plans share."""
        config = self._config
        source = ProgramSource(
            trace,
            catalogue.get(trace.gpu),
            model.identity,
            batch_size,
            config.training,
            config.value_of(GRADIENT_DTYPE),
            config.fold is not False,
        )
        program = KEPT.get(source, lambda: _program(trace, batch_size, config, model))
        steps: list[Hashable] = [(type(part), part.axis, part.size, part.option_values) for part in self._alone]
        for step, transform in zip([*steps, config.recompute], self._transforms[: self._begun], strict=False):
            source = source.after(step)
            program = KEPT.get(source, partial(transform, program))
        return program

    @property
    def _begun(self) -> int:
        """The number of transforms that ``begun`` applies."""
        return len(self._alone) + self._recomputed_alone

    def programs(self, begun: Program, iterations: int) -> list[list[Program]]:
        """Return each iteration's programs, one for each coordinate along the axes whose ranks run different programs.

        Pipeline stages start at the same layers in all of them, where it is best in the mean.
        """
        axes = self._parallelisms.program_axes
        first = max(self._first_random, self._begun)
        begun, rest = _applied(self._transforms[self._begun : first], begun), self._transforms[first:]
        found = list[list[Program]]()
        if self._parallelisms.is_random and self._parallelisms.at("schedule"):
            begun = replace(begun, stage_starts=_applied(rest, begun).stage_starts)
        for iteration in range(iterations):
            variants = []
            for coordinates in product(*([(name, index) for index in range(size)] for name, size in axes)):
                variants.append(_applied(rest, replace(begun, iteration=iteration, coordinates=coordinates)))
                begun = replace(begun, stage_starts=variants[0].stage_starts)
            found.append(variants)
        return found

    def _transform(self, part: Extrapolator) -> Transform:
        def transform(program: Program) -> Program:
            after = part.transform(program, self._parallelisms.mesh)
            if not isinstance(after, Program):
                name, returned = type(part).__name__, type(after).__name__
                raise PluginError(f"transform() returned a {returned}", where=name, fix="return the new Program")
            return after

        return transform


def _with_added_gradients(program: Program) -> Program:
    """Return the program whose kernels add gradients to those of other micro-batches, where its software stack's do so."""
    if program.stack is None or program.stack.gradient_sums != "fused" or not program.training:
        return program
    added = [
        AddedGradient(gradient.ready, float(gradient.parameter.nbytes), gradient.nbytes)
        for gradient in chain.from_iterable(stage.gradients(program.gradient_dtype) for stage in program.stages)
    ]
    return program.with_operators(with_added_gradients(program.operators, added, program.model, program.gpu))


def _applied(transforms: list[Transform], program: Program) -> Program:
    for transform in transforms:
        program = transform(program)
    return program


def batches(parallelisms: Parallelisms, config: RunConfig, traced: int) -> tuple[int, int]:
    """Return the samples and the micro-batches of a replica's batch; ``traced`` are the trace's samples.

    Raises ``OptionError`` for options that contradict each other.
    """
    batch_size = _replica_batch(config, parallelisms.replicas)
    micro, count = config.micro_batch_size, config.micro_batches
    if micro is not None and batch_size is not None:
        if batch_size % micro or count not in (None, batch_size // micro):
            many = "whole" if count is None else count
            what = f"a batch of {batch_size} does not consist of {many} micro-batches of {micro}"
            fix = f"give a multiple of {micro}" if count is None else f"give a batch size of {count * micro}"
            raise OptionError(what, where="--micro-batch-size", fix=fix)
        return batch_size, batch_size // micro
    count = count or max(part.default_micro_batches for part in parallelisms.all)
    if micro is not None:
        return micro * count, count
    batch_size = batch_size or traced
    if batch_size % count:
        fix = "choose a number of micro-batches that divides the batch"
        what = f"a batch of {batch_size} does not divide into {count} micro-batches"
        raise OptionError(what, where="--micro-batches", fix=fix)
    return batch_size, count


def _replica_batch(config: RunConfig, replicas: int) -> int | None:
    """Return the samples of a replica's batch, where a user says it."""
    if config.global_batch_size is None:
        return config.batch_size
    if config.global_batch_size % replicas:
        what = f"a global batch of {config.global_batch_size} does not divide among {replicas} data-parallel replicas"
        raise OptionError(what, where="--global-batch-size", fix=f"use a multiple of {replicas}")
    return config.global_batch_size // replicas


def _program(trace: Trace, batch_size: int, config: RunConfig, model: ComputeModel) -> Program:
    """Return the trace as the program of one replica, in the shapes of a micro-batch of ``batch_size`` samples."""
    if not any(operator.phase == "forward" for operator in trace.operators):
        raise TraceError("the trace has no operator of the forward pass", where=trace.source or None)
    model.fit(trace)
    schedule = accumulate(1)
    program = Program(
        (_single_stage(trace.operators, training=config.training),),
        model,
        schedule if config.training else schedule.forward_alone(),
        gradient_dtype=config.value_of(GRADIENT_DTYPE),
        training=config.training,
        gpu=trace.gpu,
        stack=STACKS.get(trace.software.get("stack", "")),
        batch_size=batch_size,
        deduplicate=config.fold is not False,
    )
    if strange := unknown(trace.operators):
        program = program.noted(f"unknown operators, assumed to be memory-bound: {', '.join(strange)}")
    found = rescaled(program.operators, trace.batch_size, batch_size)
    note = f"operator times are predicted for batch size {batch_size} from those of the trace at {trace.batch_size}"
    return program.noted(*found.notes).reshaped({operator.id: operator for operator in found.operators}, note=note)


def _blocks_of(operators: Iterable[Operator]) -> tuple[Block, ...]:
    """Return operators of one phase as blocks: consecutive operators of one layer are one."""
    return tuple(
        Block(layer, phase, tuple(group))
        for (layer, phase), group in groupby(operators, lambda op: (op.layer, op.phase))
    )


def _single_stage(operators: Sequence[Operator], *, training: bool) -> Stage:
    """Return a trace's operators as one stage; without training, the forward pass alone."""
    phases = ("forward", "backward", "optimizer") if training else ("forward",)
    return Stage(*(_blocks_of(op for op in operators if op.phase == phase) for phase in phases))
