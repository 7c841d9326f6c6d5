"""What an extrapolator is: it turns one GPU's program into one for many.

One class for each parallelism, one file for each class. Its ``level`` says where it acts, and parallelisms compose in the
order shard, react, schedule, whatever order the user wrote them in: ``dp=2,pp=4,tp=8`` is schedule(data(shard(program))).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from triosim.errors import OptionError, nearest
from triosim.extrapolators.core.memory_footprint import WHOLE, MemoryFootprint
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Program
from triosim.extrapolators.core.training_loop import TrainingLoop
from triosim.tasks import TaskStream
from triosim.trace import DTYPE_BYTES, Operator

if TYPE_CHECKING:
    from triosim.extrapolators.core.lowering import Lowering

Level = Literal["operators", "hooks", "schedule"]
Word = TypeVar("Word", bound=str)
LEVELS: tuple[Level, ...] = ("operators", "hooks", "schedule")

#: Where axes stand in the mesh, fastest first. A plug-in may stand between.
TENSOR_ORDER, EXPERT_ORDER, CONTEXT_ORDER, DATA_ORDER, PIPELINE_ORDER = 0, 5, 10, 20, 30


@dataclass(frozen=True, slots=True)
class ParallelOptions:
    """What a user may choose. Sizes are in bytes, batch sizes in samples.

    ``batch_size`` is that of a data-parallel replica, ``global_batch_size`` that of all of them together; without either, a
    replica has the trace's. ``micro_batches`` divide a replica's batch (default: as many as the pipeline has ranks, or as
    its schedule needs). ``stages`` are the layers at which a new pipeline stage starts; ``schedule`` is a pipeline schedule's
    name or file, ``virtual_stages`` how many stages a rank has in an interleaved one. ``gradient_dtype`` is what gradients
    are reduced in (default: the parameter's). ``sequence_parallel`` divides the sequence, in tensor parallelism of the style
    "megatron", where features are whole. ``recompute`` is the policy by which the backward pass computes activations
    again. ``dp_style`` "replicate" is ``torch.nn.DataParallel``. ``factor`` says by how many times longer an operator takes
    on a rank, where pipeline stages are to be balanced over unequal GPUs. ``deduplicate`` works out once what is the same of
    several layers, with the same results. ``extra`` is for plug-ins.
    """

    batch_size: int | None = None
    global_batch_size: int | None = None
    training: bool = True
    iterations: int = 1
    copy_input: bool = False
    bucket_bytes: float = 25 * 2.0**20
    first_bucket_bytes: float = 1 * 2.0**20
    dp_style: Literal["all-reduce", "replicate"] = "all-reduce"
    tp_style: Literal["gather", "megatron"] = "gather"
    sequence_parallel: bool = False
    micro_batches: int | None = None
    stages: tuple[str, ...] | None = None
    schedule: str = "gpipe"
    virtual_stages: int | None = None
    gradient_dtype: str | None = None
    recompute: str = "none"
    factor: Callable[[int, Operator], float] | None = None
    deduplicate: bool = True
    extra: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("batch_size", "global_batch_size", "iterations", "micro_batches", "virtual_stages"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{value} is less than 1", where=name.replace("_", " "), fix="give 1 or more")
        if self.batch_size is not None and self.global_batch_size is not None:
            raise OptionError(
                "both the batch size of a replica and the global batch size are given", fix="give one of the two"
            )
        for name in ("bucket_bytes", "first_bucket_bytes"):
            if not getattr(self, name) >= 0:
                raise OptionError(f"{getattr(self, name)} bytes", where=name.replace("_", " "), fix="give 0 or more")
        for name, known in (("dp_style", ("all-reduce", "replicate")), ("tp_style", ("gather", "megatron"))):
            if getattr(self, name) not in known:
                raise OptionError(
                    f"unknown style '{getattr(self, name)}'", where=name, fix=nearest(getattr(self, name), known)
                )
        if self.gradient_dtype is not None and self.gradient_dtype not in DTYPE_BYTES:
            raise OptionError(
                f"unknown dtype '{self.gradient_dtype}'",
                where="gradient dtype",
                fix=nearest(self.gradient_dtype, DTYPE_BYTES),
            )


class Extrapolator:
    """Derive from this, and override ``transform``; or, for what is no transformation (Hop), ``tasks``.

    ``axis`` names the axis of the mesh and its communicators (what the user wrote, unless it is set);
    ``order`` is the axis' place, the fastest first. ``default_size`` is how many ranks stand along it where the user names
    no size, whatever the number of GPUs; None takes what the other axes leave. ``sums_gradients`` says that the ranks along it
    have the same parameters and see other data, so that what reduces gradients does it along this axis too;
    ``shards_optimizer``, that each of them keeps the optimizer's states of a share of the parameters.
    ``identical_ranks`` says whether ranks along it do the same, False that they differ along it alone; None, that nobody
    knows, in which case every rank is simulated. ``extra_options`` are the names that it reads from ``options.extra``. What
    has no ``adds_ranks`` stands along no axis of its own: its ranks are parts of those that see other data. What ``draws`` by
    chance, from the option ``seed``, is transformed for each ``iteration`` anew. What makes ranks run different ``programs``
    is transformed for each place along its axis, which it is ``at``; None stands for the mean of all places.
    """

    axis: str = ""
    level: ClassVar[Level] = "hooks"
    order: ClassVar[int] = DATA_ORDER
    default_size: ClassVar[int | None] = None
    adds_ranks: ClassVar[bool] = True
    sums_gradients: ClassVar[bool] = False
    shards_optimizer: ClassVar[bool] = False
    identical_ranks: ClassVar[bool | None] = None
    extra_options: ClassVar[tuple[str, ...]] = ()

    #: Set before ``tasks`` is called: the program of one replica, the mesh of this axis alone, and loops over the program.
    program: Program
    mesh: Mesh
    lowering: Lowering

    def __init__(self, size: int, options: ParallelOptions) -> None:
        self.size = size
        self.options = options
        self.iteration = 0
        self.at: int | None = None

    def loop(self, rank: int) -> TrainingLoop:
        """Return the training loop of one rank, whose parts (``forward``, ``backward``, ``optimizer``) ``tasks`` can use."""
        return TrainingLoop(self.lowering, rank)

    @property
    def replicas(self) -> int:
        """How many replicas train along the axis, each on a batch of its own."""
        return self.size if self.level == "hooks" else 1

    def number(self, name: str, default: int, *, least: int = 0) -> int:
        """Return an option of ``extra`` that is a whole number. Raises ``OptionError`` where it is none, or too small."""
        text = self._given(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise OptionError(
                f"'{text}' is no such number", where=f"--option {name}", fix=f"give a whole number of {least} or more"
            )
        return int(text)

    def positive(self, name: str, default: float | None) -> float | None:
        """Return an option of ``extra`` that is a number above 0. Raises ``OptionError`` where it is none."""
        text = self._given(name)
        if text is None:
            return default
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise OptionError(f"'{text}' is no such number", where=f"--option {name}", fix="give a number above 0")
        return number

    def _given(self, name: str) -> str | None:
        """Return an option of ``extra`` as a user of the command line writes it: in Python it may be a number, or a bool."""
        value: object = self.options.extra.get(name)
        if isinstance(value, bool):
            return "yes" if value else "no"
        return None if value is None else str(value)

    def choice(self, name: str, known: Sequence[Word]) -> Word:
        """Return an option of ``extra`` that is one of some words; the first is the default. Raises ``OptionError``."""
        text = self._given(name) or known[0]
        for word in known:
            if word == text:
                return word
        raise OptionError(f"unknown '{text}'", where=f"--option {name}", fix=nearest(text, known))

    @property
    def draws(self) -> bool:
        """Whether each iteration is another, since something in it is drawn by chance."""
        return False

    @property
    def programs(self) -> bool:
        """Whether ranks at different places of the axis run different programs, of the same blocks in the same order."""
        return False

    @property
    def micro_batches(self) -> int:
        """Into how many micro-batches a replica's batch is divided, where the user does not say."""
        return 1

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program as it is with this parallelism."""
        return program

    def tasks(self, rank: int) -> TaskStream:
        """Return the tasks of one rank, for a parallelism that stands alone and writes them itself.

        Its ``transform`` comes first, for what it asks of the program and has to say about it.
        """
        raise OptionError(f"{type(self).__name__} writes no tasks; it transforms a program")

    def memory_footprint(self, rank: int) -> MemoryFootprint:
        """Return what a rank has in memory, for a parallelism that writes its tasks itself: by default a training step."""
        return WHOLE
