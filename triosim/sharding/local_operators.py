"""Operators that treat what is divided separately: between two layers of a pair each rank does these with its own share.

Most do so in all dimensions but some: a softmax in all but the one along which it adds up, a norm in all but the last ones.
"""

from __future__ import annotations

from triosim.operators.features import base_name, is_attention
from triosim.operators.products import PRODUCTS
from triosim.sharding.axes import Marks
from triosim.sharding.dataflow import is_view
from triosim.sharding.dimension_rules import heads_stand_last
from triosim.trace import Operator, Tensor

_POOLINGS = frozenset(
    f"{kind}_pool{n}d{end}"
    for kind in ("max", "avg", "adaptive_avg", "adaptive_max")
    for n in (1, 2, 3)
    for end in ("", "_with_indices")
)
_CHANNEL_NORMS = frozenset(
    (
        "batch_norm",
        "native_batch_norm",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "batch_norm_impl_index",
        "instance_norm",
    )
)
_LAST_NORMS = frozenset(("layer_norm", "native_layer_norm", "rms_norm", "fused_rms_norm"))
_ALONG = frozenset(("softmax", "safe_softmax", "log_softmax", "cumsum", "cumprod", "sort", "argsort", "flip", "roll"))

_OVER_ROWS = _LAST_NORMS | _ALONG | frozenset(("sum", "mean", "amax", "amin"))

#: Operators that treat what is divided separately, or do so in all dimensions but some, which ``mixes`` looks at.
_LOCAL = (
    _POOLINGS
    | _CHANNEL_NORMS
    | _LAST_NORMS
    | _ALONG
    | frozenset(
        (
            *(
                "add",
                "sub",
                "rsub",
                "mul",
                "div",
                "neg",
                "pow",
                "exp",
                "abs",
                "clamp",
                "threshold",
                "maximum",
                "minimum",
            ),
            *("relu", "relu6", "leaky_relu", "prelu", "elu", "gelu", "silu", "mish", "tanh", "sigmoid", "softplus"),
            *("hardtanh", "hardswish", "hardsigmoid", "dropout", "native_dropout", "fused_dropout", "feature_dropout"),
            *(
                "sqrt",
                "rsqrt",
                "square",
                "reciprocal",
                "erf",
                "log",
                "sin",
                "cos",
                "mean",
                "sum",
                "amax",
                "amin",
                "var",
            ),
            *("swiglu", "geglu", "softcap", "rotary_embedding", "bias_gelu", "bias_dropout_add", "chain"),
            *("masked_fill", "where", "tril", "triu", "addcmul", "addcdiv", "lerp"),
            *("clone", "contiguous", "to", "to_copy", "copy", "reshape", "flatten", "view", "unsafe_view", "alias"),
            *("cat", "stack", "repeat_interleave", "expand", "repeat", "select", "unbind", "slice", "narrow", "split"),
            *("split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk", "pad", "constant_pad_nd"),
            "new_empty",
            *("upsample_nearest2d", "upsample_bilinear2d"),
        )
    )
)


def is_local(operator: Operator) -> bool:
    """Whether an operator may treat what is divided separately."""
    name = base_name(operator.name)
    if name in PRODUCTS:
        return not any(tensor.category == "parameter" for tensor in operator.inputs)
    return is_view(operator) or is_attention(name) or name in _LOCAL


def mixes(operator: Operator, marks: Marks) -> bool:
    """Whether an operator adds up, or normalises, over what is divided."""
    if not any(tensor.numel for tensor in operator.outputs):
        return False
    name = base_name(operator.name)
    made = operator.outputs if name == "chain" else operator.outputs[:1]  # a kernel may also write what it needs itself
    if not any(tensor.id in marks for tensor in made):
        return True
    data = operator.inputs[0]
    count, mark = len(data.shape), marks.get(data.id)
    if name == "chain":
        return _adds_up_rows(operator) and any(_is_innermost(tensor, marks) for tensor in (*operator.inputs, *made))
    if is_attention(name):
        apart = (0, count - 2) if heads_stand_last(operator) else range(count - 2)
        place = apart[1] if isinstance(apart, tuple) else count - 3
        single = [len(t.shape) > 3 and t.shape[place] == 1 and t.id not in marks for t in operator.inputs[:3]]
        found = [marks.get(tensor.id) for tensor, alone in zip(operator.inputs[:3], single, strict=True) if not alone]
        return any(one is None or one.dim not in apart for one in found)
    if mark is None:
        return False
    if name in _POOLINGS:
        return mark.dim > 1
    if name in _CHANNEL_NORMS:
        return mark.dim != 1
    if name in _LAST_NORMS:
        sizes = operator.attributes.get("normalized_shape")
        weights = [len(t.shape) for t in operator.inputs if t.category == "parameter"]
        return mark.dim >= count - (len(sizes) if isinstance(sizes, list) else max(weights, default=1))
    if name in _ALONG:
        dim = operator.attributes.get("dim", operator.attributes.get("dims", -1))
        return mark.dim in [one % count for one in (dim if isinstance(dim, list) else [dim])]
    return False


def _adds_up_rows(operator: Operator) -> bool:
    """Whether a compiled kernel has a norm, a softmax or a sum in it, all of which are over the last dimension."""
    return not _OVER_ROWS.isdisjoint(operator.attributes.get("operators", ()))


def _is_innermost(tensor: Tensor, marks: Marks) -> bool:
    """Whether the numbers of a row that follow each other are divided (and not only whole heads of them)."""
    mark = marks.get(tensor.id)
    return mark is not None and mark.dim == len(tensor.shape) - 1 and mark.outer * mark.size == tensor.shape[-1]


def is_scale(operator: Operator) -> bool:
    """Whether an operator finds the largest of all numbers: a rank finds that of its own, and scales by it."""
    names = operator.attributes.get("operators", [base_name(operator.name)])
    return names[-1] == "amax" and not any(tensor.shape for tensor in operator.outputs)


def heads_of(operator: Operator) -> int:
    """The heads of what attention multiplies; 0 of any other operator."""
    name = base_name(operator.name)
    tensors = operator.inputs[:3] if is_attention(name) else operator.outputs[:1] if name in PRODUCTS else ()
    return min((tensor.shape[-3] if len(tensor.shape) >= 3 else 1 for tensor in tensors), default=0)
