"""The tensors of an optimizer's calls, as far as a profile's shapes tell: parameters, gradients, and states of the same shapes.

A call updates lists as long as the parameters are (``_foreach_addcdiv_`` of parameters, first and second moments), or one
parameter each. The first list, or tensor, of a shape stands for the parameters, others for states that the calls share;
of fused optimizers, and of an optimizer with a single call of two lists, the second for the gradients (torch.optim).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from triosim.trace.formats.pytorch.execution_trace import ExecutionTraceNode
from triosim.trace.formats.unclassified import RawTensor

_FUSED = "_fused_"
_LISTS = re.compile("_foreach_|_fused_")
_PAIR = 2

Shape = tuple[int, ...]
#: Makes the state of a parameter, given that, and the dtype.
MakeState = Callable[[RawTensor, str], RawTensor]


class InferredUpdates:
    """Gives an optimizer's calls the tensors that they update. ``gradients`` are those of ``parameters``, by their numbers."""

    def __init__(self, parameters: Iterable[RawTensor], gradients: Mapping[int, RawTensor], state: MakeState) -> None:
        self._parameters: dict[Shape, list[RawTensor]] = defaultdict(list)
        for parameter in parameters:
            self._parameters[parameter.shape].append(parameter)
        self._gradients = gradients
        self._make_state = state
        self._states: dict[tuple[int, int, str], RawTensor] = {}
        self._calls: Counter[tuple[str, Shape]] = Counter()  # those of one tensor of each list

    def give(self, calls: Sequence[ExecutionTraceNode], other: Callable[[Shape, str], RawTensor]) -> None:
        """Give calls their tensors; ``other`` makes those of shapes that no parameter has."""
        alone = sum(self._lists(node) == _PAIR for node in calls) == 1
        for node in calls:
            has_gradients = _FUSED in node.name or (alone and self._lists(node) == _PAIR)
            seen: Counter[Shape] = Counter()
            node.arguments = []
            for row in node.scalars:
                tensors = []
                for shape, dtype in row:
                    place = self._place(node, shape, seen[shape])
                    known = None if place is None else self._known(*place, dtype, has_gradients=has_gradients)
                    tensors.append(known or other(shape, dtype))
                    seen[shape] += 1
                node.arguments.append(tensors)
            self._calls.update((node.name, shape) for shape in seen)

    def _place(self, node: ExecutionTraceNode, shape: Shape, number: int) -> tuple[RawTensor, int] | None:
        """Return the parameter of the ``number``-th tensor of a shape of a call, and its list; None where there is none."""
        parameters = self._parameters.get(shape)
        if not parameters:
            return None
        if _LISTS.search(node.name):
            return parameters[number % len(parameters)], number // len(parameters)
        return parameters[self._calls[node.name, shape] % len(parameters)], number

    def _known(self, parameter: RawTensor, position: int, dtype: str, *, has_gradients: bool) -> RawTensor:
        if position == 0 and parameter.dtype == dtype:
            return parameter
        gradient = self._gradients.get(parameter.number)
        if position == 1 and has_gradients and gradient is not None:
            return gradient
        key = parameter.number, position, dtype
        if key not in self._states:
            self._states[key] = self._make_state(parameter, dtype)
        return self._states[key]

    def _lists(self, node: ExecutionTraceNode) -> int:
        """Return how many lists a call has that are as long as the parameters are, at most."""
        counts = Counter(shape for row in node.scalars for shape, _ in row if shape in self._parameters)
        several = bool(_LISTS.search(node.name))
        return max(
            (count // (len(self._parameters[shape]) if several else 1) for shape, count in counts.items()), default=0
        )
