"""A rank's share of an operator: which layers have output and input features to divide, and tensors in a share's shape.

Where else the divided features occur, in the operator and in those that differentiate it, is found by their labels
(``triosim.sharding.axes``). The optimizer's tensors are shaped like the parameters that they are about.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from triosim.extrapolators.core.program import Program
from triosim.operators import products
from triosim.operators.features import base_name, factors
from triosim.operators.kinds import kind_of
from triosim.sharding.axes import Mark, Marks, Spread
from triosim.sharding.dataflow import is_view, owners, parameter_storages
from triosim.trace import DTYPE_BYTES, Operator, Tensor


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

    @property
    def gradient_bytes(self) -> int:
        """The bytes of the gradient of what it multiplies, which is as wide as its output (in eight bits the data are not)."""
        assert self.data is not None
        return self.data.numel * DTYPE_BYTES[self.output.dtype]

    def by_rows(self) -> dict[int, Mark]:
        """Divide the output features of the weight."""
        return {self.weight.id: Mark(self.rows, self.weight.shape[self.rows])}

    def by_columns(self) -> dict[int, Mark]:
        """Divide the input features of the weight, or a table's rows. The output is a partial sum of full size."""
        return {self.weight.id: Mark(self.columns, self.weight.shape[self.columns])}


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
    rows, columns = products.weight_dimensions(name, pair[1])
    feature = 1 if kind_of(name) == "convolution" else -1
    return Weighted(operator, *pair, rows=rows, columns=columns, feature=feature)


def copies_of_parameters(operators: Iterable[Operator]) -> dict[int, int]:
    """Return the storages of what the forward pass makes of a parameter in another dtype (autocast), with the parameter's."""
    found: dict[int, int] = {}
    for operator in operators:
        if operator.phase == "forward" and is_cast_of_parameter(operator):
            found[operator.outputs[0].storage] = operator.inputs[0].storage
    return found


def is_cast_of_parameter(operator: Operator) -> bool:
    """Whether an operator makes a parameter anew in another dtype."""
    if base_name(operator.name) not in ("to", "to_copy") or len(operator.inputs) != 1 or len(operator.outputs) != 1:
        return False
    given, made = operator.inputs[0], operator.outputs[0]
    return given.category == "parameter" and made.storage != given.storage and made.shape == given.shape


def with_copies_as_parameters(operators: Iterable[Operator], copies: Container[int]) -> list[Operator]:
    """Return operators in which tensors of some storages are parameters."""

    def of(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if not any(tensor.storage in copies for tensor in tensors):
            return tensors
        return tuple(replace(t, category="parameter") if t.storage in copies else t for t in tensors)

    found = []
    for operator in operators:
        inputs, outputs = of(operator.inputs), of(operator.outputs)
        same = inputs is operator.inputs and outputs is operator.outputs
        found.append(operator if same else replace(operator, inputs=inputs, outputs=outputs))
    return found


def halves(operator: Operator, weights: Sequence[Tensor], number: int) -> tuple[Operator, Operator]:
    """Return the product that gives the gradient of the data, with an id of its own, and that which gives those of ``weights``.

    They have as many FLOPs, and so as much time.
    """
    half = replace(
        operator,
        seconds=operator.seconds / 2,
        busy_seconds=None if operator.busy_seconds is None else operator.busy_seconds / 2,
        host_seconds=None if operator.host_seconds is None else operator.host_seconds / 2,
        flops=None,
    )
    for_data = replace(half, id=number, outputs=tuple(t for t in operator.outputs if t not in weights))
    return for_data, replace(half, outputs=tuple(weights))


def is_grouped(layer: Weighted) -> bool:
    """Whether it is a convolution whose filters see only some of the channels."""
    if layer.feature != 1 or layer.data is None:
        return False
    return layer.weight.shape[layer.columns] != layer.data.shape[1]


def share(operator: Operator, marks: Marks, ranks: int) -> Operator:
    """Return a rank's share of an operator; of what does not divide, the largest."""
    return _replaced(operator, lambda tensor: marks.get(tensor.id), ranks)


@dataclass(frozen=True, slots=True)
class Divided:
    """The parameters of which a rank has a share, by storage; ``shapes`` says how all parameters of one shape are divided.

    A shape of which not all parameters are divided alike is not among ``shapes``.
    """

    parameters: Mapping[int, tuple[Tensor, Mark]]
    shapes: Mapping[tuple[int, ...], Mark]

    def of_all(self, like: Callable[[Tensor], Iterable[Tensor]]) -> Divided:
        """Return what is divided where each parameter stands for several."""
        every = ((tensor, mark) for one, mark in self.parameters.values() for tensor in like(one))
        return Divided({tensor.storage: (tensor, mark) for tensor, mark in every}, self.shapes)


def divided(operators: Iterable[Operator], spreads: Mapping[int, Spread | None]) -> Divided:
    """Return what is divided of parameters, from what is divided of the forward operators.

    A parameter that some operator needs whole, or divided otherwise, is whole. One that shows it in another shape makes no use
    of it: what is divided of the parameter is what it says.
    """
    uses: dict[int, list[tuple[Tensor, Mark | None]]] = {}
    shown: set[int] = set()
    for operator in operators:
        if operator.phase != "forward":
            continue
        spread = spreads.get(operator.id)
        if is_view(operator):
            shown |= {t.id for t in operator.outputs} - {t.id for t in operator.inputs}
        for tensor in operator.inputs:
            if tensor.category == "parameter" and tensor.id not in shown:
                mark = spread.marks.get(tensor.id) if spread is not None else None
                uses.setdefault(tensor.storage, []).append((tensor, mark))
    found: dict[int, tuple[Tensor, Mark]] = {}
    shapes: dict[tuple[int, ...], set[Mark | None]] = {}
    for storage, entries in uses.items():
        tensor = entries[0][0]
        marks = {_seen_from(tensor, other, mark) for other, mark in entries}
        mark = marks.pop() if len(marks) == 1 else None
        shapes.setdefault(tensor.shape, set()).add(mark)
        if mark is not None:
            found[storage] = (tensor, mark)
    alike = {shape: mark for shape, marks in shapes.items() if len(marks) == 1 for mark in marks if mark is not None}
    return Divided(found, alike)


def share_of_optimizer(operator: Operator, owners: Mapping[int, int], parameters: Divided, ranks: int) -> Operator:
    """Return a rank's share of an optimizer's operator. ``owners``: the storage of the parameter that a tensor is about.

    A trace may not say what a tensor is about: it is then taken for one of a parameter of its shape, if all parameters of this
    shape are divided alike.
    """

    def mark(tensor: Tensor) -> Mark | None:
        if tensor.id not in owners:
            return parameters.shapes.get(tensor.shape) if len(tensor.shape) > 1 else None
        found = parameters.parameters.get(owners[tensor.id])
        return _seen_from(tensor, *found) if found is not None else None

    return _replaced(operator, mark, ranks)


def with_shares_of_optimizer(before: Program, after: Program, parameters: Divided, ranks: int, *, note: str) -> Program:
    """Return a divided program whose optimizer is about a rank's shares; ``before`` is the program with it whole."""
    optimizer = [operator for operator in before.operators if operator.phase == "optimizer"]
    about = owners(optimizer, parameter_storages(before.operators))
    shapes = {operator.id: share_of_optimizer(operator, about, parameters, ranks) for operator in optimizer}
    return after.reshaped(shapes, note=note)


def with_whole_tables(before: Program, after: Program, axis: str) -> Program:
    """Return a divided program that computes the gradients of tables of embeddings whole, and keeps a rank's share of each.

    So PyTorch's ``DTensor`` does it for a table that is divided by rows.
    """
    known = {operator.id: operator for operator in before.operators}
    whole = {
        one.id: replace(one, outputs=known[one.id].outputs)
        for one in after.operators
        if base_name(one.name) == "embedding_dense_backward" and one.id in known
    }
    return after.reshaped(whole, note=f"{axis}: the gradients of embeddings are computed whole, as DTensor does")


def _seen_from(tensor: Tensor, other: Tensor, mark: Mark | None) -> Mark | None:
    """The mark of a tensor that shows a parameter, its gradient or its state; ``mark`` is that of ``other``, which does too."""
    if mark is None or tensor.shape == other.shape:
        return mark
    if tensor.shape == other.shape[::-1]:
        return Mark(len(tensor.shape) - 1 - mark.dim, mark.size, mark.outer)
    if len(tensor.shape) == 1 and tensor.numel == other.numel:
        return Mark(0, tensor.numel)
    return None


def _replaced(operator: Operator, mark: Callable[[Tensor], Mark | None], ranks: int) -> Operator:
    """The operator with its tensors divided."""

    def share_of(tensor: Tensor) -> Tensor:
        found = mark(tensor)
        if found is None:
            return tensor
        shape = found.share(tensor.shape, ranks)  # written out, because replace() takes several times as long
        return Tensor(tensor.id, shape, tensor.dtype, tensor.category, tensor.storage, tensor.parameter)

    return operator.with_tensors(tuple(map(share_of, operator.inputs)), tuple(map(share_of, operator.outputs)))
