"""Propagates the logical axes of dimensions (batch, sequence, heads, a parameter's features) through all operators of a step.

It starts from the network's inputs and from the parameters, goes through the step in order, and gives every dimension of every
tensor its axes (``triosim.sharding.dimensions``) by what the operators do (``triosim.sharding.rules``). A size that merely
equals the batch size says nothing: the 128 channels of VGG belong to a parameter.

A backward operator computes the gradients of its forward operator's inputs, so its tensors have the dimensions of those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain

from triosim.operators.features import base_name, is_attention, is_autograd_node, length_dim
from triosim.operators.products import PRODUCTS
from triosim.sharding.dimensions import (
    AXIS_KINDS,
    AxisKind,
    Dim,
    Dims,
    LogicalAxis,
    axes_of,
    follows,
    guessed_view,
    new_dim,
    new_dims,
    reshaped,
    resized,
    shape_of,
    size,
)
from triosim.sharding.kernel_patterns import dims_by_pattern
from triosim.sharding.rules.table import is_elementwise, output_dims
from triosim.sharding.rules.views import transposed
from triosim.trace import Operator, Tensor
from triosim.trace.autograd import forward_names

_SECOND_FIRST = ("MmBackward", "BmmBackward")  # autograd computes the gradient of the second factor before the first's
_PRODUCTS = (*_SECOND_FIRST, "AddmmBackward")
_TRANSPOSES = ("TBackward", "TransposeBackward", "PermuteBackward")
_VIEWS = ("ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward", "SqueezeBackward", "UnsqueezeBackward")


class StepDimensions:
    """The dimensions of every tensor of a step. ``batch_size`` is the step's.

    For a part of a step (an operator and its backward operators), ``given`` are the dimensions of its inputs, by tensor id, and
    ``within`` is the whole step: axes that are joined elsewhere in the step are kept apart in the part, but where equal sizes
    leave open which dimension is which, the whole step tells.
    """

    def __init__(
        self,
        operators: Sequence[Operator],
        batch_size: int = 0,
        *,
        given: Mapping[int, Dims] | None = None,
        within: StepDimensions | None = None,
    ) -> None:
        self.operators = operators
        self._within = within
        self._met: dict[LogicalAxis, list[LogicalAxis]] = {}  # by axis of the whole step: this part's axes for it
        self.batch_size = batch_size
        self._by_id = {operator.id: operator for operator in operators}
        self._dims: dict[int, Dims] = {}  # by tensor
        self._storages: dict[int, Dims] = {}  # of each parameter's storage, as first seen
        self._latest: dict[int, Dims] = {}  # of the other storages, as last seen
        self._parameters: dict[int, Dims] = {}  # by the parameter's tensor id
        self._made = {
            number
            for op in operators
            for number in {t.id for t in op.outputs if op.inputs or t.category != "input"} - {t.id for t in op.inputs}
        }  # a random batch, or a copy from the host, is made of nothing and fed to the network: it is not among these
        self._taken: dict[tuple[int, int], int] = {}  # by forward operator and its input: gradients made so far
        if given is None:
            self._start_from_inputs()
        else:
            self._start_from(given)
        for operator in operators:
            if operator.phase == "forward":
                self._forward(operator)
            elif operator.phase == "backward":
                self._backward(operator)
        if given is None:
            self._name_unused_counts()

    def __getitem__(self, tensor: Tensor) -> Dims:
        """The dimensions of a tensor of the forward or backward pass."""
        return self._of(tensor)

    def follows(self, tensor: Tensor, kind: AxisKind) -> list[int]:
        """Return the dimensions of a tensor that change with the batch (or the sequence)."""
        return [index for index, dim in enumerate(self._of(tensor)) if follows(dim, kind)]

    def expands_to_heads(self, view: Tensor, source: Tensor) -> bool:
        """Whether a view expands a tensor without heads of attention to all heads."""
        if view.numel <= source.numel or self._heads(source) > 1:
            return False
        return view.numel == source.numel * self._heads(view)

    def _heads(self, tensor: Tensor) -> int:
        return math.prod(axis.size for dim in self[tensor] for axis in axes_of(dim) if axis.heads)

    @cached_property
    def has_batch(self) -> bool:
        """Whether any input of the network has the batch as a dimension."""
        return any(self.follows(tensor, "batch") for tensor in self._inputs())

    @cached_property
    def is_connected(self) -> bool:
        """Whether the batch reaches the end of the forward pass: the dataflow is not broken."""
        forward = [operator for operator in self.operators if operator.phase == "forward"]
        last = next((op for op in reversed(forward) if any(_sized(t) for t in op.inputs)), None)
        return self.has_batch and (last is None or any(self.follows(tensor, "batch") for tensor in last.inputs))

    @cached_property
    def lengths(self) -> list[int]:
        """The lengths of the sequences among the network's inputs."""
        axes = [axis.root for tensor in self._inputs() for dim in self._of(tensor) for axis in dim]
        return sorted({axis.size for axis in axes if axis.kind == "sequence"})

    def resized(self, tensor: Tensor, kind: AxisKind, old: int, new: int) -> tuple[int, ...]:
        """Return a tensor's shape when the batch (or the sequence) is ``new`` instead of ``old``."""

        def new_size(axis: LogicalAxis) -> int:
            return new if axis.kind == kind and axis.size == old else axis.size

        return tuple(resized(dim, new_size) for dim in self._of(tensor))

    def local_shape(self, tensor: Tensor, kind: AxisKind, ranks: int) -> tuple[int, ...]:
        """Return the shape of a rank's shard of a tensor, where every batch (or sequence) is sharded over ``ranks``."""

        def new_size(axis: LogicalAxis) -> int:
            return axis.size // ranks if axis.kind == kind else axis.size

        return tuple(resized(dim, new_size) for dim in self._of(tensor))

    # ---- where the step starts ------------------------------------------------------------------------------------

    def _inputs(self) -> Iterator[Tensor]:
        seen: set[int] = set()
        for operator in self.operators:
            for tensor in operator.inputs if operator.phase == "forward" else ():
                if tensor.category == "input" and tensor.id not in self._made and tensor.id not in seen:
                    seen.add(tensor.id)
                    yield tensor

    def _start_from_inputs(self) -> None:
        inputs = list(self._inputs())
        # A float vector is one number a sample or a table of frequencies: what it meets tells, if there are other inputs.
        clear = [tensor for tensor in inputs if len(tensor.shape) > 1 or not tensor.dtype.startswith("float")]
        for tensor in clear or inputs:
            self._set(tensor, self._input_dims(tensor))

    def _start_from(self, given: Mapping[int, Dims]) -> None:
        for operator in self.operators:
            for tensor in operator.inputs:
                dims = given.get(tensor.id)
                if dims is None or tensor.id in self._dims:
                    continue
                self._set(tensor, dims)
                if tensor.category == "parameter":
                    self._storages.setdefault(tensor.storage, dims)
                    self._parameters.setdefault(tensor.id, dims)

    def _input_dims(self, tensor: Tensor) -> Dims:
        """An input's dimensions: the batch by its size; token ids and (batch, length, features) also have a sequence."""
        shape = tensor.shape
        indices = [index for index, length in enumerate(shape[:2]) if length == self.batch_size]
        dims = list(new_dims(*shape))
        if indices:
            batch = indices[0]
            dims[batch] = (LogicalAxis(self.batch_size, "batch"),)
            whole = tensor.dtype.startswith(("int", "uint", "bool"))
            if (whole and len(shape) == 2) or (not whole and len(shape) == 3):
                dims[1 - batch] = (LogicalAxis(shape[1 - batch], "sequence"),) if shape[1 - batch] > 1 else ()
        elif shape and shape[0] and self.batch_size and shape[0] % self.batch_size == 0:
            dims[0] = (LogicalAxis(self.batch_size, "batch"), *new_dim(shape[0] // self.batch_size))
        return tuple(dims)

    def _name_unused_counts(self) -> None:
        """Call the batch what counts up to the batch size and met no other axis in the step.

        These are the samples numbered for a mask that ignores them, and positions that are the same for every sample.
        """
        for operator in self.operators:
            name = base_name(operator.name)
            repeated = name == "expand" and any(t.dtype.startswith("int") for t in operator.outputs)
            if operator.phase == "forward" and (name == "arange" or repeated):
                for axis in (axis.root for t in operator.outputs for dim in self._of(t) for axis in dim):
                    if axis.is_plain and axis.size == self.batch_size:
                        axis.join(LogicalAxis(axis.size, "batch"))

    def _of(self, tensor: Tensor) -> Dims:
        found = self._dims.get(tensor.id)
        if found is None:
            found = self._dims[tensor.id] = self._leaf(tensor)
        return found

    def _leaf(self, tensor: Tensor) -> Dims:
        """The dimensions of a tensor that no operator so far made: a parameter's own, those of a view, or unknown ones."""
        if tensor.category != "parameter":
            known = self._latest.get(tensor.storage)
            return (guessed_view(known, tensor.shape, _is_unmixed) if known is not None else None) or new_dims(
                *tensor.shape
            )
        known = self._storages.get(tensor.storage)
        if known is None:
            known = tuple(
                (LogicalAxis(length, owner=(tensor.id, index)),) if length > 1 else ()
                for index, length in enumerate(tensor.shape)
            )
            self._storages[tensor.storage] = known
            self._parameters[tensor.id] = known
        shape = tensor.shape
        if shape_of(known) == shape:
            # A square matrix under another id is the transpose: an unchanged view of a parameter has the parameter's id.
            turned = tensor.id not in self._parameters and len(shape) == 2 and shape[0] == shape[1]
            return known[::-1] if turned else known
        return guessed_view(known, shape) or new_dims(*shape)

    # ---- the operators ------------------------------------------------------------------------------------------

    def _kernel(self, operator: Operator) -> bool:
        """Propagate through a compiled kernel, whose attributes hold the axes of its tensors. Return whether it is one."""
        pattern = operator.attributes.get("axes")
        tensors = (*operator.inputs, *operator.outputs)
        if not isinstance(pattern, str):
            return False
        known = [None if self._is_unknown(tensor) else self._of(tensor) for tensor in tensors]
        found = dims_by_pattern(pattern, [tensor.shape for tensor in tensors], known)
        for tensor, dims in zip(tensors, found or (), strict=False):
            self._set(tensor, dims)
        return found is not None

    def _forward(self, operator: Operator) -> None:
        if self._kernel(operator):
            return
        if is_attention(base_name(operator.name)):
            self._find_attention_views(operator)
        given = [self._of(tensor) for tensor in operator.inputs]
        for tensor, dims in zip(operator.outputs, output_dims(operator, given), strict=False):
            self._set(tensor, dims)
        scores = [(*one[:-1], two[-2]) for one in given[:1] for two in given[1:2] if len(one) == len(two) > 2]
        self._guess_dims(operator.outputs, [*given, *scores])

    def _find_attention_views(self, operator: Operator) -> None:
        """Find views of queries, keys and values that no operator made, by the dimension in which attention has tokens."""
        index = length_dim(operator)
        for tensor in operator.inputs[:3]:
            known = self._latest.get(tensor.storage)
            if self._is_unknown(tensor) and known is not None and len(tensor.shape) > 3:
                found = guessed_view(known, tensor.shape, lambda dims: follows(dims[index], "sequence"))
                if found is not None:
                    self._dims[tensor.id] = found

    def _backward(self, operator: Operator) -> None:
        if self._kernel(operator):
            return
        forward = self._by_id.get(operator.forward) if operator.forward is not None else None
        name = base_name(operator.name)
        around = [self._of(t) for t in (*forward.outputs, *forward.inputs)] if forward is not None else []
        late = self._accumulated(operator, forward) if forward is not None else set()
        read = [t for t in operator.inputs if t.category != "parameter" and t.id not in self._made and t.id not in late]
        if forward is not None and name.startswith(_PRODUCTS):
            self._guess_dims([t for t in read if t is operator.inputs[0]], around)
            self._saved_factors(operator, forward)
        is_node = is_autograd_node(name) or name.endswith("_backward")
        if not is_node and is_elementwise(name):  # a sum of gradients, which several operators may have made
            self._copy_dims(read, [self._dims[t.id] for t in operator.inputs if t.id in self._dims])
        self._guess_dims(read, around)
        given = [new_dims(*tensor.shape) if tensor.id in late else self._of(tensor) for tensor in operator.inputs]
        if forward is None or not is_node:
            for tensor, dims in zip(operator.outputs, output_dims(operator, given), strict=False):
                self._set(tensor, dims)
        for tensor in operator.outputs:
            if tensor.id not in self._dims:
                found = self._gradient(operator, forward, tensor, given)
                if found is not None:
                    self._set(tensor, found)
        self._guess_dims(operator.outputs, [*given, *around])
        made = [self._of(tensor) for tensor in operator.outputs] if late else []
        self._guess_dims([tensor for tensor in operator.inputs if tensor.id in late], [*made, *around])

    def _accumulated(self, operator: Operator, forward: Operator) -> set[int]:
        """The gradients from elsewhere in the step that an autograd node accumulates its own into."""
        coming = [tensor for tensor in operator.inputs if tensor.category == "gradient"]
        starts = sum(bool(tensor.shape) for tensor in forward.outputs)
        found = {tensor.id for tensor in coming[max(starts, 1) :]}
        found |= {tensor.id for tensor in coming[1:]} & {tensor.id for tensor in operator.outputs}
        return {number for number in found if number not in self._dims and number not in self._made}

    def _saved_factors(self, operator: Operator, forward: Operator) -> None:
        """Find the factors that a product saved for its backward in shapes not met so far: (m, n) is (m, k) x (k, n)."""
        gradient, *saved = operator.inputs or forward.outputs[:1]
        rows = self._of(gradient)
        if base_name(operator.name).startswith("Addmm"):
            saved.reverse()
        if len(saved) == 1 and forward.inputs and self._is_unknown(saved[0]) and len(rows) == 2:
            depth = next((dims[-1] for t in forward.inputs if (dims := self._of(t))[-1:] and len(dims) > 1), ())
            self._set(saved[0], (rows[0], depth))
        if len(saved) == 2:
            first, second = saved
            if len(rows) != len(first.shape) or len(rows) != len(second.shape) or len(rows) < 2:
                return
            if self._is_unknown(first) and not self._is_unknown(second):
                self._set(first, (*rows[:-1], self._of(second)[-2]))
            elif self._is_unknown(second) and not self._is_unknown(first):
                self._set(second, (*rows[:-2], self._of(first)[-1], rows[-1]))

    def _is_unknown(self, tensor: Tensor) -> bool:
        return tensor.category != "parameter" and tensor.id not in self._dims

    def _set(self, tensor: Tensor, dims: Dims) -> None:
        if shape_of(dims) == tensor.shape and tensor.id not in self._dims:
            self._dims[tensor.id] = self._latest[tensor.storage] = dims
            for whole, axis in self._paired_axes(tensor, dims):
                self._met.setdefault(whole, []).append(axis)

    def _paired_axes(self, tensor: Tensor, dims: Dims) -> Iterator[tuple[LogicalAxis, LogicalAxis]]:
        """Yield the axes of a tensor in the whole step, each with its axis in this part."""
        for whole, part in zip(self._within[tensor], dims, strict=False) if self._within is not None else ():
            ones, others = axes_of(whole), axes_of(part)
            if [axis.size for axis in ones] == [axis.size for axis in others]:
                yield from zip(ones, others, strict=True)

    def _fits(self, tensor: Tensor, dims: Dims) -> bool:
        """Whether a tensor may have these dimensions: they agree with its dimensions in the whole step, as far as known."""
        if self._within is None:
            return True
        for whole, part in zip(self._within[tensor], dims, strict=False):
            if any(follows(whole, kind) != follows(part, kind) for kind in AXIS_KINDS):
                return False
        pairs = ((self._met.get(whole), axis.root) for whole, axis in self._paired_axes(tensor, dims))
        return all(met is None or axis in {one.root for one in met} for met, axis in pairs)

    def _gradient(
        self, operator: Operator, forward: Operator | None, tensor: Tensor, given: Sequence[Dims]
    ) -> Dims | None:
        """The dimensions of a gradient that a backward operator computes."""
        if tensor.parameter is not None and tensor.parameter in self._parameters:
            return self._parameter_gradient(operator, tensor, self._parameters[tensor.parameter], given)
        if forward is None:
            return None
        name, differentiated = base_name(operator.name), base_name(forward.name)
        stem = name.rstrip("0123456789")
        is_part = not forward_names(name, [differentiated]) or (stem in _VIEWS and differentiated in PRODUCTS)
        if is_part and is_autograd_node(name) and given:  # one of several nodes of a composite forward operator
            if stem in _VIEWS:
                return reshaped(given[0], tensor.shape)
            if stem in _TRANSPOSES:
                return transposed(given[0], tensor.shape)
            if tensor.shape == shape_of(given[0]) and not stem.startswith(_SECOND_FIRST):
                return given[0]
        return self._input_gradient(operator, forward, tensor.shape, given)

    def _parameter_gradient(self, operator: Operator, tensor: Tensor, own: Dims, given: Sequence[Dims]) -> Dims | None:
        """The dimensions of a parameter's gradient: the parameter's, or those of the view of it that a product multiplied."""
        if base_name(operator.name).startswith((*_PRODUCTS, "GroupedMmBackward")):
            for read, dims in zip(operator.inputs, given, strict=True):
                if self._storages.get(read.storage) is own and shape_of(dims) == tensor.shape:
                    return dims
        return own if shape_of(own) == tensor.shape else guessed_view(own, tensor.shape)

    def _input_gradient(
        self, operator: Operator, forward: Operator, shape: tuple[int, ...], given: Sequence[Dims]
    ) -> Dims | None:
        """The dimensions of the gradient of a forward operator's input: of one of this shape, of several the next in turn."""
        # Where the weight's gradient is linked to the parameter, the others are gradients of data.
        linked = any(made.parameter in self._parameters for made in operator.outputs)
        sources: list[tuple[int, Dims]] = []
        if base_name(operator.name).rstrip("0123456789") in _PRODUCTS and len(given) > 1:
            pairs = zip(reversed(operator.inputs[1:]), reversed(given[1:]), strict=True)
            saved = [(t, dims) for t, dims in pairs if t.category != "gradient" and not (linked and _is_weight(t))]
            sources = [(-index, dims) for index, (_, dims) in enumerate(saved, 1)]
        sources += [(t.id, self._of(t)) for t in forward.inputs if not linked or not _is_weight(t)]
        same_shape = [(number, dims) for number, dims in sources if shape_of(dims) == shape]
        if not same_shape:
            return None
        counts = [self._taken.get((operator.id, number), 0) for number, _ in same_shape]
        number, dims = same_shape[counts.index(min(counts))]
        self._taken[operator.id, number] = min(counts) + 1
        return dims

    def _copy_dims(self, tensors: Iterable[Tensor], known: Sequence[Dims]) -> None:
        """Give tensors without dimensions those of a known tensor of the same shape."""
        for tensor in tensors:
            found = next((dims for dims in known if shape_of(dims) == tensor.shape), None)
            if found is not None and tensor.id not in self._dims:
                self._set(tensor, found)

    def _guess_dims(self, tensors: Iterable[Tensor], known: Sequence[Dims]) -> None:
        """Give tensors without dimensions those of a known tensor of the same shape, or a view of one."""
        for tensor in tensors:
            if tensor.id in self._dims or tensor.category == "parameter":
                continue
            same_shape = [dims for dims in known if shape_of(dims) == tensor.shape]
            views = (guessed_view(dims, tensor.shape, partial(self._fits, tensor)) for dims in known)
            candidates = chain(same_shape, (new for new in views if new is not None))
            first = next(candidates, None)
            if first is not None:
                self._set(tensor, next((one for one in chain((first,), candidates) if self._fits(tensor, one)), first))
            elif known and tensor.id in self._made:
                self._set(tensor, _by_size([dim for dims in known for dim in dims], tensor.shape))


def _is_unmixed(dims: Dims) -> bool:
    """Whether no dimension folds tokens and features, nor the last one samples and features: views that no model makes."""
    for dim in dims:
        axes = axes_of(dim)
        has_features = any(not follows((axis,), "batch") and not follows((axis,), "sequence") for axis in axes)
        if has_features and (follows(axes, "sequence") or (dim is dims[-1] and follows(axes, "batch"))):
            return False
    return True


def _is_weight(tensor: Tensor) -> bool:
    return tensor.category == "parameter"


def _sized(tensor: Tensor) -> bool:
    return tensor.numel > 1 and tensor.category not in ("parameter", "buffer")


def _by_size(dims: Sequence[Dim], shape: Sequence[int]) -> Dims:
    """Choose for each size the first known dimension of that size that is not chosen yet."""
    left = list(dims)
    found: list[Dim] = []
    for length in shape:
        dim = next((one for one in left if size(one) == length), None)
        if dim is not None and length > 1:
            left.remove(dim)
        found.append(dim if dim is not None else new_dim(length))
    return tuple(found)
