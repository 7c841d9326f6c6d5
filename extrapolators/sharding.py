"""A rank's share of an operator: which dimension of each of its tensors is divided.

What is decided for a forward operator (``dims``: by tensor id, the dimension that is divided) fixes the rest: the backward
operator reads gradients shaped like the forward operator's outputs and writes gradients shaped like its inputs, and the
optimizer's tensors are shaped like the parameters that they are about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from triosim.compute.features import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS, base_name, factors
from triosim.trace import Operator, Tensor

Dims = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Weighted:
    """A linear, convolution or embedding operator. ``data`` is what it multiplies; an embedding only looks rows up.

    ``rows`` is the weight's dimension of output features, ``columns`` that of input features (or of the vocabulary);
    ``feature`` is the data's and the output's dimension of features, counted from the end where it is negative.
    """

    operator: Operator
    data: Tensor | None
    weight: Tensor
    rows: int
    columns: int
    feature: int

    @property
    def output(self) -> Tensor:
        """What the operator makes."""
        return self.operator.outputs[0]

    def by_rows(self) -> dict[int, int]:
        """Divide the output features: the weight, the bias and the output."""
        dims = {t.id: 0 for t in self.operator.inputs if t.category == "parameter" and len(t.shape) == 1}
        return {**dims, self.weight.id: self.rows, self.output.id: self.feature % len(self.output.shape)}

    def by_columns(self) -> dict[int, int]:
        """Divide the input features: the weight and the data. The output is a partial sum of full size."""
        dims = {self.weight.id: self.columns}
        if self.data is not None:
            dims[self.data.id] = self.feature % len(self.data.shape)
        return dims


def weighted(operator: Operator) -> Weighted | None:
    """Return an operator as one that applies a weight matrix or filter, or None for any other."""
    if operator.phase != "forward" or not operator.outputs or not operator.outputs[0].shape:
        return None
    name = base_name(operator.name)
    if name == "embedding" and operator.inputs and len(operator.inputs[0].shape) == 2:
        return Weighted(operator, None, operator.inputs[0], rows=1, columns=0, feature=-1)
    pair = factors(operator)
    if pair is None or pair[1].category != "parameter" or pair[0].category == "parameter" or len(pair[1].shape) < 2:
        return None
    if name in CONVOLUTIONS:
        return Weighted(operator, *pair, rows=0, columns=1, feature=1)
    if name in TRANSPOSED_CONVOLUTIONS:
        return Weighted(operator, *pair, rows=1, columns=0, feature=1)
    if name == "linear":
        return Weighted(operator, *pair, rows=0, columns=1, feature=-1)
    return Weighted(operator, *pair, rows=1, columns=0, feature=-1)  # a product with the transposed weight


def is_grouped(layer: Weighted) -> bool:
    """Whether it is a convolution whose filters see only some of the channels."""
    if layer.feature != 1 or layer.data is None:
        return False
    return layer.weight.shape[layer.columns] != layer.data.shape[1]


def divided(tensor: Tensor, dim: int, ranks: int) -> Tensor:
    """Return a rank's share of a tensor; the last rank's may be padded."""
    shape = list(tensor.shape)
    shape[dim] = -(-shape[dim] // ranks)
    return replace(tensor, shape=tuple(shape))


def share(operator: Operator, dims: Dims, ranks: int) -> Operator:
    """Return a rank's share of a forward operator."""
    return _replaced(operator, lambda tensor, _: dims.get(tensor.id), ranks)


def share_of_backward(
    operator: Operator, forward: Operator, dims: Dims, ranks: int, storages: Mapping[int, int]
) -> Operator:
    """Return a rank's share of an operator that differentiates ``forward``. ``storages``: of the parameters, by id."""
    parameters = {t.storage: t for t in forward.inputs if t.category == "parameter"}
    saved = {t.storage: t for t in (*forward.inputs, *forward.outputs)}
    data = [t for t in forward.inputs if t.category != "parameter"]

    def dim(tensor: Tensor, is_output: bool) -> int | None:
        storage = tensor.storage if tensor.category == "parameter" else _parameter(tensor, storages)
        model = parameters.get(storage) if storage is not None else saved.get(tensor.storage)
        if model is None:
            model = _alike(tensor, data if is_output else forward.outputs)
        if model is None and is_output:
            model = _alike(tensor, parameters.values())
        if model is None or model.id not in dims:
            return None
        return translated(model, dims[model.id], tensor, ranks)

    return _replaced(operator, dim, ranks)


def share_of_optimizer(
    operator: Operator, owners: Mapping[int, int], parameters: Mapping[int, tuple[Tensor, int]], ranks: int
) -> Operator:
    """Return a rank's share of an optimizer's operator. ``owners``: the storage of the parameter that a tensor is about.

    ``parameters`` are the divided ones by storage, with the dimension. A tensor that is about nothing known is taken for one
    of the parameter that has its shape, if all parameters of this shape are divided.
    """

    def dim(tensor: Tensor, _: bool) -> int | None:
        found = parameters.get(owners.get(tensor.id, -1))
        if found is None and tensor.id not in owners and len(tensor.shape) > 1:
            found = next((entry for entry in parameters.values() if entry[0].shape == tensor.shape), None)
        if found is None or tensor.numel <= 1:
            return None
        return translated(*found, tensor, ranks)

    return _replaced(operator, dim, ranks)


def translated(model: Tensor, dim: int, tensor: Tensor, ranks: int) -> int | None:
    """Return the dimension of ``tensor`` that is divided, if ``dim`` of ``model`` is, of which it is a view or a gradient."""
    size = model.shape[dim]
    if tensor.shape == model.shape:
        return dim
    if tensor.shape == model.shape[::-1]:
        return len(tensor.shape) - 1 - dim
    same = [index for index, one in enumerate(tensor.shape) if one == size]
    if same:
        from_end = dim - len(model.shape)
        return next((index for index in same if index - len(tensor.shape) == from_end), same[0])
    # A view that folds or unfolds the dimension.
    return next((i for i in reversed(range(len(tensor.shape))) if tensor.shape[i] % ranks == 0), None)


def _parameter(tensor: Tensor, storages: Mapping[int, int]) -> int | None:
    return storages.get(tensor.parameter) if tensor.parameter is not None else None


def _alike(tensor: Tensor, candidates: Iterable[Tensor]) -> Tensor | None:
    """The one of ``candidates`` that has the tensor's shape, or else its number of elements."""
    listed = [candidate for candidate in candidates if candidate.numel == tensor.numel]
    return next((candidate for candidate in listed if candidate.shape == tensor.shape), listed[0] if listed else None)


def _replaced(operator: Operator, dim: Callable[[Tensor, bool], int | None], ranks: int) -> Operator:
    """The operator with its tensors divided; ``dim`` is asked about each, and told whether it is an output."""

    def share_of(tensor: Tensor, is_output: bool) -> Tensor:
        found = dim(tensor, is_output)
        return tensor if found is None else divided(tensor, found, ranks)

    return replace(
        operator,
        inputs=tuple(share_of(tensor, False) for tensor in operator.inputs),
        outputs=tuple(share_of(tensor, True) for tensor in operator.outputs),
    )
