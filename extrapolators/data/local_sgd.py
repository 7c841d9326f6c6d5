"""Local SGD: each GPU trains by itself, and parameters are averaged once in so many steps.

Stich, "Local SGD Converges Fast and Communicates Little" (ICLR 2019). In memory, parameters are averaged as PyTorch's
``torch.distributed.algorithms.model_averaging`` does it: all are copied into one buffer, which is reduced. So there are twice
their bytes after the update of a step that averages. There is no outer optimizer.
"""

from __future__ import annotations

from collections.abc import Callable

from triosim.config import Option
from triosim.errors import OptionError
from triosim.extrapolators.core.extrapolator import DATA_ORDER, Extrapolator
from triosim.extrapolators.core.hooks import RankContext, TrainingHooks, layers_of, require_gradients, with_hooks
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Gradient, Program, Stage
from triosim.tasks import AllReduce, Layers, TaskStream


class LocalSGD(Extrapolator):
    """The parallelism ``local-sgd``. It combines with the parallelisms that divide a replica."""

    axis = "local-sgd"
    level = "hooks"
    order = DATA_ORDER
    options = (Option("every", "whole", 4, "local-sgd: after how many steps parameters are averaged."),)

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program that averages its parameters at the end of each ``every``-th step."""
        if not program.training:
            raise OptionError("inference changes no parameters", where="local-sgd", fix="leave out --inference")
        require_gradients(program)
        every = self.config.every
        if self.config.iterations % every:
            program = program.noted(
                f"local-sgd: parameters are averaged every {every} steps, in {self.config.iterations // every} of the "
                f"{self.config.iterations} simulated ones; give --iterations a multiple of {every} for the mean step"
            )

        def make(stage: Stage, gradients: tuple[Gradient, ...]) -> Callable[[RankContext], TrainingHooks]:
            nbytes = float(sum(tensor.nbytes for tensor in stage.parameters))
            layers = layers_of(gradients)
            return lambda context: Average(context, nbytes, every, layers)

        return with_hooks(program, self.axis, make)


class Average(TrainingHooks):
    """One all-reduce of all parameters after every so many updates; the next step waits for it."""

    def __init__(self, context: RankContext, nbytes: float, every: int, layers: Layers) -> None:
        super().__init__(context)
        self._layers = layers
        self._nbytes, self._every, self._steps = nbytes, every, 0

    def after_optimizer(self) -> TaskStream | None:
        """Average, where it is time to."""
        self._steps += 1
        if self.alone or not self._nbytes:
            return None
        self.memory.allocate(
            ("average", self), self._nbytes, "communication"
        )  # of one step, taken to be one that averages
        self.memory.free(("average", self))
        if self._steps % self._every:
            return None
        return self._average()

    def _average(self) -> TaskStream:
        self.pending.append((yield AllReduce(self._nbytes, self.group, layers=self._layers)))
        yield from self.wait()
