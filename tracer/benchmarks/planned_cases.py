"""The cases of a plan: operators in the shapes of a step, as ``triosim calibrate missing`` lists them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from triosim.compute.fit import operator_table
from triosim.compute.fit.operator_table import MeasuredOperator
from triosim.operators import features
from triosim.operators.kinds import kind_of
from triosim.trace import Operator
from triosim.tracer.benchmarks import dispatch
from triosim.tracer.benchmarks.cases import BenchmarkCase

#: Of a norm's inputs, those that have gradients: data, weight, bias. Its running statistics have none.
_DIFFERENTIATED = 3


def read(path: str) -> list[tuple[str, Callable[[], BenchmarkCase]]]:
    """Return what each case of a plan is, and a function that makes it. Raises ``TriosimError``."""
    return [(row.operator.name, partial(_case, row)) for row in operator_table.read(path, timed=False)]


def differentiation(torch: Any, case: BenchmarkCase, tensors: Sequence[Any]) -> Callable[[], Any]:
    """Return a function that differentiates a case's forward operator; the first tensor is its result's gradient."""
    one = case.operator
    forward = Operator(0, case.forward, "forward", "", one.inputs[1:], one.inputs[:1], 0.0, attributes=one.attributes)
    leaves = [tensor for tensor in tensors[1:] if tensor.is_floating_point()][:_DIFFERENTIATED]
    for leaf in leaves:
        leaf.requires_grad_()
    made = dispatch.bind(torch, forward, tensors[1:])()
    result = made[0] if isinstance(made, (tuple, list)) else made
    return lambda: torch.autograd.grad(result, leaves, tensors[0], retain_graph=True)


def _case(row: MeasuredOperator) -> BenchmarkCase:
    one = row.operator
    below = _bound(one)
    integers = {place: below for place, tensor in enumerate(one.inputs) if "int" in tensor.dtype}
    name = f"plan:{one.name.rpartition(':')[2]}:{zlib.crc32(operator_table.shown(row).encode()):08x}"
    return BenchmarkCase(name, one, "", integers, row.forward, row.call)


def _bound(operator: Operator) -> int:
    """Return what integers among an operator's inputs stay below: rows of a table, classes, or places in a tensor."""
    floats = [tensor for tensor in (*operator.inputs, *operator.outputs) if "float" in tensor.dtype and tensor.shape]
    if not floats:
        return 1
    kind, shape = kind_of(features.base_name(operator.name)), max(floats, key=lambda tensor: tensor.numel).shape
    return shape[0] if kind == "embedding" else shape[-1] if kind == "loss" else min(shape)
