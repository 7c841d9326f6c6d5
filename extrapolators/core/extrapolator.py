"""The interface of extrapolators: a parallelism turns one GPU's program into a program for many.

Each parallelism is one class in a file of its own. It acts at one of three levels: on operators (tensor, context and expert
parallelism), in parameter and gradient hooks (data parallelism and its sharded relatives), or on the schedule of stages and
micro-batches (pipelines). They are applied in this order, whatever order the user wrote them in:
``dp=2,pp=4,tp=8`` is schedule(data(shard(program))).
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from triosim.config import Option, RunConfig
from triosim.errors import OptionError
from triosim.extrapolators.core.memory import MemoryFootprint
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Program
from triosim.extrapolators.core.training_loop import TrainingLoop
from triosim.tasks import TaskStream

if TYPE_CHECKING:
    from typing_extensions import Self

    from triosim.extrapolators.core.lowering import Lowering

Level = Literal["operators", "hooks", "schedule"]

#: The order of axes in the mesh, fastest first. The axis of a plug-in may lie between two of these.
TENSOR_ORDER, EXPERT_ORDER, CONTEXT_ORDER, DATA_ORDER, PIPELINE_ORDER = 0, 5, 10, 20, 30


class Extrapolator:
    """The base class of parallelisms: override ``transform``, or ``tasks`` where there is nothing to transform (Hop).

    - ``axis`` names the axis of the mesh and its communicators, by default as the user wrote it.
    - ``level`` is the level that it acts at.
    - ``order`` is the axis' order in the mesh, the fastest axis first.
    - ``default_size`` is the size of the axis where the user gives none; with None it takes the GPUs that the other axes leave.
    - ``adds_ranks`` is False for ep, which divides ranks that other parallelisms add: those that see other data.
    - ``sums_gradients``: the ranks along the axis have the same parameters and see other data, so that gradients are reduced
      along this axis too; ``shards_optimizer``: each keeps the optimizer states of a share of the parameters.
    - ``identical_ranks``: whether all ranks along the axis do the same, so that one can be simulated for all (True),
      or differ along this axis alone (False). With None (not known) every rank is simulated.
    - ``of_operators_alone``: whether ``transform`` depends on operators, size and declared options alone: plans that
      differ in mesh, schedule or hooks share what it returns.
    - ``options`` declares the options that it reads. Their values are attributes of ``config``, as are those of the run
      (``config.training``).
    """

    axis: str = ""
    level: ClassVar[Level] = "hooks"
    order: ClassVar[int] = DATA_ORDER
    default_size: ClassVar[int | None] = None
    adds_ranks: ClassVar[bool] = True
    sums_gradients: ClassVar[bool] = False
    shards_optimizer: ClassVar[bool] = False
    identical_ranks: ClassVar[bool | None] = None
    of_operators_alone: ClassVar[bool] = False
    options: ClassVar[tuple[Option, ...]] = ()

    _lowering: Lowering | None = None

    def __init__(self, size: int, config: RunConfig, name: str = "") -> None:
        self.size = size
        self.config = config.of_part(type(self))
        self.axis = type(self).axis or name

    # ---- to override --------------------------------------------------------------------------------------------

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program with this parallelism applied."""
        return program

    def tasks(self, rank: int) -> TaskStream:
        """Return the tasks of one rank, for a parallelism that writes them itself and combines with no other.

        ``program`` is then the one that ``transform`` returned.
        """
        raise OptionError(f"{type(self).__name__} writes no tasks; it transforms a program")

    def memory_footprint(self, rank: int) -> MemoryFootprint:
        """Return a rank's memory, for a parallelism that writes its tasks itself: by default a training step's."""
        return MemoryFootprint()

    @property
    def replicas(self) -> int:
        """The number of replicas along the axis, each of which trains on a batch of its own."""
        return self.size if self.level == "hooks" else 1

    @property
    def default_micro_batches(self) -> int:
        """The number of micro-batches of a replica's batch, unless the user gives one."""
        return 1

    @property
    def is_random(self) -> bool:
        """Whether it draws something at random, so that ``transform`` is called for each ``program.iteration``."""
        return False

    @property
    def differs_along_axis(self) -> bool:
        """Whether ranks along the axis run different programs, of the same blocks in the same order.

        ``transform`` is then called for each ``program.coordinate(self.axis)``; None asks for the mean of all ranks.
        """
        return False

    @property
    def read_options(self) -> tuple[Option, ...]:
        """The options that it declares, and those of the parts that it uses."""
        return self.options

    @property
    def option_values(self) -> tuple[Any, ...]:
        """The values of the options that it reads."""
        return tuple([getattr(self.config, option.name) for option in self.read_options])

    # ---- for ``tasks`` ------------------------------------------------------------------------------------------

    @property
    def program(self) -> Program:
        """The transformed program."""
        return self._known_lowering.program

    @property
    def mesh(self) -> Mesh:
        """The ranks."""
        return self._known_lowering.mesh

    def loop(self, rank: int) -> TrainingLoop:
        """Return the training loop of one rank, whose parts (``forward``, ``backward``, ``optimizer``) ``tasks`` can use."""
        return TrainingLoop(self._known_lowering, rank)

    # ---- for the plan -------------------------------------------------------------------------------------------

    @property
    def writes_tasks(self) -> bool:
        """Whether it writes its tasks itself."""
        return type(self).tasks is not Extrapolator.tasks

    def lowered(self, lowering: Lowering) -> Self:
        """Return the same parallelism with the lowered program, which ``tasks`` needs."""
        found = copy(self)
        found._lowering = lowering
        return found

    @property
    def _known_lowering(self) -> Lowering:
        assert self._lowering is not None, "only tasks() has a lowered program"
        return self._lowering
