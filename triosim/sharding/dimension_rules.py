"""What each kind of operator does to the dimensions of its tensors: one rule a family, as PyTorch documents the operators.

A rule takes an operator and the dimensions of its inputs, and returns those of its first outputs; what it leaves out, or all
where it returns None, is found by shape. Where a trace holds no attributes (``dim``, ``groups``), they are read off the
shapes, and of several possibilities the usual one is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, permutations

from triosim.operators.features import base_name, is_attention
from triosim.operators.products import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS
from triosim.sharding import product_rules
from triosim.sharding.dimensions import (
    Dim,
    Dims,
    added,
    cut,
    follows,
    fresh,
    grown,
    join,
    join_if,
    joined,
    name_heads,
    regrouped,
    scaled,
    size,
)
from triosim.trace import Operator

Shape = tuple[int, ...]
Rule = Callable[[Operator, Sequence[Dims]], list[Dims] | None]


def dims_of(operator: Operator, given: Sequence[Dims]) -> list[Dims]:
    """Return the dimensions of an operator's first outputs, as far as its semantics tell."""
    name = base_name(operator.name)
    rule = _attention if is_attention(name) else _RULES.get(name.removeprefix("foreach_"))
    found = rule(operator, given) if rule is not None else None
    if found is None and rule not in (_made, _embedding):
        found = _broadcast(operator, given)
    shapes = [tensor.shape for tensor in operator.outputs]
    fitting = []
    for dims, shape in zip(found or [], shapes, strict=False):
        if tuple(map(size, dims)) != shape:
            break
        fitting.append(dims)
    return fitting


def is_elementwise(name: str) -> bool:
    """Whether what an operator reads and makes has the same dimensions, as far as is known of it."""
    return not is_attention(name) and name.removeprefix("foreach_") not in _RULES


def transposed(dims: Dims, shape: Shape) -> Dims | None:
    """Return the dimensions in the order that gives a shape: the last two swapped, or the two after the first, or any."""
    count = len(dims)
    swaps = [(count - 2, count - 1), (1, 2), *combinations(range(count), 2)] if count > 1 else []
    for one, two in swaps:
        if two < count:
            order = list(range(count))
            order[one], order[two] = two, one
            if tuple(size(dims[place]) for place in order) == shape:
                return tuple(dims[place] for place in order)
    if count <= 6:
        for order in map(list, permutations(range(count))):
            if tuple(size(dims[place]) for place in order) == shape:
                return tuple(dims[place] for place in order)
    return None


def _shape(operator: Operator) -> Shape:
    return operator.outputs[0].shape if operator.outputs else ()


def _broadcast(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """Element by element; of several outputs, those of the first's shape."""
    shape = _shape(operator)
    fitting = [dims for dims in given if _broadcasts(tuple(map(size, dims)), shape)]
    if not fitting:
        return None
    found: Dims = ()
    for dims in fitting:
        found = joined(found, dims)
    if tuple(map(size, found)) != shape:
        return None
    same = [tensor.shape == shape for tensor in operator.outputs]
    return [found] * (same.index(False) if False in same else len(same))


def _broadcasts(shape: Shape, into: Shape) -> bool:
    tail = into[len(into) - len(shape) :]
    return len(shape) <= len(into) and all(one in (1, other) for one, other in zip(shape, tail, strict=True))


def _first(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """As the first input, each output of its shape."""
    return [given[0]] * len(operator.outputs) if given else None


def _copy(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """Into the first input, which has the dimensions of what is copied."""
    if len(given) > 1 and _broadcasts(tuple(map(size, given[1])), tuple(map(size, given[0]))):
        joined(given[0], given[1])
    return _first(operator, given)


def _view(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    found = regrouped(given[0], _shape(operator)) if given else None
    return None if found is None else [found]


def _transpose(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    if not given:
        return None
    dims, count, attributes = given[0], len(given[0]), operator.attributes
    order = list(range(count))
    if "dim0" in attributes and "dim1" in attributes and count:
        one, two = _place(attributes["dim0"], count), _place(attributes["dim1"], count)
        order[one], order[two] = two, one
    elif isinstance(attributes.get("dims"), list):
        order = [_place(place, count) for place in attributes["dims"]]
    else:
        found = transposed(dims, _shape(operator))
        return None if found is None else [found]
    return [tuple(dims[place] for place in order)] if sorted(order) == list(range(count)) else None


def _expand(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """Also what repeats: a dimension that grows counts something new, or several times what it did."""
    if not given:
        return None
    shape = _shape(operator)
    dims: Dims = ((),) * (len(shape) - len(given[0])) + given[0]
    found: list[Dim] = []
    for dim, length in zip(dims, shape, strict=False):
        before = size(dim)
        if before == length:
            found.append(dim)
        elif before and length % before == 0:
            times = fresh(length // before)[0]
            inner = base_name(operator.name) == "repeat_interleave"
            found.append((*dim, *times) if inner else (*times, *dim))
        else:
            return None
    return [tuple(found)]


def _convolution(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """Samples as in the data, channels as the weight's filters, positions of its own."""
    if len(given) < 2 or len(given[0]) != len(given[1]):
        return None
    data, weight, shape = given[0], given[1], _shape(operator)
    transposes = base_name(operator.name) in TRANSPOSED_CONVOLUTIONS or bool(operator.attributes.get("transposed"))
    channels = weight[1 if transposes else 0]
    if size(channels) != shape[1]:
        channels = (*fresh(shape[1] // size(channels))[0], *channels) if shape[1] % size(channels) == 0 else ()
    else:
        join_if(data[1], weight[0 if transposes else 1])
    for bias in given[2:3]:
        if len(bias) == 1:
            join_if(bias[0], channels)
    return [(data[0], channels, *_spatial(data[2:], shape[2:]))]


def _spatial(dims: Dims, shape: Shape) -> Dims:
    """Positions after a convolution or pooling: those of the data where their number stays."""
    return tuple(
        dim if size(dim) == length else _shifted(dim, length) for dim, length in zip(dims, shape, strict=False)
    )


def _shifted(dim: Dim, length: int) -> Dim:
    return grown(dim, length) if follows(dim, "sequence") else fresh(length)[0]


def _pool(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """Pooling, up-sampling and padding: each dimension as it was, or another number of positions."""
    shape = _shape(operator)
    if not given or len(given[0]) != len(shape):
        return None
    if "pad" in operator.name and "pool" not in operator.name:
        found = tuple(grown(dim, length) for dim, length in zip(given[0], shape, strict=True))
    else:
        found = (*given[0][: max(len(shape) - 2, 1)], *given[0][max(len(shape) - 2, 1) :])
        found = tuple(
            dim if size(dim) == length else fresh(length)[0] for dim, length in zip(found, shape, strict=True)
        )
    return [found] * len(operator.outputs)


def _norm(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """The data's, and the statistics: of channels (batch norm), of groups, or of all but the last dimensions."""
    if not given:
        return None
    name, data = base_name(operator.name), given[0]
    found = [data]
    for tensor in operator.outputs[1:]:
        if "batch_norm" in name and len(data) > 1 and tensor.shape == (size(data[1]),):
            found.append((data[1],))
        elif "group_norm" in name and len(tensor.shape) == 2 and tensor.shape[0] == size(data[0]):
            found.append((data[0], *fresh(tensor.shape[1])))
        elif len(tensor.shape) == len(data):
            pairs = zip(data, tensor.shape, strict=True)
            found.append(tuple(dim if size(dim) == length else fresh(length)[0] for dim, length in pairs))
        else:
            break
    for dims in given[1:]:  # weights and biases, running statistics
        if len(dims) == 1 and len(data) > 1 and ("batch_norm" in name or "group_norm" in name):
            if size(dims[0]) == size(data[1]):
                join(dims[0], data[1])
        elif 0 < len(dims) <= len(data) and tuple(map(size, dims)) == tuple(map(size, data[-len(dims) :])):
            joined(data, dims)
    return found


def _embedding(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    if len(given) < 2 or len(given[0]) != 2:
        return None
    folded = regrouped(given[1], _shape(operator)[:-1])
    return None if folded is None else [(*folded, given[0][1])]


def _cut(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """Slices, chunks: each dimension that an output has less of is cut."""
    if not given:
        return None
    found = []
    for tensor in operator.outputs:
        if len(tensor.shape) != len(given[0]):
            break
        found.append(tuple(cut(dim, length) for dim, length in zip(given[0], tensor.shape, strict=True)))
    return found


def _select(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """One of a dimension, which goes (``select``, ``unbind``)."""
    if not given or not given[0]:
        return None
    dims, shape = given[0], _shape(operator)
    places = [_place(operator.attributes["dim"], len(dims))] if "dim" in operator.attributes else range(len(dims))
    for place in sorted(places, key=lambda one: follows(dims[one], "batch")):
        rest = (*dims[:place], *dims[place + 1 :])
        if tuple(map(size, rest)) == shape:
            return [rest] * len(operator.outputs)
    return None


def _cat(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    shape = _shape(operator)
    if not given or any(len(dims) != len(shape) for dims in given):
        return None
    found: list[Dim] = []
    for place, length in enumerate(shape):
        rows = [dims[place] for dims in given]
        along = operator.attributes.get("dim")
        if (along is None or _place(along, len(shape)) == place) and sum(map(size, rows)) == length:
            found.append(added(rows))
        else:
            for row in rows[1:]:
                if size(row) == size(rows[0]):
                    join(rows[0], row)
            found.append(rows[0])
    return [tuple(found)]


def _stack(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    shape, count = _shape(operator), len(given)
    if not given:
        return None
    dims = given[0]
    for other in given[1:]:
        dims = joined(dims, other) if len(other) == len(dims) else dims
    dim = operator.attributes.get("dim")
    places = [_place(dim, len(shape))] if dim is not None else range(len(shape))
    for place in places:
        found = (*dims[:place], *fresh(count), *dims[place:])
        if tuple(map(size, found)) == shape:
            return [found]
    return None


def _reduction(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    if not given:
        return None
    dims, shape = given[0], _shape(operator)
    count = len(dims)
    along = operator.attributes.get("dim", operator.attributes.get("dims"))
    candidates: Sequence[Sequence[int]]
    if isinstance(along, (int, list)) and not isinstance(along, bool):
        places = along if isinstance(along, list) else [along]
        candidates = [[_place(place, count) for place in places] or range(count)]
    else:
        lost = range(count + 1 if count < 7 else 0)
        candidates = [gone for number in lost for gone in combinations(reversed(range(count)), number)]
    for gone in candidates:
        for kept in (True, False):
            found = tuple(() if place in gone else dim for place, dim in enumerate(dims) if kept or place not in gone)
            if tuple(map(size, found)) == shape:
                return [found] * len(operator.outputs)
    return None


def _attention(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """(batch, heads, queries, features of a value), with the logarithms of the sums; a mask is (..., queries, keys)."""
    if len(given) < 3 or any(len(dims) < 3 for dims in given[:3]):
        return None
    query, key, value = given[:3]
    join_if(query[0], key[0])
    join_if(key[-2], value[-2])
    join_if(query[-1], key[-1])
    place = -2 if heads_stand_last(operator) else -3
    for dims in (key, value) if len(query) > 3 else ():
        shared = size(query[place]) // max(
            size(dims[place]), 1
        )  # several queries' heads may have one of keys and values
        join_if(query[place], (*dims[place], *fresh(shared)[0]))
    for dims in (query, key, value):
        name_heads((dims[place],))
    scores = (*query[:-1], key[-2])
    for dims in given[3:4]:
        if dims and _broadcasts(tuple(map(size, dims)), tuple(map(size, scores))):
            joined(scores, dims)
    out = (*query[:-1], value[-1])
    shapes = [tensor.shape for tensor in operator.outputs[1:3]]
    heads, length, depth = tuple(axis for dim in query[:-2] for axis in dim), key[-2], query[-1]
    if shapes == [(size(heads), size(query[-2]), size(depth)), (size(heads), size(depth), size(length))]:
        # Written out as products ("math"): it saves its scaled queries and keys, and probabilities in several shapes.
        saved = [scores if len(t.shape) == len(scores) else (heads, *scores[-2:]) for t in operator.outputs[3:]]
        return [out, (heads, query[-2], depth), (heads, depth, length), *saved]
    found = []
    for tensor in operator.outputs:  # several of the result's shape, the logarithms of sums, the state of a generator
        like = next((dims for dims in (out, query[:-1]) if tuple(map(size, dims)) == tensor.shape), None)
        if like is None:
            break
        found.append(like)
    return found or [out]


def heads_stand_last(operator: Operator) -> bool:
    """Whether a fused attention takes (batch, length, heads, features), and not (batch, heads, length, features)."""
    return base_name(operator.name).startswith(("flash_attention", "efficient_attention"))


def _index(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """Advanced indexing: the indices' dimensions, broadcast, in place of the first ones of the data.

    Without indices it puts in order the rows that came in an exchange for those of the data, in proportion to them.
    """
    if len(given) < 2:
        shape = _shape(operator)
        return [(scaled(given[0][0], shape[0]), *given[0][1:])] if given and given[0] and shape else None
    found: Dims = ()
    for dims in given[1:]:
        found = joined(found, dims)
    whole = (*found, *given[0][len(given) - 1 :])
    return [whole] if tuple(map(size, whole)) == _shape(operator) else None


def _put(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """Advanced indexing in place: there are as many values as indices."""
    if len(given) > 2:
        for one, other in zip(given[1], given[-1], strict=False):
            join_if(one, other)
    return _first(operator, given)


def _gather(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    return [given[1]] if len(given) > 1 and tuple(map(size, given[1])) == _shape(operator) else None


def _made(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """What is made in a shape of its own; in that of what it is like, where it has it."""
    for dims in given:
        if dims and tuple(map(size, dims)) == _shape(operator):
            return [dims]
    return None


def _loss(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """Logits (samples, classes, ...) and targets (samples, ...) count the same samples; the rest is found by shape."""
    if len(given) > 1 and len(given[1]) == len(given[0]) - 1:
        join_if(given[0][0], given[1][0]) if given[1] else None
        for one, other in zip(given[0][2:], given[1][1:], strict=False):
            join_if(one, other)
        return [given[1]] if _shape(operator) == tuple(map(size, given[1])) else []
    return _broadcast(operator, given)


def _place(value: object, count: int) -> int:
    number = value if isinstance(value, int) else 0
    return number % count if count else 0


_FAMILIES: Mapping[Rule, str] = {
    _view: "view unsafe_view reshape flatten unflatten squeeze unsqueeze reshape_alias view_as ravel alias",
    _transpose: "transpose swapaxes swapdims t permute movedim numpy_T mT adjoint",
    _expand: "expand expand_as broadcast_to repeat tile repeat_interleave",
    **product_rules.RULES,
    _convolution: " ".join(CONVOLUTIONS | TRANSPOSED_CONVOLUTIONS),
    _pool: " ".join(
        f"{kind}pool{n}d{end}"
        for kind in ("max_", "avg_", "adaptive_avg_", "adaptive_max_")
        for n in (1, 2, 3)
        for end in ("", "_with_indices")
    )
    + " upsample_nearest1d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d upsample_nearest_exact2d interpolate"
    " mkldnn_max_pool2d lp_pool2d pad constant_pad_nd reflection_pad2d replication_pad2d",
    _norm: "batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm_impl_index layer_norm"
    " native_layer_norm group_norm native_group_norm rms_norm fused_rms_norm instance_norm",
    _embedding: "embedding",
    _cut: "slice narrow split split_with_sizes chunk tensor_split unsafe_split unsafe_chunk",
    _select: "select unbind",
    _cat: "cat concat concatenate",
    _stack: "stack",
    _reduction: "sum mean amax amin max min argmax argmin prod var std var_mean std_mean norm linalg_vector_norm"
    " logsumexp all any count_nonzero nansum median",
    _index: "index",
    _gather: "gather take_along_dim",
    _put: "index_put index_put_impl",
    _copy: "copy",
    _first: "index_add index_copy scatter scatter_add fill zero dropout native_dropout"
    " fused_dropout softmax safe_softmax log_softmax argsort sort roll flip tril triu cumsum cumprod",
    _made: "arange zeros ones full empty rand randn randint new_zeros new_ones new_full new_empty empty_strided"
    " new_empty_strided zeros_like ones_like full_like empty_like rand_like randn_like eye linspace tensor scalar_tensor"
    " lift_fresh",
    _loss: "cross_entropy_loss nll_loss nll_loss_nd nll_loss_forward nll_loss2d mse_loss l1_loss",
}
_RULES: Mapping[str, Rule] = {name: rule for rule, names in _FAMILIES.items() for name in names.split()}
