"""What an operator's time depends on: its FLOPs and the bytes that it reads and writes, from the shapes of its tensors.

FLOPs count a multiply-add as two: 2mnk for a product; 2 * N * Cout * Hout * Wout * (Cin / groups) * kh * kw for a
convolution, and the same again for each gradient; attention is its two products, two and a half times in backward,
which recomputes the scores (Dao et al. 2022). Everything else counts one a tensor element; a for-each operator, which does
the same to each tensor of a list, one an element of all that it writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from triosim.trace import Operator, Tensor

CONVOLUTIONS = frozenset(
    f"{prefix}{name}"
    for prefix in ("", "cudnn_", "miopen_", "mkldnn_", "thnn_", "slow_")
    for name in ("conv1d", "conv2d", "conv3d", "convolution")
)
TRANSPOSED_CONVOLUTIONS = frozenset(f"conv_transpose{n}d" for n in (1, 2, 3))
PRODUCTS = frozenset(("linear", "mm", "addmm", "bmm", "baddbmm", "matmul"))
_BACKWARD_ATTENTION = 2.5
_OVER_LISTS = ("foreach_", "amp_foreach_", "fused_adam", "fused_adagrad", "fused_sgd")


@lru_cache(maxsize=4096)
def base_name(name: str) -> str:
    """Return an operator's bare name: ``relu`` of ``aten::relu_``, ``AddmmBackward0`` of what the autograd engine calls."""
    return name.rpartition(" ")[2].rpartition("::")[2].removeprefix("aten.").partition(".")[0].strip("_")


def is_attention(name: str) -> bool:
    """Whether a bare name is fused attention."""
    return name.startswith("scaled_dot_product") or "flash_attention" in name or "efficient_attention" in name


def is_autograd_node(name: str) -> bool:
    """Whether a bare name is a node of the autograd graph (``AddmmBackward0``), which may hold several operators."""
    return name.rstrip("0123456789").endswith("Backward")


def flops(operator: Operator, forward: Operator | None = None) -> float:
    """Return an operator's FLOPs. ``forward`` is the operator that it differentiates, which knows the shapes best."""
    name = base_name(operator.name)
    if name in CONVOLUTIONS or name in TRANSPOSED_CONVOLUTIONS:
        return _convolution(operator, transposed=name in TRANSPOSED_CONVOLUTIONS)
    if name in PRODUCTS:
        return _product(operator)
    if is_autograd_node(name) or name.endswith("_backward"):
        return _backward(name, operator, forward)
    if is_attention(name):
        return _attention(operator)
    if name.startswith(_OVER_LISTS):
        return float(sum(tensor.numel for tensor in operator.outputs or operator.inputs))
    return float(max((tensor.numel for tensor in (*operator.outputs, *operator.inputs)), default=0))


def input_bytes(operator: Operator, forward: Operator | None = None) -> float:
    """Return the bytes that an operator reads."""
    return float(sum(tensor.nbytes for tensor in tensors(operator, forward)[0]))


def output_bytes(operator: Operator, forward: Operator | None = None) -> float:
    """Return the bytes that an operator writes; one that lists no output writes in place, as much as it reads."""
    inputs, outputs = tensors(operator, forward)
    return float(sum(tensor.nbytes for tensor in outputs or inputs))


def tensors(operator: Operator, forward: Operator | None = None) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Return what an operator reads and writes.

    Some traces list an autograd node with part of its tensors only. When the gradient that it starts from is missing,
    what it reads and writes follows from the forward operator: it reads the gradients of its outputs and its inputs,
    and writes the gradients of its inputs.
    """
    if forward is None or not is_autograd_node(base_name(operator.name)) or not forward.outputs:
        return operator.inputs, operator.outputs
    if any(tensor.shape == forward.outputs[0].shape for tensor in operator.inputs):
        return operator.inputs, operator.outputs
    return (*forward.outputs, *forward.inputs), [tensor for tensor in forward.inputs if tensor.category != "input"]


def factors(operator: Operator) -> tuple[Tensor, Tensor] | None:
    """Return the two tensors that a forward product, convolution or the like multiplies: data first, then the weight."""
    name = base_name(operator.name)
    inputs = operator.inputs
    if name in CONVOLUTIONS or name in TRANSPOSED_CONVOLUTIONS or name == "linear":
        inputs = inputs[:2]
    elif name in PRODUCTS:
        inputs = inputs[-2:] if name in ("addmm", "baddbmm") else inputs[:2]
    else:
        return None
    return (inputs[0], inputs[1]) if len(inputs) == 2 and all(tensor.shape for tensor in inputs) else None


def _product(operator: Operator) -> float:
    pair = factors(operator)
    if pair is None or not operator.outputs:
        return float(max((tensor.numel for tensor in (*operator.outputs, *operator.inputs)), default=0))
    return 2.0 * operator.outputs[0].numel * pair[0].shape[-1]


def _convolution(operator: Operator, *, transposed: bool) -> float:
    pair = factors(operator)
    if pair is None or not operator.outputs:
        return float(max((tensor.numel for tensor in (*operator.outputs, *operator.inputs)), default=0))
    data, weight = pair
    return 2.0 * (data if transposed else operator.outputs[0]).numel * math.prod(weight.shape[1:])


def _attention(operator: Operator) -> float:
    if len(operator.inputs) < 3 or any(len(tensor.shape) < 2 for tensor in operator.inputs[:3]):
        return float(sum(tensor.numel for tensor in operator.outputs))
    query, key, value = operator.inputs[:3]
    return 2.0 * math.prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _backward(name: str, operator: Operator, forward: Operator | None) -> float:
    if forward is not None:
        pair = factors(forward)
        if pair is not None:  # one product for each factor that has a gradient; what the network is fed has none
            return flops(forward) * sum(tensor.category != "input" for tensor in pair)
        return flops(forward) * (_BACKWARD_ATTENTION if is_attention(base_name(forward.name)) else 1.0)
    if "onvolution" in name and len(operator.inputs) >= 3:
        gradient, _, weight = operator.inputs[:3]
        computed = sum(tensor.numel > 0 and len(tensor.shape) > 1 for tensor in operator.outputs)
        return 2.0 * gradient.numel * math.prod(weight.shape[1:]) * max(computed, 1)
    return float(max((tensor.numel for tensor in (*operator.outputs, *operator.inputs)), default=0))
