"""Local SGD (Stich 2019): each GPU trains by itself, and parameters are averaged once in so many steps.

    triosim simulate TRACE --parallel examples/plugins/local_sgd.py:LocalSGD --gpus 8 --iterations 8 --option every=4

A parallelism that leaves the operators alone communicates in hooks: when a gradient is ready, or when a step ends.
"""

from __future__ import annotations

from collections.abc import Callable

from triosim.config import Option
from triosim.extrapolators import Extrapolator, Gradient, Mesh, Program, RankContext, Stage, TrainingHooks, with_hooks
from triosim.tasks import AllReduce, TaskStream, Wait


class LocalSGD(Extrapolator):
    axis = "local-sgd"
    level = "hooks"
    options = (Option("every", "whole", 4, "After how many steps parameters are averaged."),)

    def transform(self, program: Program, mesh: Mesh) -> Program:
        def make(stage: Stage, gradients: tuple[Gradient, ...]) -> Callable[[RankContext], TrainingHooks]:
            nbytes = float(sum(tensor.nbytes for tensor in stage.parameters))
            return lambda context: Average(context, nbytes, self.config.every)

        return with_hooks(program, self.axis, make)


class Average(TrainingHooks):
    def __init__(self, context: RankContext, nbytes: float, every: int) -> None:
        super().__init__(context)
        self.nbytes, self.every, self.steps = nbytes, every, 0

    def after_optimizer(self) -> TaskStream:
        self.steps += 1
        if self.steps % self.every == 0:
            averaged = yield AllReduce(self.nbytes, self.group)
            yield Wait((averaged,))
