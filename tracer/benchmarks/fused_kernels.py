"""Calls of operators that PyTorch has no name for: kernels that libraries and compilers fuse, and FSDP's copies.

A described step holds no arithmetic of a fused kernel, only the tensors that it reads and writes. The way of these through
memory is what it takes, so the call is a compiled function that reads and writes the same: it adds up its inputs along the axes
that the trace names, or those of equal lengths. Permutations of experts' rows, gated units, casts and losses, which do not
follow their axes, are written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from triosim.sharding.kernel_patterns import axes_of_pattern
from triosim.trace import Operator, Tensor
from triosim.tracer.benchmarks.not_callable import NotCallable

#: Runs on the tensors of an operator: ``kernel(torch, operator, tensors)``.
Kernel = Callable[[Any, Operator, Sequence[Any]], Any]
_PREFIX = "fused::"
#: The ranks that FSDP's copies divide a unit between, and into how many parameters: neither changes the bytes.
_RANKS, _PARTS = 8, 2


def bind(torch: Any, operator: Operator, tensors: Sequence[Any]) -> Callable[[], Any] | None:
    """Return a function that does what such an operator does; None for operators that PyTorch has itself.

    Raises ``NotCallable`` where its tensors do not tell what it does, or nothing can be compiled here.
    """
    if copy := _COPIES.get(operator.name):
        return partial(copy, torch, operator, tensors)
    if not operator.name.startswith(_PREFIX):
        return None
    kernel = _KERNELS.get(operator.name.removeprefix(_PREFIX)) or _SumAlongAxes.of(operator)
    torch.compiler.reset()  # else a kernel's eighth shape would not be compiled any more
    compiled = torch.compile(lambda *given: kernel(torch, operator, given), dynamic=False, fullgraph=True)
    try:
        compiled(*tensors)
    except Exception as error:  # no compiler, or an operator that it does not know, in one of many classes
        raise NotCallable(f"cannot be compiled here: {' '.join(str(error).split())[:80]}") from None
    return partial(compiled, *tensors)


@dataclass(frozen=True, slots=True)
class _SumAlongAxes:
    """A kernel that adds up its inputs, broadcast along the axes that they lack, and sums over those that an output lacks."""

    names: tuple[str, ...]
    sizes: Mapping[str, int]
    axes: Sequence[Sequence[str]]

    @classmethod
    def of(cls, operator: Operator) -> _SumAlongAxes:
        """Return that of an operator. Raises ``NotCallable`` where the axes of its tensors are not known."""
        tensors = (*operator.inputs, *operator.outputs)
        shapes = [tensor.shape for tensor in tensors]
        pattern = operator.attributes.get("axes") or _by_lengths(tensors)
        found, sizes = axes_of_pattern(pattern, shapes)
        if len(found) != len(shapes) or any(len(terms) > 1 for dims in found for terms in dims):
            raise NotCallable("its axes do not say what it does")
        axes = [[name for (term,) in dims for name in term] for dims in found]
        if any(
            math.prod(sizes.get(name, 0) for name in of) != math.prod(shape)
            for of, shape in zip(axes, shapes, strict=True)
        ):
            raise NotCallable("its axes are not those of its tensors")
        return cls(tuple(dict.fromkeys(name for of in reversed(axes) for name in of)), sizes, axes)

    def __call__(self, torch: Any, operator: Operator, given: Sequence[Any]) -> Any:
        inputs, outputs = self.axes[: len(given)], self.axes[len(given) :]
        whole = sum(self._spread(tensor, axes).float() for tensor, axes in zip(given, inputs, strict=True))
        return [self._reduced(torch, whole, axes, out) for axes, out in zip(outputs, operator.outputs, strict=True)]

    def _spread(self, tensor: Any, axes: Sequence[str]) -> Any:
        """Return a tensor with a dimension for each axis of the kernel, of one entry where it lacks it."""
        order = sorted(range(len(axes)), key=lambda place: self.names.index(axes[place]))
        turned = tensor.reshape([self.sizes[name] for name in axes]).permute(order)
        return turned.reshape([self.sizes[name] if name in axes else 1 for name in self.names])

    def _reduced(self, torch: Any, whole: Any, axes: Sequence[str], out: Tensor) -> Any:
        kept = [name for name in self.names if name in axes]
        missing = [place for place, name in enumerate(self.names) if name not in axes]
        summed = whole.sum(missing) if missing else whole
        return summed.permute([kept.index(name) for name in axes]).reshape(out.shape).to(getattr(torch, out.dtype))


def _by_lengths(tensors: Sequence[Tensor]) -> str:
    """Return the axes of tensors that are broadcast to the largest. Raises ``NotCallable`` where they do not fit it."""
    largest = max(tensors, key=lambda tensor: tensor.numel).shape
    found = []
    for tensor in tensors:
        lengths = largest[len(largest) - len(tensor.shape) :] if tensor.shape else ()
        if len(tensor.shape) > len(largest) or any(
            n not in (1, one) for n, one in zip(tensor.shape, lengths, strict=True)
        ):
            raise NotCallable("its tensors differ in more than axes")
        first = len(largest) - len(tensor.shape)
        found.append(" ".join("1" if n == 1 else f"a{first + place}" for place, n in enumerate(tensor.shape)))
    return ", ".join(found[:-1]) + f" -> {found[-1]}"


def _split_with_sizes_copy(torch: Any, _: Operator, given: Sequence[Any]) -> Any:
    (buffer,) = given
    rows = buffer.view(1 if buffer.numel() % _RANKS else _RANKS, -1)
    first = rows.shape[1] // _PARTS
    return torch.split_with_sizes_copy(rows, [first, rows.shape[1] - first], dim=1)


def _chunk_cat(torch: Any, _: Operator, given: Sequence[Any]) -> Any:
    return torch._chunk_cat(given[0].tensor_split(_PARTS), dim=0, num_chunks=_RANKS)


def _rows_taken(rows: Any, places: Any) -> Any:
    return rows.index_select(0, places.long() % rows.shape[0])


def _permute(torch: Any, _: Operator, given: Sequence[Any]) -> Any:
    return _rows_taken(*given)


def _permute_backward(torch: Any, operator: Operator, given: Sequence[Any]) -> Any:
    tokens, width = operator.outputs[0].shape
    return _rows_taken(*given).view(tokens, -1, width).sum(1)


def _unpermute(torch: Any, _: Operator, given: Sequence[Any]) -> Any:
    rows, weights, places = given
    return (_rows_taken(rows, places).view(*weights.shape, -1) * weights[..., None]).sum(1).to(rows.dtype)


def _unpermute_backward(torch: Any, _: Operator, given: Sequence[Any]) -> Any:
    gradient, rows, weights, places = given
    back = _rows_taken(gradient, places)
    return (back * weights.reshape(-1, 1)).to(rows.dtype), (back * rows).sum(-1).view(weights.shape)


def _gated(torch: Any, _: Operator, given: Sequence[Any]) -> Any:
    gate, up = given[0].chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def _gated_backward(torch: Any, _: Operator, given: Sequence[Any]) -> Any:
    gradient, both = given
    gate, up = both.chunk(2, -1)
    share = torch.sigmoid(gate)
    return torch.cat((gradient * up * share, gradient * gate * share), -1)


def _cast_transpose(torch: Any, operator: Operator, given: Sequence[Any]) -> Any:
    narrow = given[0].to(getattr(torch, operator.outputs[0].dtype))
    return narrow, narrow.t().contiguous(), given[0].abs().amax()


def _cross_entropy(torch: Any, _: Operator, given: Sequence[Any]) -> Any:
    logits, labels = given
    sums = logits.float().logsumexp(-1)
    return (sums - logits.gather(-1, labels[:, None])[:, 0]).mean(), sums


def _cross_entropy_backward(torch: Any, _: Operator, given: Sequence[Any]) -> Any:
    gradient, logits, labels, sums = given
    return ((logits.float() - sums[:, None]).exp() * gradient / labels.shape[0]).to(logits.dtype)


_COPIES: Mapping[str, Kernel] = {"aten::split_with_sizes_copy": _split_with_sizes_copy, "aten::chunk_cat": _chunk_cat}
_KERNELS: Mapping[str, Kernel] = {
    "permute_tokens": _permute,
    "permute_tokens_backward": _permute_backward,
    "unpermute_tokens": _unpermute,
    "unpermute_tokens_backward": _unpermute_backward,
    **dict.fromkeys(("swiglu", "geglu"), _gated),
    **dict.fromkeys(("swiglu_backward", "geglu_backward"), _gated_backward),
    "cast_transpose": _cast_transpose,
    "cross_entropy_loss": _cross_entropy,
    "cross_entropy_loss_backward": _cross_entropy_backward,
}
