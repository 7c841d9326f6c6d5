"""The calls that launched the kernels of a rank: their phases, layers and tensors, as in the profile of one GPU.

A call of several kernels has its tensors at the first one, so that its FLOPs count once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from triosim.trace.formats import tensor_categories
from triosim.trace.formats.pytorch import memory_events, profiler_only
from triosim.trace.formats.pytorch.kineto import Profile, Work
from triosim.trace.formats.pytorch.partial_steps import check_step
from triosim.trace.formats.pytorch.profiled_step import ProfiledStep
from triosim.trace.trace import Operator, Storage

#: What ``software`` says of tensors that no execution trace names.
INFERRED = "inferred from shapes, without an execution trace"


class Launcher(NamedTuple):
    """The call that launched a kernel, as an operator; ``first`` of its kernels, and the forward operator's number."""

    call: Operator
    first: bool
    forward: int | None


class RankCalls:
    """The calls of a rank's step; ``has_shapes`` tells whether their tensors are inferred, or not known.

    Raises ``TraceError`` for a part of a step.
    """

    def __init__(self, profile: Profile, where: str) -> None:
        self.has_shapes = profiler_only.has_shapes(profile)
        self.step = ProfiledStep(profile, profiler_only.nodes(profile, where, needs_shapes=False), where)
        self.found = self.step.operators()
        self.notes = tuple(check_step(self.step, self.found, where)) if self.has_shapes else ()
        built = tensor_categories.build(self.found, tensor_categories.assign(self.found, self.step.hints))
        of_call = dict(zip(self.found, built, strict=True))
        self._calls = {key: of_call[one] for key, one in self.step.launched().items() if one in of_call}
        self._profile = profile
        self._kernels: dict[int, int] = {}  # by a call's number: the position of its first kernel

    @property
    def model(self) -> str:
        """The class of the outermost module."""
        return self.step.model

    def launcher(self, work: Work, position: int) -> Launcher | None:
        """Return what launched a kernel that is the operator at ``position``; None where no call did."""
        call = self._calls.get(id(work))
        if call is None:
            return None
        first = self._kernels.setdefault(call.id, position) == position
        return Launcher(call, first, None if call.forward is None else self._kernels.get(call.forward))

    def storages(self, operators: Sequence[Operator]) -> tuple[Storage, ...]:
        """Return the memory of the step, as far as the profile has allocations."""
        numbers = {one: number for number, one in enumerate(self.found, 1)}
        moments = [
            (call.span, self._kernels[numbers[made]])
            for call in self.step.calls
            if (made := self.step.by_call.get(call.node.number)) in numbers and numbers[made] in self._kernels
        ]
        return memory_events.storages(self._profile, moments, operators, self.step.hints.annotated)


def calls_of(profile: Profile, where: str) -> RankCalls | None:
    """Return the calls of a rank; None of a profile that has kernels alone."""
    return None if all(call.annotation for call in profile.calls) else RankCalls(profile, where)
