"""The launches of CUDA graphs: the host launches the kernels of one together, with its first kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from triosim.operators.features import base_name
from triosim.operators.kinds import kind_of
from triosim.tracer.recorder.compiled_code import GraphedCall
from triosim.tracer.recorder.recorded_step import RecordedOperator


class GraphLaunches:
    """Follows the graphs that run, and those of backward passes that are still to run in the step."""

    def __init__(self) -> None:
        self._launched: bool | None = None  # whether the launch of the graph that runs has been recorded
        self._graphed: list[GraphedCall] = []  # the calls in the step whose backward pass is a graph too

    @property
    def exist(self) -> bool:
        """Whether an operator may be one of a graph."""
        return bool(self._graphed) or self._launched is not None

    def forget(self) -> None:
        """Forget the calls of the step before."""
        self._graphed = []

    @contextmanager
    def one_launch(self) -> Iterator[None]:
        """Record what runs inside as a CUDA graph: the launch of its first kernel is that of all."""
        before, self._launched = self._launched, bool(self._launched)
        try:
            yield
        finally:
            self._launched = before

    @contextmanager
    def graphed_call(self) -> Iterator[None]:
        """Record what runs inside as a CUDA graph, and its backward pass as another one."""
        first = sequence_number()
        with self.one_launch():
            yield
        self._graphed.append(GraphedCall(range(first, sequence_number())))

    def note(self, operator: RecordedOperator) -> None:
        """Note, in a CUDA graph, whether its launch is that of the operator or of one before."""
        graph = self._graphed_backward()
        launched = self._launched if graph is None else graph.launched
        if launched:
            operator.attributes, operator.call = {**operator.attributes, "in_graph": True}, None
        launches = bool(launched) or kind_of(base_name(operator.name)) not in ("view", "creation")
        if graph is not None:
            graph.launched = launches
        elif launched is not None:
            self._launched = launches

    def _graphed_backward(self) -> GraphedCall | None:
        """Return the graphed call of which the backward pass runs now."""
        node = torch._C._current_autograd_node() if self._graphed else None
        number = -1 if node is None else node._sequence_nr()
        return next((call for call in self._graphed if number in call.nodes), None)


def sequence_number() -> int:
    """Return the number that autograd gives to the next node of its graph."""
    return torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
