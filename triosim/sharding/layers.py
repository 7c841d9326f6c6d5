"""Linear, convolution and embedding layers: the operators with a weight, whose output or input features can be sharded.

A column-parallel layer has the weight's output features sharded, a row-parallel layer its input features (Shoeybi et al. 2019,
section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from triosim.operators import products
from triosim.operators.features import base_name, factors
from triosim.operators.kinds import kind_of
from triosim.sharding.placements import Shard
from triosim.trace import DTYPE_BYTES, Operator, Tensor


@dataclass(frozen=True, slots=True)
class WeightLayer:
    """A linear, convolution or embedding operator. ``input`` is what it multiplies: None for an embedding, which looks rows up.

    ``output_dim`` is the weight's dimension of output features, ``input_dim`` that of input features (or of the vocabulary);
    ``feature_dim`` is the features' dimension in the input and in the output, counted from the end where it is negative.
    """

    operator: Operator
    input: Tensor | None
    weight: Tensor
    output_dim: int
    input_dim: int
    feature_dim: int

    @property
    def output(self) -> Tensor:
        """The operator's output."""
        return self.operator.outputs[0]

    @property
    def output_features(self) -> int:
        """The number of the weight's output features."""
        return self.weight.shape[self.output_dim]

    @property
    def input_features(self) -> int:
        """The number of the weight's input features, or of the rows of an embedding's table."""
        return self.weight.shape[self.input_dim]

    @property
    def input_gradient_bytes(self) -> float:
        """The bytes of the input's gradient, whose dtype is that of the output (an input may be quantized to eight bits)."""
        assert self.input is not None
        return self.input.numel * DTYPE_BYTES[self.output.dtype]

    @property
    def is_grouped_convolution(self) -> bool:
        """Whether it is a convolution whose filters see only some of the channels."""
        return self.feature_dim == 1 and self.input is not None and self.input_features != self.input.shape[1]

    def column_parallel(self) -> dict[int, Shard]:
        """Return the placements in which the weight's output features are sharded."""
        return {self.weight.id: Shard(self.output_dim, self.output_features)}

    def row_parallel(self) -> dict[int, Shard]:
        """Return the placements in which the weight's input features, or a table's rows, are sharded.

        The output is then a partial sum of full size.
        """
        return {self.weight.id: Shard(self.input_dim, self.input_features)}


def weight_layer(operator: Operator) -> WeightLayer | None:
    """Return the layer of an operator that applies a weight matrix, filter or table; None for any other operator."""
    if operator.phase != "forward" or not operator.outputs or not operator.outputs[0].shape:
        return None
    name = base_name(operator.name)
    if name == "embedding" and operator.inputs and len(operator.inputs[0].shape) == 2:
        return WeightLayer(operator, None, operator.inputs[0], output_dim=1, input_dim=0, feature_dim=-1)
    pair = factors(operator)
    if pair is None or pair[1].category != "parameter" or pair[0].category == "parameter" or len(pair[1].shape) < 2:
        return None
    output_dim, input_dim = products.weight_dimensions(name, pair[1])
    feature_dim = 1 if kind_of(name) == "convolution" else -1
    return WeightLayer(operator, *pair, output_dim=output_dim, input_dim=input_dim, feature_dim=feature_dim)


def split_gradients(operator: Operator, weights: Sequence[Tensor], number: int) -> tuple[Operator, Operator]:
    """Split a layer's backward operator: the product for the input's gradient, and that for those of ``weights``.

    The first gets the id ``number``. The two have as many FLOPs, and so take half the time each.
    """
    half = replace(
        operator,
        seconds=operator.seconds / 2,
        busy_seconds=None if operator.busy_seconds is None else operator.busy_seconds / 2,
        host_seconds=None if operator.host_seconds is None else operator.host_seconds / 2,
        flops=None,
    )
    for_input = replace(half, id=number, outputs=tuple(t for t in operator.outputs if t not in weights))
    return for_input, replace(half, outputs=tuple(weights))
