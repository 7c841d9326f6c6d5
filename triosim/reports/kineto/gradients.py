"""The calls by which autograd gives parameters their gradients, as a profile names them.

A captured step has them: autograd keeps a gradient that nothing else uses by a ``detach`` (``AccumulateGrad`` in PyTorch's
``torch/csrc/autograd/functions``). A described one has the gradients alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from triosim.reports.kineto.activity import Activity
from triosim.trace import Operator, Tensor


def is_accumulation(operator: Operator) -> bool:
    """Whether an operator keeps a parameter's gradient."""
    if operator.phase != "backward" or operator.forward is not None or operator.name != "aten::detach":
        return False
    return all(tensor.category == "gradient" for tensor in (*operator.inputs, *operator.outputs))


def accumulated(found: Iterable[Activity]) -> Mapping[int, Sequence[Tensor]]:
    """Return the parameters' gradients that are complete after an operator, by its id; none where the operators keep them."""
    makers: dict[int, tuple[int, Tensor]] = {}
    for one in found:
        if one.operator is None or one.phase != "backward":
            continue
        if is_accumulation(one.operator):
            return {}
        for tensor in one.operator.outputs:
            if tensor.category == "gradient" and tensor.parameter is not None:
                makers[tensor.parameter] = (one.operator.id, tensor)
    gradients: dict[int, list[Tensor]] = defaultdict(list)
    for operator, tensor in makers.values():
        gradients[operator].append(tensor)
    return gradients
