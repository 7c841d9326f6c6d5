"""Comparison of a described step with a captured one, for tests."""

from __future__ import annotations

from triosim.compute.operator_sequence import OperatorSequence
from triosim.operators.features import base_name, is_attention
from triosim.operators.kinds import kind_of
from triosim.trace import Trace


def products(trace: Trace) -> list[object]:
    """The matrix products, convolutions and attentions of a step, in order, with what they read and write."""
    return [
        (one.phase, one.name, [t.shape for t in one.inputs if len(t.shape) > 1], [t.shape for t in one.outputs[:1]])
        for one in trace.operators
        if _multiplies(one.name)
    ]


def flops(trace: Trace) -> float:
    """The FLOPs of these, as PyTorch counts a step's."""
    operators = OperatorSequence(trace.operators)
    return float(sum(row[0] for row, one in zip(operators.drivers, operators, strict=True) if _multiplies(one.name)))


def parameters(trace: Trace) -> list[tuple[int, ...]]:
    """The shapes of the parameters."""
    return sorted(one.shape for one in trace.parameters.values())


def _multiplies(name: str) -> bool:
    return kind_of(base_name(name)) in ("product", "convolution") or is_attention(base_name(name))
