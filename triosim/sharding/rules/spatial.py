"""Rules for convolutions, pooling, up-sampling and padding."""

from __future__ import annotations

from collections.abc import Sequence

from triosim.operators.features import base_name
from triosim.operators.products import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS
from triosim.sharding.dimensions import Dim, Dims, follows, join_equal_sizes, kept_where_equal, new_dim, padded, size
from triosim.sharding.rules.common import Rules, output_shape
from triosim.trace import Operator

POOLINGS = frozenset(
    f"{kind}_pool{n}d{end}"
    for kind in ("max", "avg", "adaptive_avg", "adaptive_max")
    for n in (1, 2, 3)
    for end in ("", "_with_indices")
)


def convolution(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """Samples as in the data, channels as the weight's filters, and positions."""
    if len(inputs) < 2 or len(inputs[0]) != len(inputs[1]):
        return None
    data, weight, shape = inputs[0], inputs[1], output_shape(operator)
    transposes = base_name(operator.name) in TRANSPOSED_CONVOLUTIONS or bool(operator.attributes.get("transposed"))
    channels = weight[1 if transposes else 0]
    if size(channels) != shape[1]:
        channels = (*new_dim(shape[1] // size(channels)), *channels) if shape[1] % size(channels) == 0 else ()
    else:
        join_equal_sizes(data[1], weight[0 if transposes else 1])
    for bias in inputs[2:3]:
        if len(bias) == 1:
            join_equal_sizes(bias[0], channels)
    return [(data[0], channels, *map(_positions, data[2:], shape[2:]))]


def _positions(dim: Dim, length: int) -> Dim:
    """Positions after a convolution: a sequence that is padded stays one."""
    if size(dim) == length:
        return dim
    return padded(dim, length) if follows(dim, "sequence") else new_dim(length)


def pool(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """Pooling, up-sampling and padding: each dimension as it was, or another number of positions."""
    shape = output_shape(operator)
    if not inputs or len(inputs[0]) != len(shape):
        return None
    pads = "pad" in operator.name and "pool" not in operator.name
    found = tuple(map(padded, inputs[0], shape)) if pads else kept_where_equal(inputs[0], shape)
    return [found] * len(operator.outputs)


RULES: Rules = {
    convolution: " ".join(CONVOLUTIONS | TRANSPOSED_CONVOLUTIONS),
    pool: " ".join(POOLINGS)
    + " upsample_nearest1d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d upsample_nearest_exact2d interpolate"
    " mkldnn_max_pool2d lp_pool2d pad constant_pad_nd reflection_pad2d replication_pad2d",
}
