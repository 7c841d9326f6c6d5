"""Local SGD: each GPU trains by itself, and every few steps all average their parameters.

Stich, "Local SGD Converges Fast and Communicates Little" (ICLR 2019). As in PyTorch's
``torch.distributed.algorithms.model_averaging``, all parameters are copied into one buffer, which is all-reduced: memory holds
them twice after the update of a step that averages. There is no outer optimizer.
"""

from __future__ import annotations

from triosim.config import Option
from triosim.extrapolators.core.extrapolator import Extrapolator
from triosim.extrapolators.core.hooks import RankContext, TrainingHooks, layers_of, require_training, with_hooks
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Gradient, Program, RankHooksFactory, Stage
from triosim.tasks import AllReduce, Layers, TaskStream


class LocalSGD(Extrapolator):
    """The parallelism ``local-sgd``; it combines with those that divide a replica (tp, cp, pp)."""

    axis = "local-sgd"
    options = (
        Option("every", "whole", 4, "local-sgd: the number of steps from one average of the parameters to the next."),
    )

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program that averages its parameters at the end of each ``every``-th step."""
        require_training(program, "local-sgd", "inference changes no parameters")
        every = self.config.every
        if self.config.iterations % every:
            program = program.noted(
                f"local-sgd: parameters are averaged every {every} steps, in {self.config.iterations // every} of the "
                f"{self.config.iterations} simulated ones; give --iterations a multiple of {every} for the mean step"
            )

        def make(stage: Stage, gradients: tuple[Gradient, ...]) -> RankHooksFactory:
            nbytes, layers = float(sum(tensor.nbytes for tensor in stage.parameters)), layers_of(gradients)
            return lambda context: Average(context, nbytes, every, layers)

        return with_hooks(program, self.axis, make)


class Average(TrainingHooks):
    """All-reduces all parameters after each ``every``-th update; the next step waits for it."""

    def __init__(self, context: RankContext, nbytes: float, every: int, layers: Layers) -> None:
        super().__init__(context)
        self._nbytes, self._every, self._layers, self._steps = nbytes, every, layers, 0

    def after_optimizer(self) -> TaskStream | None:
        """Average the parameters, in each ``every``-th step. Memory is tracked for one step, as if that one averaged."""
        self._steps += 1
        if self.alone or not self._nbytes:
            return None
        self.memory.allocate(("average", self), self._nbytes, "communication")
        self.memory.free(("average", self))
        return None if self._steps % self._every else self._average()

    def _average(self) -> TaskStream:
        self.pending.append((yield AllReduce(self._nbytes, self.group, layers=self._layers)))
        yield from self.wait()
