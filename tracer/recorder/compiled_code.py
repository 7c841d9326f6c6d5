"""What the recorder knows of compiled code that runs, and of CUDA graphs that are captured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch.optim.optimizer import _global_optimizer_post_hooks

from triosim.tracer.recorder.recorded_step import RecordedOperator


@dataclass(frozen=True, slots=True)
class CompiledLayer:
    """The layer of compiled code that runs, whether that is a backward pass, and the operator ``forward`` that it is of."""

    layer: str
    backward: bool
    forward: int | None = None


@dataclass(frozen=True, slots=True)
class InlinedModule:
    """A module that a compiler has inlined into a function: its class, and the first dimension of the function's tensors."""

    name: str
    samples: int


@dataclass(slots=True)
class InlinedCalls:
    """The calls in the running step of compiled functions that no module calls, which stand for those of the model.

    A function may be several graphs: the one with the most samples counts.
    """

    name: str | None = None
    _samples: dict[int, int] = field(default_factory=dict)  # by graph

    def add(self, graph: int, module: InlinedModule) -> None:
        """Add a call of a graph."""
        self.name = self.name or module.name
        self._samples[graph] = self._samples.get(graph, 0) + module.samples

    def forget(self) -> None:
        """Forget the calls of the step."""
        self._samples.clear()

    @property
    def batch_size(self) -> int | None:
        """The samples of the step; None where there was no such call."""
        return max(self._samples.values(), default=0) or None


@dataclass(frozen=True, slots=True)
class GraphCall:
    """An operator in a CUDA graph, with its tensors, which it keeps alive."""

    operator: RecordedOperator
    inputs: list[Any]
    outputs: list[Any]


@dataclass(frozen=True, slots=True)
class GraphStep:
    """The end of an optimizer's step in a CUDA graph."""

    optimizer: Any

    def ends(self) -> None:
        """Tell those who follow optimizers that the step has ended: PyTorch does not, as no Python runs."""
        for hook in list(_global_optimizer_post_hooks.values()):
            hook(self.optimizer, (), {})


@dataclass(slots=True)
class GraphedCall:
    """A call whose backward pass is a CUDA graph: the numbers of its autograd nodes, and whether that was launched."""

    nodes: range
    launched: bool = False
