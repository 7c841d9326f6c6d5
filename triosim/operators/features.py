"""The features that an operator's time depends on: FLOPs, and bytes read and written, from the shapes of its tensors.

FLOPs count a multiply-add as two, as PyTorch's flop counter (``torch.utils.flop_counter``) does: 2mnk for a product;
2 * N * Cout * Hout * Wout * (Cin / groups) * kh * kw for a convolution, and the same again for each gradient; attention is
its two products, two and a half times in backward, which recomputes the scores (Dao et al. 2022), whether it is causal or
not. Normalisation and other reductions count a few an element, operators that only move data none.

Bytes are those of the tensors, each once, but: a view moves nothing; of a table of embeddings, only the rows that are looked up
are read; a tensor that is overwritten is not read; statistics over samples need a pass of their own, forward and backward;
``masked_fill`` copies and then fills the copy; an optimizer does not write the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from triosim.operators import products
from triosim.operators.kinds import Kind, kind_of
from triosim.trace import Operator, Tensor
from triosim.trace.autograd import forward_names

_BACKWARD_ATTENTION = 2.5
_BACKWARD_RECURRENT = 2.0

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
#: These read their data twice in training: once for the statistics over all samples, once to normalise it.
_TWO_PASSES = frozenset(("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "instance_norm"))
#: These do not read their input: they write to it, or take its shape and dtype.
_OVERWRITTEN = frozenset(("zero", "fill", "bernoulli", "normal", "uniform", "random", "exponential"))
#: These read the rows of their first tensor that the others point to.
_LOOK_UPS = frozenset(("embedding", "index_select", "gather", "index", "take_along_dim"))
#: These look up rows of tables and add some of them up; their backward kernels update those rows.
_POOLED_LOOK_UPS = frozenset(
    (
        "embedding_bag",
        "split_embedding_codegen_lookup_rowwise_adagrad_function",
        "split_embedding_backward_codegen_rowwise_adagrad_unweighted_exact_cuda",
    )
)
#: Autograd nodes that return the gradient that they are given, without a kernel.
_PASSED_ON = frozenset(("AddBackward", "CloneBackward"))
#: These write their results by rows and by columns.
_BOTH_LAYOUTS = frozenset(("cast_transpose",))
#: These return a view where they can, and a copy where they cannot.
_MAYBE_VIEWS = frozenset(("reshape", "flatten", "contiguous", "to", "type_as", "float", "half", "bfloat16", "to_copy"))


#: Kernels that a script wrote in Triton are called so, with their name.
TRITON = "triton::"


@lru_cache(maxsize=4096)
def base_name(name: str) -> str:
    """Return an operator's bare name: ``relu`` of ``aten::relu_``, ``AddmmBackward0`` of an autograd engine's call.

    That of a Triton kernel is whole, as the script named it: one called ``transpose`` is no view.
    """
    if name.startswith(TRITON):
        return name
    return name.rpartition(" ")[2].rpartition("::")[2].removeprefix("aten.").partition(".")[0].strip("_")


def is_pooled_look_up(operator: Operator) -> bool:
    """Whether an operator looks up rows of tables and adds some of them up, or updates these rows."""
    return base_name(operator.name) in _POOLED_LOOK_UPS


def _looked_up(operator: Operator) -> tuple[float, list[Tensor]]:
    """Return the bytes of the rows that are looked up, one for each index, and the tensors that are no tables."""
    tables = [one for one in operator.inputs if one.category in ("parameter", "optimizer_state")] or operator.inputs[:1]
    others = [one for one in operator.inputs if all(one is not table for table in tables)]
    indices = max((one.numel for one in others if one.dtype.startswith("int")), default=0)
    columns = [
        1 if one.category == "optimizer_state" else one.shape[-1] for one in tables
    ]  # a state has one number a row
    row = sum(one.nbytes / max(one.numel, 1) * width for one, width in zip(tables, columns, strict=True))
    return indices * row, others


def is_attention(name: str) -> bool:
    """Whether a bare name is fused attention."""
    return name.startswith("scaled_dot_product") or "flash_attention" in name or "efficient_attention" in name


def heads_dim(operator: Operator) -> int:
    """Return the dimension of heads in fused attention's queries, keys and values, counted from the end.

    Flash's and memory-efficient attention's own calls take (batch, length, heads, features), all others (batch, heads, length,
    features).
    """
    own = base_name(operator.name).startswith(("flash_attention", "efficient_attention"))
    return -2 if own else -3


def length_dim(operator: Operator) -> int:
    """Return the dimension of tokens in fused attention's queries, keys and values, counted from the end."""
    return -3 if heads_dim(operator) == -2 else -2


def is_autograd_node(name: str) -> bool:
    """Whether a bare name is a node of the autograd graph (``AddmmBackward0``), which may hold several operators."""
    return name.rstrip("0123456789").endswith("Backward")


def kind(operator: Operator) -> Kind:
    """Return an operator's kind; a backward operator is of the kind of its forward operator."""
    return kind_of(base_name(operator.name))


def unknown(operators: Iterable[Operator]) -> list[str]:
    """Return the names of unknown operators, each once: only the bytes of their tensors count."""
    names = {operator.name for operator in operators if operator.inputs or operator.outputs}
    return sorted(name for name in names if kind_of(base_name(name)) == "unknown")


def is_free(operator: Operator) -> bool:
    """Whether an operator moves no data: it makes a view, or allocates memory."""
    name = base_name(operator.name)
    of = kind_of(name)
    if not operator.outputs and name.rstrip("0123456789") in _PASSED_ON:
        return True
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
    """Whether a view's backward changes the size of the gradient: it pads it (a slice) or sums it (an expansion)."""
    if not operator.inputs or not operator.outputs:
        return False
    return max(t.numel for t in operator.outputs) != max(t.numel for t in operator.inputs)


def flops(operator: Operator, forward: Operator | None = None) -> float:
    """Return an operator's FLOPs. ``forward`` is the operator that it differentiates, whose shapes are complete."""
    name = base_name(operator.name)
    if is_autograd_node(name) or name.endswith("_backward"):
        return _backward(name, operator, forward)
    if is_attention(name) or kind_of(name) == "attention":
        return _attention(operator, operator.inputs[:3])
    of = kind_of(name)
    if of in ("product", "convolution"):
        found = products.flops(name, operator)
        return _largest(operator) if found is None else found
    if of == "recurrent" and "fused" not in name:  # a fused cell is what comes after the products
        found = products.recurrent_flops(operator)
        return _plain(operator) if found is None else found
    return _plain(operator)


def is_launched(operator: Operator) -> bool:
    """Whether the host launches an operator: views are no kernels, and one launch runs all kernels of a CUDA graph."""
    return operator.seconds > 0 and not operator.attributes.get("in_graph")


def input_bytes(operator: Operator, forward: Operator | None = None) -> float:
    """Return the bytes that an operator reads."""
    if is_free(operator):
        return 0.0
    name = base_name(operator.name)
    read = tensors(operator, forward)[0]
    if name in _OVERWRITTEN or kind_of(name) == "creation":
        return 0.0
    if name in _LOOK_UPS and operator.outputs and len(read) > 1:
        table, *rest = read
        return float(min(table.nbytes, operator.outputs[0].nbytes) + sum(tensor.nbytes for tensor in rest))
    if name in _POOLED_LOOK_UPS:
        rows, others = _looked_up(operator)
        return rows + sum(tensor.nbytes for tensor in others)
    if name == "copy" and len(read) > 1:
        read = read[1:]
    read = list({tensor.id: tensor for tensor in read}.values())  # a square reads its one factor once
    whole = name.replace("_", "").lower()
    if whole.startswith("nllloss") and len(read) > 1:  # one logarithm a sample, whatever the number of classes
        logarithms = max(read, key=lambda tensor: tensor.numel)
        samples = logarithms.numel // logarithms.shape[1] if len(logarithms.shape) > 1 and logarithms.shape[1] else 1
        picked = 0 if "backward" in whole else logarithms.nbytes * samples // max(logarithms.numel, 1)
        return float(sum(tensor.nbytes for tensor in read if tensor is not logarithms) + picked)
    total = float(sum(tensor.nbytes for tensor in read))
    statistics = name in _TWO_PASSES and operator.attributes.get("training") is not False
    if (statistics or _fills_a_copy(operator)) and read:
        total += read[0].nbytes
    elif "backward" in whole and any(norm in whole for norm in ("batchnorm", "instancenorm")):
        # Another pass over the gradient and the normalised data, which are the largest.
        total += sum(sorted((tensor.nbytes for tensor in read), reverse=True)[:2])
    return total


def output_bytes(operator: Operator, forward: Operator | None = None) -> float:
    """Return the bytes that an operator writes; one that lists no output writes in place, as much as it reads."""
    if is_free(operator):
        return 0.0
    inputs, outputs = tensors(operator, forward)
    written = outputs or inputs
    if is_pooled_look_up(operator) and any(tensor.category == "parameter" for tensor in written):
        return _looked_up(operator)[0]
    if kind_of(base_name(operator.name)) == "optimizer":  # which leaves the gradients as they are
        written = [tensor for tensor in written if tensor.category != "gradient"]
    twice = _fills_a_copy(operator) or base_name(operator.name) in _BOTH_LAYOUTS
    return float((2 if twice else 1) * sum(tensor.nbytes for tensor in written))


def _fills_a_copy(operator: Operator) -> bool:
    """Whether an operator is ``masked_fill`` out of place, which PyTorch runs as two kernels: ``clone``, ``masked_fill_``."""
    return base_name(operator.name) == "masked_fill" and not operator.name.endswith("_")


def tensors(operator: Operator, forward: Operator | None = None) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Return the tensors that an operator reads and writes.

    Some traces list an autograd node with part of its tensors only. If the gradient that it starts from is missing, the forward
    operator's tensors stand for them: it reads the gradients of the outputs, and the inputs, and writes the inputs' gradients.
    """
    if forward is None or not forward.outputs or not _is_whole(base_name(operator.name), forward):
        return operator.inputs, operator.outputs
    if _has_gradient(operator, forward):
        return operator.inputs, operator.outputs
    return (*forward.outputs, *forward.inputs), [tensor for tensor in forward.inputs if tensor.category != "input"]


def factors(operator: Operator) -> tuple[Tensor, Tensor] | None:
    """Return the two tensors that a forward product, convolution or the like multiplies: data first, then the weight."""
    return products.factors(base_name(operator.name), operator.inputs)


def gradients_made(operator: Operator, forward: Operator) -> tuple[bool, bool]:
    """Whether a backward operator gives the gradients of a product's or convolution's first and second factor."""
    name = base_name(operator.name)
    pair = factors(forward)
    if pair is None or kind_of(name) not in ("product", "convolution"):
        return False, False
    if not (_is_whole(name, forward) or name.endswith("_backward")):
        return False, False
    count = _gradients(operator, forward)
    if count != 1:
        return count == 2, count == 2
    made = [tensor for tensor in operator.outputs if len(tensor.shape) > 1]
    is_weight = pair[0].category == "input" or any(
        tensor.parameter is not None or tensor.numel == pair[1].numel != pair[0].numel for tensor in made
    )
    return not is_weight, is_weight


def _is_whole(name: str, forward: Operator) -> bool:
    """Whether an autograd node is an operator's whole backward, and not one of several nodes of a composite operator."""
    if not is_autograd_node(name):
        return False
    known = base_name(forward.name)
    if products.form_of(known) in ("chain", "einsum") and len(forward.inputs) > 2:
        return False  # a node for each product of two
    return kind_of(name) != "view" and (bool(forward_names(name, [known])) or kind_of(name) == kind_of(known))


def _has_gradient(operator: Operator, forward: Operator) -> bool:
    """Whether a backward operator lists the gradient that it starts from: it then lists all of its tensors."""
    return any(tensor.shape == forward.outputs[0].shape for tensor in operator.inputs) or (
        any(tensor.numel == forward.outputs[0].numel for tensor in operator.inputs) and len(operator.inputs) > 1
    )


def _largest(operator: Operator) -> float:
    return float(max((tensor.numel for tensor in (*operator.outputs, *operator.inputs)), default=0))


def _plain(operator: Operator) -> float:
    """Return the FLOPs per element of the largest tensor, of all tensors of a list, or of each window of a pooling."""
    name = base_name(operator.name)
    of = kind_of(name)
    if name in _POOLED_LOOK_UPS and operator.inputs:
        return _looked_up(operator)[0] / max(1.0, operator.inputs[0].nbytes / operator.inputs[0].numel)
    if of == "optimizer" or name.startswith("foreach_"):
        return _PER_ELEMENT.get(of, 0.0) * sum(tensor.numel for tensor in operator.inputs or operator.outputs)
    if of == "pooling" and operator.inputs and operator.outputs and not is_autograd_node(name):
        window = operator.attributes.get("kernel_size")
        if isinstance(window, list) and window:
            spatial = len(operator.outputs[0].shape) - 2
            return float(operator.outputs[0].numel * math.prod(window if len(window) > 1 else window * spatial))
    return _PER_ELEMENT.get(of, 0.0) * _largest(operator)


def _attention(operator: Operator, factors: Sequence[Tensor]) -> float:
    """Queries x keys and probabilities x values: (..., length, features); flash's own calls have the heads last but one."""
    if len(factors) < 3 or any(len(tensor.shape) < 2 for tensor in factors):
        return float(sum(tensor.numel for tensor in operator.outputs))
    query, key, value = factors
    length = key.shape[length_dim(operator) if len(key.shape) > 2 else -2]
    return 2.0 * math.prod(query.shape[:-1]) * length * (query.shape[-1] + value.shape[-1])


def _backward(name: str, operator: Operator, forward: Operator | None) -> float:
    of = kind_of(name)
    if of in ("view", "copy", "creation"):
        return 0.0
    if forward is not None and (_is_whole(name, forward) or not is_autograd_node(name)):
        return flops(forward) * _gradients(operator, forward)
    if of == "convolution" and len(operator.inputs) >= 3:
        return _convolution_gradients(operator)
    if of == "product":
        return _product_gradients(operator)
    if of == "attention" and len(operator.inputs) > 3:
        return _BACKWARD_ATTENTION * _attention(operator, operator.inputs[1:4])
    return _plain(operator)


def _gradients(operator: Operator, forward: Operator) -> float:
    """Return the multiple of the forward operator's FLOPs: 1 for each factor, except the network's input."""
    name = base_name(forward.name)
    of = kind_of(name)
    if of == "recurrent":
        return _BACKWARD_RECURRENT
    if of not in ("product", "convolution"):
        return _BACKWARD_ATTENTION if is_attention(name) else 1.0
    given = products.operands(name, forward.inputs)
    if operator.outputs and _has_gradient(operator, forward):
        sizes = [tensor.numel for tensor in given]
        made = sum(tensor.numel in sizes and len(tensor.shape) > 1 for tensor in operator.outputs)
        if made:
            return min(made, len(given))
    return sum(tensor.category != "input" for tensor in given)


def _convolution_gradients(operator: Operator) -> float:
    gradient, data, weight = operator.inputs[:3]
    computed = sum(tensor.numel > 0 and len(tensor.shape) > 1 for tensor in operator.outputs)
    each = data if operator.attributes.get("transposed") else gradient
    return 2.0 * each.numel * math.prod(weight.shape[1:]) * max(computed, 1)


def _product_gradients(operator: Operator) -> float:
    """The FLOPs of a node of a composite operator: from (m, n) and its factors; each gradient costs 2mnk."""
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
