"""What an extrapolator is: it turns one GPU's program into one for many.

One class for each parallelism, one file for each class. Its ``level`` says where it acts, and parallelisms compose in the
order shard, react, schedule, whatever order the user wrote them in: ``dp=2,pp=4,tp=8`` is schedule(data(shard(program))).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from triosim.config import Option, RunConfig
from triosim.errors import OptionError
from triosim.extrapolators.core.memory_footprint import WHOLE, MemoryFootprint
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Program
from triosim.extrapolators.core.training_loop import TrainingLoop
from triosim.tasks import TaskStream

if TYPE_CHECKING:
    from triosim.extrapolators.core.lowering import Lowering

Level = Literal["operators", "hooks", "schedule"]
LEVELS: tuple[Level, ...] = ("operators", "hooks", "schedule")

#: What gradients are reduced in; for each parallelism that reduces them.
GRADIENT_DTYPE = Option(
    "gradient_dtype",
    "dtype",
    None,
    "What gradients are reduced in: fp32, bf16, ... (default: each parameter's own).",
    metavar="DTYPE",
    of_training=True,
    of_step=True,
)

#: Where axes stand in the mesh, fastest first. A plug-in may stand between.
TENSOR_ORDER, EXPERT_ORDER, CONTEXT_ORDER, DATA_ORDER, PIPELINE_ORDER = 0, 5, 10, 20, 30


class Extrapolator:
    """Derive from this, and override ``transform``; or, for what is no transformation (Hop), ``tasks``.

    ``axis`` names the axis of the mesh and its communicators (what the user wrote, unless it is set);
    ``order`` is the axis' place, the fastest first. ``default_size`` is how many ranks stand along it where the user names
    no size, whatever the number of GPUs; None takes what the other axes leave. ``sums_gradients`` says that the ranks along it
    have the same parameters and see other data, so that what reduces gradients does it along this axis too;
    ``shards_optimizer``, that each of them keeps the optimizer's states of a share of the parameters.
    ``identical_ranks`` says whether ranks along it do the same, False that they differ along it alone; None, that nobody
    knows, in which case every rank is simulated. ``options`` declares the options that it reads; their values are attributes
    of ``config``, beside those of the run (``config.training``). What has no ``adds_ranks`` stands along no axis of its own:
    its ranks are parts of those that see other data. What ``draws`` by chance, from the option ``seed``, is transformed for
    each ``iteration`` anew. What makes ranks run different ``programs`` is transformed for each place along its axis, which
    it is ``at``; None stands for the mean of all places.
    """

    axis: str = ""
    level: ClassVar[Level] = "hooks"
    order: ClassVar[int] = DATA_ORDER
    default_size: ClassVar[int | None] = None
    adds_ranks: ClassVar[bool] = True
    sums_gradients: ClassVar[bool] = False
    shards_optimizer: ClassVar[bool] = False
    identical_ranks: ClassVar[bool | None] = None
    options: ClassVar[tuple[Option, ...]] = ()

    #: Set before ``tasks`` is called: the program of one replica, the mesh of this axis alone, and loops over the program.
    program: Program
    mesh: Mesh
    lowering: Lowering

    def __init__(self, size: int, config: RunConfig) -> None:
        self.size = size
        self.config = config.of_part(type(self))
        self.iteration = 0
        self.at: int | None = None

    def loop(self, rank: int) -> TrainingLoop:
        """Return the training loop of one rank, whose parts (``forward``, ``backward``, ``optimizer``) ``tasks`` can use."""
        return TrainingLoop(self.lowering, rank)

    @property
    def read_options(self) -> tuple[Option, ...]:
        """The options that it reads: those that it declares, and those of parts that it uses."""
        return self.options

    @property
    def replicas(self) -> int:
        """How many replicas train along the axis, each on a batch of its own."""
        return self.size if self.level == "hooks" else 1

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
