"""Builds the operator trace of one training step in plain Python: a tape of forward calls, and the backward pass from it.

Times come from a roofline (Williams et al., CACM 52(4), 2009): an operator takes as long as its FLOPs at the GPU's peak,
or its bytes at the GPU's bandwidth, whichever is longer, each at a stated efficiency, and never less than a kernel's launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triosim import Operator, Tensor, Trace


@dataclass(frozen=True)
class Roofline:
    """A GPU in four numbers."""

    gpu: str
    flops: float  # per second
    bandwidth: float  # bytes per second
    flops_efficiency: float
    bandwidth_efficiency: float
    floor: float  # seconds

    def seconds(self, flops: float, nbytes: float) -> float:
        """Return an operator's time."""
        compute = flops / (self.flops * self.flops_efficiency)
        memory = nbytes / (self.bandwidth * self.bandwidth_efficiency)
        return round(max(compute, memory, self.floor), 9)

    @property
    def description(self) -> str:
        """What a trace says of its times."""
        return (
            f"predicted: roofline of an {self.gpu}: {self.flops / 1e12:g} TFLOP/s fp32 at {self.flops_efficiency:.0%}, "
            f"{self.bandwidth / 1e9:g} GB/s at {self.bandwidth_efficiency:.0%}, at least {self.floor * 1e6:g} us"
        )


#: NVIDIA A100 datasheet: 19.5 TFLOP/s fp32 without tensor cores, 1,555 GB/s (40 GB).
A100 = Roofline("NVIDIA A100-SXM4-40GB", 19.5e12, 1555e9, 0.75, 0.8, 3e-6)

Gradients = dict[int, Tensor]


class Step:
    """One training step: call the forward operators, then ``backward`` and an optimizer, then ``trace``."""

    def __init__(self, roofline: Roofline) -> None:
        self.roofline = roofline
        self.operators: list[Operator] = []
        self.gradients: Gradients = {}
        self.parameters: list[Tensor] = []
        self._tape: list[Callable[[], None]] = []
        self._count = 0
        self._storages = 0

    def tensor(
        self,
        shape: Sequence[int],
        category: str = "activation",
        *,
        dtype: str = "float32",
        parameter: Tensor | None = None,
        view_of: Tensor | None = None,
    ) -> Tensor:
        """Return a new tensor, or a new view of another's bytes."""
        self._count += 1
        if view_of is None:
            self._storages += 1
        storage = self._storages if view_of is None else view_of.storage
        owner = parameter.id if parameter is not None else None
        return Tensor(self._count, tuple(shape), dtype, category, storage, owner)  # type: ignore[arg-type]

    def parameter(self, *shape: int) -> Tensor:
        """Return a new parameter."""
        self.parameters.append(self.tensor(shape, "parameter"))
        return self.parameters[-1]

    def call(
        self,
        name: str,
        layer: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        *,
        flops: float = 0.0,
        phase: str = "forward",
        forward: Operator | None = None,
        view: bool = False,
        nbytes: float | None = None,
    ) -> Operator:
        """Append an operator; a view costs the GPU nothing, others move each of their tensors once."""
        moved = nbytes if nbytes is not None else _moved(inputs) + _moved(outputs)
        seconds = 0.0 if view else self.roofline.seconds(flops, moved)
        number = forward.id if forward is not None else None
        operator = Operator(
            len(self.operators) + 1,
            name,
            phase,  # type: ignore[arg-type]
            layer,
            tuple(inputs),
            tuple(outputs),
            seconds,
            forward=number,
            flops=float(flops),
        )
        self.operators.append(operator)
        return operator

    def differentiate(
        self,
        forward: Operator,
        name: str,
        saved: Sequence[Tensor],
        wanted: Sequence[Tensor],
        *,
        flops: float = 0.0,
        output: Tensor | None = None,
        view: bool = False,
    ) -> None:
        """Put on the tape what the backward pass does for a forward operator.

        The node reads the gradient of ``output`` and what was ``saved``; it makes the gradients of the tensors in
        ``wanted``. A gradient that another node already made is added to, which costs another pass over it.
        """
        result = output if output is not None else forward.outputs[0]

        def run() -> None:
            incoming = self.gradients.pop(result.id)
            inputs, outputs, extra = [incoming, *saved], [], 0.0
            for tensor in wanted:
                earlier = self.gradients.get(tensor.id)
                if earlier is not None:
                    inputs.append(earlier)
                    extra += 2.0 * tensor.nbytes  # the new one is written and read again
                owner = tensor if tensor.category == "parameter" else None
                base = incoming if view else None
                made = self.tensor(tensor.shape, "gradient", parameter=owner, view_of=base)
                self.gradients[tensor.id] = made
                outputs.append(made)
            nbytes = _moved(inputs) + _moved(outputs) + extra
            self.call(
                name,
                forward.layer,
                inputs,
                outputs,
                flops=flops,
                phase="backward",
                forward=forward,
                view=view,
                nbytes=nbytes,
            )

        self.tape(run)

    def tape(self, run: Callable[[], None]) -> None:
        """Put on the tape something of its own kind."""
        self._tape.append(run)

    def pass_on(self, result: Tensor, *inputs: Tensor) -> None:
        """Put on the tape that a gradient goes to each input as it is: an addition's."""

        def run() -> None:
            incoming = self.gradients.pop(result.id)
            for tensor in inputs:
                if tensor.id in self.gradients:
                    raise ValueError("an addition's input already has a gradient")
                self.gradients[tensor.id] = incoming

        self.tape(run)

    def backward(self, loss: Operator) -> None:
        """Run the tape backward."""
        seed = self.tensor((), "gradient")
        self.call("aten::ones_like", loss.layer, loss.outputs[:1], [seed], phase="backward")
        self.gradients[loss.outputs[0].id] = seed
        for run in reversed(self._tape):
            run()

    def sgd(self) -> None:
        """Update by stochastic gradient descent with momentum, as ``torch.optim.SGD(foreach=True)`` does."""
        momenta = self._states()
        self._for_each("_foreach_mul_", momenta)
        self._for_each("_foreach_add_", momenta, self._parameter_gradients())
        self._for_each("_foreach_add_", self.parameters, momenta)

    def adamw(self) -> None:
        """Update as ``torch.optim.AdamW(foreach=True)`` does."""
        means, squares, gradients = self._states(), self._states(), self._parameter_gradients()
        self._for_each("_foreach_mul_", self.parameters)
        self._for_each("_foreach_lerp_", means, gradients)
        self._for_each("_foreach_mul_", squares)
        self._for_each("_foreach_addcmul_", squares, gradients)
        roots = [self.tensor(one.shape, "temporary") for one in self.parameters]
        self.call("aten::_foreach_sqrt", "optimizer", squares, roots, phase="optimizer")
        self._for_each("_foreach_div_", roots)
        self._for_each("_foreach_add_", roots)
        self._for_each("_foreach_addcdiv_", self.parameters, means, roots)

    def trace(self, model: str, batch_size: int) -> Trace:
        """Return the finished trace."""
        return Trace(
            tuple(self.operators), batch_size, model, self.roofline.gpu, self.roofline.description, source="examples"
        )

    def _for_each(self, name: str, changed: Sequence[Tensor], *others: Sequence[Tensor]) -> None:
        inputs = [*changed, *(tensor for row in others for tensor in row)]
        flops = float(sum(tensor.numel for tensor in changed)) * (1 + len(others))
        self.call(f"aten::{name}", "optimizer", inputs, changed, flops=flops, phase="optimizer")

    def _states(self) -> list[Tensor]:
        return [self.tensor(one.shape, "optimizer_state", parameter=one) for one in self.parameters]

    def _parameter_gradients(self) -> list[Tensor]:
        return [self.gradients[one.id] for one in self.parameters]


def _moved(tensors: Sequence[Tensor]) -> float:
    return float(math.fsum(tensor.nbytes for tensor in {tensor.id: tensor for tensor in tensors}.values()))
