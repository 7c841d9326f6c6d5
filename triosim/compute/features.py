"""What an operator's time depends on: its FLOPs and the bytes that it reads and writes, from the shapes of its tensors.

FLOPs count a multiply-add as two, as PyTorch's flop counter (``torch.utils.flop_counter``) does: 2mnk for a product;
2 * N * Cout * Hout * Wout * (Cin / groups) * kh * kw for a convolution, and the same again for each gradient; attention is
its two products, two and a half times in backward, which recomputes the scores (Dao et al. 2022), whether it is causal or
not. Normalisation and other reductions count a few an element, what only moves data none.

Bytes are those of the tensors, each once, but: a view moves nothing; a table of embeddings is read where it is looked up; what
is overwritten is not read; statistics over samples need a pass of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from triosim.compute.operator_kinds import Kind, kind_of
from triosim.trace import Operator, Tensor
from triosim.trace_formats.autograd import forward_names

CONVOLUTIONS = frozenset(
    f"{prefix}{name}"
    for prefix in ("", "cudnn_", "miopen_", "mkldnn_", "thnn_", "slow_")
    for name in ("conv1d", "conv2d", "conv3d", "convolution")
)
TRANSPOSED_CONVOLUTIONS = frozenset(f"conv_transpose{n}d" for n in (1, 2, 3))
PRODUCTS = frozenset(("linear", "mm", "addmm", "bmm", "baddbmm", "matmul", "scaled_mm"))
_BACKWARD_ATTENTION = 2.5
_VECTOR_PRODUCTS = frozenset(("mv", "addmv", "dot", "vdot", "inner"))

#: FLOPs an element: of the largest tensor, by kind.
_PER_ELEMENT: Mapping[Kind, float] = {
    "norm": 8.0,  # mean, variance, normalised, scaled and shifted
    "softmax": 5.0,  # maximum, difference, exponential, sum, quotient
    "loss": 5.0,
    "pooling": 1.0,
    "elementwise": 1.0,
    "reduction": 1.0,
    "sort": 1.0,
    "optimizer": 3.0,  # of each of the four or five tensors: about 12 a parameter
    "recurrent": 1.0,
    "attention": 1.0,
    "embedding": 1.0,
    "index": 1.0,
}
#: Read from memory twice: once for the statistics over all samples, once to be normalised.
_TWO_PASSES = frozenset(("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "instance_norm"))
#: What is given is where to write, or only what the result is to be like.
_OVERWRITTEN = frozenset(("zero", "fill", "bernoulli", "normal", "uniform", "random", "exponential"))
#: What returns a view where it can, and a copy where it cannot.
_MAYBE_VIEWS = frozenset(("reshape", "flatten", "contiguous", "to", "type_as", "float", "half", "bfloat16", "to_copy"))


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


def kind(operator: Operator) -> Kind:
    """Return what kind of operator it is; a backward one is of the kind that it differentiates."""
    return kind_of(base_name(operator.name))


def unknown(operators: Iterable[Operator]) -> list[str]:
    """Return the names that nothing is known of, each once: they are charged for the bytes of their tensors alone."""
    names = {operator.name for operator in operators if operator.inputs or operator.outputs}
    return sorted(name for name in names if kind_of(base_name(name)) == "unknown")


def is_free(operator: Operator) -> bool:
    """Whether an operator moves nothing: it makes a view, or memory that nobody has written yet."""
    name = base_name(operator.name)
    of = kind_of(name)
    if name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"):
        return True
    if of not in ("view", "copy") or name.endswith("_copy") or operator.name.endswith("copy_"):
        return False
    given = {tensor.storage for tensor in operator.inputs}
    in_place = all(tensor.storage in given for tensor in operator.outputs)
    if is_autograd_node(name):
        return of == "view" and (in_place or not _grows(operator))
    return in_place if name in _MAYBE_VIEWS else of == "view"


def _grows(operator: Operator) -> bool:
    """Whether a view's gradient is another size than what it is made from: padded (a slice), or summed (an expansion)."""
    if not operator.inputs or not operator.outputs:
        return False
    return max(t.numel for t in operator.outputs) != max(t.numel for t in operator.inputs)


def flops(operator: Operator, forward: Operator | None = None) -> float:
    """Return an operator's FLOPs. ``forward`` is the operator that it differentiates, which knows the shapes best."""
    name = base_name(operator.name)
    if name in CONVOLUTIONS or name in TRANSPOSED_CONVOLUTIONS:
        transposed = name in TRANSPOSED_CONVOLUTIONS or bool(operator.attributes.get("transposed"))
        return _convolution(operator, transposed=transposed)
    if name in PRODUCTS or name in _VECTOR_PRODUCTS:
        return _product(operator)
    if name == "einsum":
        return _einsum(operator)
    if is_autograd_node(name) or name.endswith("_backward"):
        return _backward(name, operator, forward)
    if is_attention(name) or kind_of(name) == "attention":
        return _attention(operator, operator.inputs[:3])
    return _plain(operator)


def input_bytes(operator: Operator, forward: Operator | None = None) -> float:
    """Return the bytes that an operator reads."""
    if is_free(operator):
        return 0.0
    name = base_name(operator.name)
    read = tensors(operator, forward)[0]
    if name in _OVERWRITTEN or kind_of(name) == "creation":
        return 0.0
    if (
        name in ("embedding", "index_select", "gather", "index", "take_along_dim")
        and operator.outputs
        and len(read) > 1
    ):
        looked_up = operator.outputs[0].nbytes
        rest = read[1:]
        return float(min(read[0].nbytes, looked_up) + sum(tensor.nbytes for tensor in rest))
    if name == "copy" and len(read) > 1:
        read = read[1:]
    total = float(sum(tensor.nbytes for tensor in read))
    if name in _TWO_PASSES and read:
        total += read[0].nbytes
    return total


def output_bytes(operator: Operator, forward: Operator | None = None) -> float:
    """Return the bytes that an operator writes; one that lists no output writes in place, as much as it reads."""
    if is_free(operator):
        return 0.0
    inputs, outputs = tensors(operator, forward)
    return float(sum(tensor.nbytes for tensor in outputs or inputs))


def tensors(operator: Operator, forward: Operator | None = None) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Return what an operator reads and writes.

    Some traces list an autograd node with part of its tensors only. When the gradient that it starts from is missing,
    what it reads and writes follows from the forward operator: it reads the gradients of its outputs and its inputs,
    and writes the gradients of its inputs.
    """
    if forward is None or not forward.outputs or not _is_whole(base_name(operator.name), forward):
        return operator.inputs, operator.outputs
    if _has_gradient(operator, forward):
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


def _is_whole(name: str, forward: Operator) -> bool:
    """Whether an autograd node is all of an operator's backward, and not one of the parts of a composite one's."""
    if not is_autograd_node(name):
        return False
    known = base_name(forward.name)
    return kind_of(name) != "view" and (bool(forward_names(name, [known])) or kind_of(name) == kind_of(known))


def _has_gradient(operator: Operator, forward: Operator) -> bool:
    """Whether a backward operator lists what it starts from: it then lists all of its tensors."""
    return any(tensor.shape == forward.outputs[0].shape for tensor in operator.inputs) or (
        any(tensor.numel == forward.outputs[0].numel for tensor in operator.inputs) and len(operator.inputs) > 1
    )


def _largest(operator: Operator) -> float:
    return float(max((tensor.numel for tensor in (*operator.outputs, *operator.inputs)), default=0))


def _plain(operator: Operator) -> float:
    """So many an element of the largest tensor; of all for what takes lists; a pooling's window for each output."""
    name = base_name(operator.name)
    of = kind_of(name)
    if of == "optimizer" or name.startswith("foreach_"):
        return _PER_ELEMENT.get(of, 0.0) * sum(tensor.numel for tensor in operator.inputs or operator.outputs)
    if of == "pooling" and operator.inputs and operator.outputs and not is_autograd_node(name):
        window = operator.attributes.get("kernel_size")
        if isinstance(window, list) and window:
            spatial = len(operator.outputs[0].shape) - 2
            return float(operator.outputs[0].numel * math.prod(window if len(window) > 1 else window * spatial))
    return _PER_ELEMENT.get(of, 0.0) * _largest(operator)


def _product(operator: Operator) -> float:
    if base_name(operator.name) in _VECTOR_PRODUCTS:
        return 2.0 * max((tensor.numel for tensor in operator.inputs), default=0)
    pair = factors(operator)
    if pair is None or not operator.outputs:
        return _largest(operator)
    return 2.0 * operator.outputs[0].numel * pair[0].shape[-1]


def _einsum(operator: Operator) -> float:
    """Two for each combination of its letters; without its equation, as if it were one product of matrices."""
    left = str(operator.attributes.get("equation", "")).replace(" ", "").partition("->")[0].split(",")
    shapes = [tensor.shape for tensor in operator.inputs]
    if [len(term) for term in left] == [len(shape) for shape in shapes]:
        letters = {
            letter: length
            for term, shape in zip(left, shapes, strict=True)
            for letter, length in zip(term, shape, strict=True)
        }
        return 2.0 * math.prod(letters.values())
    numels = [tensor.numel for tensor in (*operator.inputs[:2], *operator.outputs[:1])]
    return 2.0 * math.sqrt(math.prod(numels)) if len(numels) == 3 else _largest(operator)


def _convolution(operator: Operator, *, transposed: bool) -> float:
    pair = factors(operator)
    if pair is None or not operator.outputs:
        return _largest(operator)
    data, weight = pair
    return 2.0 * (data if transposed else operator.outputs[0]).numel * math.prod(weight.shape[1:])


def _attention(operator: Operator, factors: Sequence[Tensor]) -> float:
    """Queries x keys and probabilities x values: (..., length, features); flash's own calls have the heads last but one."""
    if len(factors) < 3 or any(len(tensor.shape) < 2 for tensor in factors):
        return float(sum(tensor.numel for tensor in operator.outputs))
    query, key, value = factors
    name = base_name(operator.name)
    heads_last = len(key.shape) > 2 and name.startswith(("flash_attention", "efficient_attention"))
    length = key.shape[-3] if heads_last else key.shape[-2]
    return 2.0 * math.prod(query.shape[:-1]) * length * (query.shape[-1] + value.shape[-1])


def _backward(name: str, operator: Operator, forward: Operator | None) -> float:
    of = kind_of(name)
    if of in ("view", "copy", "creation"):
        return 0.0
    if forward is not None and (_is_whole(name, forward) or not is_autograd_node(name)):
        pair = factors(forward)
        if pair is not None:  # one product for each factor that has a gradient; what the network is fed has none
            return flops(forward) * _gradients(operator, forward, pair)
        return flops(forward) * (_BACKWARD_ATTENTION if is_attention(base_name(forward.name)) else 1.0)
    if of == "convolution" and len(operator.inputs) >= 3:
        return _convolution_gradients(operator)
    if of == "product":
        return _product_gradients(operator)
    if of == "attention" and len(operator.inputs) > 3:
        return _BACKWARD_ATTENTION * _attention(operator, operator.inputs[1:4])
    return _plain(operator)


def _gradients(operator: Operator, forward: Operator, pair: tuple[Tensor, Tensor]) -> int:
    """How many of the two factors' gradients a backward operator computes."""
    if operator.outputs and _has_gradient(operator, forward):
        sizes = [tensor.numel for tensor in pair]
        made = sum(tensor.numel in sizes and len(tensor.shape) > 1 for tensor in operator.outputs)
        if made:
            return min(made, 2)
    return sum(tensor.category != "input" for tensor in pair)


def _convolution_gradients(operator: Operator) -> float:
    gradient, data, weight = operator.inputs[:3]
    computed = sum(tensor.numel > 0 and len(tensor.shape) > 1 for tensor in operator.outputs)
    each = data if operator.attributes.get("transposed") else gradient
    return 2.0 * each.numel * math.prod(weight.shape[1:]) * max(computed, 1)


def _product_gradients(operator: Operator) -> float:
    """A part of a composite operator: (m, n) with what it was made of; each gradient costs 2mnk."""
    matrices = [tensor for tensor in operator.inputs if len(tensor.shape) > 1]
    made = [tensor for tensor in operator.outputs if len(tensor.shape) > 1]
    if len(matrices) < 2:
        return _largest(operator)
    gradient, *rest = matrices
    rows = gradient.numel // gradient.shape[-1] if gradient.shape[-1] else 0
    # One of the others is (..., m, k) or (..., k, n): the gradient's elements times k.
    first = next((t for t in rest if rows and t.numel % rows == 0 and t.shape[-2] == gradient.shape[-2]), None)
    depth = first.numel // rows if first is not None else rest[0].shape[-1]
    return 2.0 * gradient.numel * depth * max(len(made), 1)
