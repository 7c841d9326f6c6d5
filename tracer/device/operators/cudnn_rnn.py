"""LSTM, GRU and plain RNN as a GPU runs them: one cuDNN operator for all layers, directions and time steps.

PyTorch uses it for the dtypes that ``cudnn_is_acceptable`` names, and for bfloat16 from Ampere on
(``aten/src/ATen/native/RNN.cpp``); else, as with ``torch.backends.cudnn.enabled = False``, an operator for each time step.
Under autocast data and weights are cast first (``aten/src/ATen/cudnn/AutocastRNN.cpp``).

What cuDNN reserves for the backward pass is not documented. It is assumed to be what the gradients need of each step: the
gates, the cell state of an LSTM, the reset part of a GRU's candidate, and the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.function import once_differentiable

from triosim.tracer.device.operators.dtype_checks import one_dtype
from triosim.tracer.patches import Patch, Patches

if TYPE_CHECKING:
    from triosim.tracer.device.dispatch_mode import DeviceMode

#: Elements that are reserved for each feature of each step, by kind of layer.
_RESERVED = {"lstm": 6, "gru": 5, "rnn_tanh": 1, "rnn_relu": 1}
_BFLOAT16_FROM = (8, 0)
_ALWAYS = (torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class _RnnCall:
    """A call of a recurrent layer. Shapes: data is (length, samples, features), samples first with ``batch_first``, or
    (steps of all samples, features) where it is ``packed``; states are (layers x directions, samples, features).
    """

    kind: str
    data: Any
    states: tuple[Any, ...]  # hidden, and an LSTM's cell
    weights: tuple[Any, ...]
    directions: int
    trains: bool
    batch_first: bool
    packed: bool

    @property
    def tensors(self) -> tuple[Any, ...]:
        """All tensors that it reads, in the order of ``aten::_cudnn_rnn``."""
        return (self.data, *self.weights, *self.states)

    def cast(self, dtype: torch.dtype) -> _RnnCall:
        """Return it with tensors of another dtype."""
        return self.of([one.to(dtype) for one in self.tensors])

    def of(self, tensors: Sequence[Any]) -> _RnnCall:
        """Return it with other tensors, in the same order."""
        end = 1 + len(self.weights)
        return replace(self, data=tensors[0], weights=tuple(tensors[1:end]), states=tuple(tensors[end:]))

    def results(self) -> tuple[Any, ...]:
        """Return fake tensors of the output, the last states, and what is reserved for the backward pass."""
        data, hidden = self.data, self.states[0]
        swapped = self.batch_first and not self.packed
        steps = data.shape[:-1][::-1] if swapped else data.shape[:-1]
        output = data.new_empty((*steps, hidden.shape[-1] * self.directions))
        output = output.transpose(0, 1) if swapped else output
        cells = self.states[-1].numel() // self.states[-1].shape[1]  # features of all layers, in both directions
        kept = math.prod(steps) * cells * _RESERVED[self.kind] * data.element_size() if self.trains else 0
        return output, *(data.new_empty(one.shape) for one in self.states), data.new_empty((kept,), dtype=torch.uint8)


def install(patches: Patches, mode: DeviceMode) -> None:
    """Run recurrent layers on the fake device by cuDNN's operator, until the patches are undone."""
    run = _cudnn_rnn(mode)
    kernels: dict[str, Callable[..., Any]] = {}
    for kind in _RESERVED:
        operators = getattr(torch.ops.aten, kind)
        kernels[f"{kind}.input"] = _kernel(kind, operators.input, run, packed=False)
        kernels[f"{kind}.data"] = _kernel(kind, operators.data, run, packed=True)
    patches.register_kernels(kernels)
    aten = torch.ops.aten
    mode.add_shape_rules(
        {
            aten._pack_padded_sequence.default: _packed,
            aten._thnn_fused_gru_cell.default: _gru_cell,
            aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
        }
    )
    # A module asks this to flatten its weights into one buffer, for which it would need their addresses.
    patches.make([Patch(torch.backends.cudnn, "is_acceptable", lambda tensor: False)])


def _kernel(kind: str, plain: Any, run: Callable[[_RnnCall], Any], *, packed: bool) -> Callable[..., Any]:
    """Return a kernel for samples of one length, or for ``packed`` samples of different lengths."""

    def kernel(data: Any, *others: Any) -> Any:
        if not _is_acceptable(
            data
        ):  # PyTorch's decomposition, which is what the operator is on any device without cuDNN
            with _no_cudnn():
                return plain._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, data, *others)
        states, weights, _, _, _, trains, both, *batch_first = others[1:] if packed else others
        states = tuple(states) if isinstance(states, (list, tuple)) else (states,)
        return run(_RnnCall(kind, data, states, tuple(weights), 2 if both else 1, trains, any(batch_first), packed))

    return kernel


@contextmanager
def _no_cudnn() -> Iterator[None]:
    """Let PyTorch not ask for a real cuDNN, which a build with CUDA has."""
    enabled = torch.backends.cudnn.enabled
    torch._C._set_cudnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_cudnn_enabled(enabled)


def _packed(data: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
    """Return a fake tensor of all samples' steps, grouped by time step, and a real one of the batch size of each time step.

    The lengths are on the host, in decreasing order.
    """
    if hasattr(lengths, "fake_device"):
        return NotImplemented
    with torch._C._DisableTorchDispatch():
        each = [int(one) for one in lengths]
        sizes = torch.tensor([sum(length > time for length in each) for time in range(max(each, default=0))])
    return data.new_empty((sum(each), *data.shape[2:])), sizes


def _gru_cell(_: Any, __: Any, hidden: torch.Tensor, *___: Any, **____: Any) -> Any:
    """Return fake tensors of a GRU's next state, and of what one time step keeps (``aten/src/ATen/native/cuda/RNN.cu``)."""
    return hidden.new_empty(hidden.shape), hidden.new_empty((hidden.shape[0], _RESERVED["gru"] * hidden.shape[1]))


def _gru_cell_backward(gradient: torch.Tensor, _: Any, has_bias: bool) -> Any:
    """Return fake tensors of the gradients of both products, the state and, if there are any, the biases."""
    samples, features = gradient.shape
    products = [gradient.new_empty((samples, 3 * features)) for _ in range(2)]
    biases = [gradient.new_empty((3 * features,)) if has_bias else None for _ in range(2)]
    return *products, gradient.new_empty(gradient.shape), *biases


def _is_acceptable(data: torch.Tensor) -> bool:
    """Whether PyTorch uses cuDNN's operator; under autocast, for the dtype that the data is cast to."""
    dtype = torch.get_autocast_dtype("cuda") if _is_cast(data) else data.dtype
    known = dtype in _ALWAYS or (dtype == torch.bfloat16 and torch.cuda.get_device_capability() >= _BFLOAT16_FROM)
    return known and data.numel() > 0 and torch.backends.cudnn.enabled  # type: ignore[no-any-return]


def _without_none(values: Iterable[Any]) -> list[Any]:
    return [one for one in values if one is not None]


def _calls(tensors: Sequence[Any]) -> list[list[Any]]:
    """Return the tensors that those of ``torch.func``'s transforms stand for, of each call that a batched one stands for.

    PyTorch runs such a call of cuDNN's operator one after another.
    """
    functions: Any = torch._C._functorch
    levels = [-1 if one is None else functions.maybe_get_level(one) for one in tensors]
    highest = max(levels)
    if highest < 0:
        return [list(tensors)]
    inner = [
        functions.get_unwrapped(one) if level == highest else one for one, level in zip(tensors, levels, strict=True)
    ]
    batches = [
        functions.maybe_get_bdim(one) if level == highest else -1 for one, level in zip(tensors, levels, strict=True)
    ]
    sizes = {one.shape[dim] for one, dim in zip(inner, batches, strict=True) if dim >= 0}
    if not sizes:
        return _calls(inner)
    return [
        call
        for number in range(max(sizes))
        for call in _calls(
            [one.select(dim, number) if dim >= 0 else one for one, dim in zip(inner, batches, strict=True)]
        )
    ]


def _is_cast(data: torch.Tensor) -> bool:
    return torch.is_autocast_enabled("cuda") and data.is_floating_point() and data.dtype != torch.float64


def _cudnn_rnn(mode: DeviceMode) -> Callable[[_RnnCall], Any]:
    """Return a replacement that computes shapes and records one operator in the forward and one in the backward pass."""

    def record(name: str, given: Sequence[Any], made: Sequence[Any]) -> None:
        with mode.muted():
            calls = _calls((*given, *made))
        for call in calls:
            inputs, outputs = call[: len(given)], call[len(given) :]
            mode.recorder.operator(name, {}, _without_none(inputs), _without_none(outputs))

    class CudnnRnn(torch.autograd.Function):
        """All layers of a call. ``tensors`` are those of ``call``, passed apart so that autograd sees them."""

        @staticmethod
        def forward(call: _RnnCall, *tensors: torch.Tensor) -> Any:
            call = call.of(tensors)
            with mode.muted():
                *results, kept = call.results()
            made = (*results, kept) if kept.numel() else results
            record("aten::_cudnn_rnn", tensors, made)
            return (*results, kept)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
            ctx.mark_non_differentiable(output[-1])
            ctx.save_for_backward(*inputs[1:], output[0], output[-1])
            ctx.set_materialize_grads(False)

        @staticmethod
        @once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *gradients: Any) -> Any:
            saved = ctx.saved_tensors
            wanted = [
                tensor if needed else None for tensor, needed in zip(saved, ctx.needs_input_grad[1:], strict=False)
            ]
            with mode.muted():
                made = [None if one is None else one.new_empty(one.shape) for one in wanted]
            record("aten::_cudnn_rnn_backward", (*saved, *gradients), made)
            return None, *made

    def run(call: _RnnCall) -> Any:
        if _is_cast(call.data):
            dtype = torch.get_autocast_dtype("cuda")
            with torch.autocast("cuda", enabled=False):
                call = call.cast(dtype)
        one_dtype(call.kind, list(call.tensors))
        # Not the function's own ``apply``: that begins anew where ``torch.func``, which brought the call here, is at work.
        apply: Any = super(torch.autograd.Function, CudnnRnn).apply
        with enable_single_level_autograd_function():
            return apply(call, *call.tensors)[:-1]

    return run
