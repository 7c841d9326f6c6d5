"""Standard data parallelism: each rank has the whole model and a share of the samples.

Gradients are reduced once, after the whole backward pass (TrioSim 4.3). In the style "replicate" it is
``torch.nn.DataParallel``: one process whose first GPU broadcasts the parameters and scatters the input at every step,
gathers the output, reduces the gradients and alone runs the optimizer.
"""

from __future__ import annotations

from functools import partial

from triosim.errors import OptionError
from triosim.extrapolators.core import hooks
from triosim.extrapolators.core.extrapolator import Extrapolator
from triosim.extrapolators.core.flags import DP_STYLE, GRADIENT_DTYPE
from triosim.extrapolators.core.hooks import RankContext, TrainingHooks, layers_of
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Gradient, Program, RankHooksFactory, Stage
from triosim.sharding.dataflow import output_bytes
from triosim.tasks import Broadcast, Collective, Gather, Layers, Reduce, Scatter, TaskStream, Wait


class DataParallel(Extrapolator):
    """The parallelism ``dp``: all-reduces all gradients after the backward pass."""

    axis = "dp"
    sums_gradients = True
    options = (DP_STYLE, GRADIENT_DTYPE)

    @property
    def identical_ranks(self) -> bool:  # type: ignore[override]  # it depends on the style
        """Whether all ranks do the same: in the style "replicate" the first one does more."""
        return bool(self.config.dp_style != "replicate")

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program that reduces its gradients after the backward pass."""
        hooks.require_gradients(program)
        if program.experts and self.config.dp_style == "replicate":
            what = "style replicate copies all parameters in each step, so experts cannot be divided"
            raise OptionError(what, where=program.expert_axis, fix="use ddp")
        if program.sharded_axes:
            return program  # what shards the optimizer reduces its shares along this axis
        make = partial(replicate, program.micro_batches) if self.config.dp_style == "replicate" else all_reduce
        return hooks.with_gradient_hooks(program, program.data_axes, lambda _: make)


def all_reduce(stage: Stage, gradients: tuple[Gradient, ...]) -> RankHooksFactory:
    """Make the hooks of standard data parallelism: one all-reduce of all gradients, after the backward pass."""
    nbytes, layers = sum(gradient.nbytes for gradient in gradients), layers_of(gradients)
    return lambda context: hooks.ReduceOnce(context, nbytes, layers)


def replicate(micro_batches: int, stage: Stage, gradients: tuple[Gradient, ...]) -> RankHooksFactory:
    """Make the hooks of ``torch.nn.DataParallel``."""
    parameters = float(sum(tensor.nbytes for tensor in stage.parameters))
    inputs = float(sum(tensor.nbytes for tensor in stage.inputs)) * micro_batches
    outputs = output_bytes([operator for block in stage.forward for operator in block.operators])
    layers = layers_of(gradients)
    return lambda context: Replicate(context, parameters, inputs, outputs, layers)


class Replicate(TrainingHooks):
    """Sends all data out from the group's first rank, and back to it; sizes in bytes, inputs and outputs of one rank."""

    def __init__(
        self, context: RankContext, parameters: float, inputs: float, outputs: float, gradients: Layers
    ) -> None:
        super().__init__(context)
        self._parameters, self._layers = parameters, gradients
        self._inputs, self._outputs = inputs * len(self.group.ranks), outputs * len(self.group.ranks)
        self.runs_optimizer = self.rank == self.group.ranks[0]

    def step_begins(self) -> TaskStream:
        """Broadcast the parameters and scatter the input."""
        yield from self._do(Broadcast, self._parameters, self._layers)
        yield from self._do(Scatter, self._inputs)

    def forward_ends(self) -> TaskStream:
        """Gather the outputs."""
        yield from self._do(Gather, self._outputs)

    def before_optimizer(self) -> TaskStream:
        """Reduce the gradients to the first rank."""
        yield from self._do(Reduce, self._layers.total, self._layers)

    def _do(self, kind: type[Collective], nbytes: float, layers: Layers | None = None) -> TaskStream:
        if nbytes and not self.alone:
            yield Wait(((yield kind(nbytes, self.group, root=self.group.ranks[0], layers=layers)),))
