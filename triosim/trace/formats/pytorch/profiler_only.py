"""Infers the nodes of an execution trace from a PyTorch profiler file alone.

The profiler knows the shapes of a call's inputs (``record_shapes=True``), neither its outputs nor the identity of a tensor. So
the argument of a forward call whose gradient is accumulated is taken for a parameter, the first other argument of a call (of
a product the first factor, of an embedding the indices) for the output of the call before it, and a backward call returns the
gradients that are accumulated after it and the next one's input. Where the operator says what shapes it returns, a product or
the gradients of a convolution, it returns these. A call that prepares a parameter, such as a transpose or a cast, returns the
argument of its shape of a call after it. Collectives, and what FSDP does to gather parameters, take no part; ahead of the
first call that is differentiated, where DDP and FSDP move buffers and parameters, nor do views and, in a distributed step, any
calls but those on as many elements as its samples have.
"""

from __future__ import annotations

import bisect
import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

from triosim.errors import TraceError
from triosim.trace.autograd import ACCUMULATE_GRAD, ENGINE_PREFIX
from triosim.trace.formats.pytorch.execution_trace import BACKWARD_SCOPE, DTYPES, USER_SCOPE, ExecutionTraceNode
from triosim.trace.formats.pytorch.inferred_updates import InferredUpdates
from triosim.trace.formats.pytorch.joined_calls import last_step
from triosim.trace.formats.pytorch.kineto import Profile, Span
from triosim.trace.formats.pytorch.profiled_step import CATEGORY_PREFIX, OPTIMIZER_STEP
from triosim.trace.formats.unclassified import RawTensor
from triosim.trace.trace import Category

_ACCUMULATE = f"{ENGINE_PREFIX}{ACCUMULATE_GRAD}"
#: The two matrices among a product's arguments.
_FACTORS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)}
#: Those whose first argument is the samples and whose second is the weight.
_CONVOLUTIONS = frozenset(
    f"aten::{name}" for name in ("conv1d", "conv2d", "conv3d", "convolution", "cudnn_convolution")
)
_GROUPED = "aten::_grouped_mm"
#: The argument that the samples come in by, where it is not the first.
_SAMPLES = {**{name: left for name, (left, _) in _FACTORS.items()}, "aten::embedding": 1, "aten::embedding_bag": 1}
_LOOK_UPS = frozenset(("aten::embedding", "aten::embedding_bag"))
#: Calls with one tensor, of which they return one of the same sizes: they may prepare a parameter for the call after them.
_PREPARE = frozenset(f"aten::{name}" for name in ("t", "transpose", "permute", "to", "_to_copy", "detach", "alias"))
#: Those of them that change the dtype.
_CASTS = frozenset(("aten::to", "aten::_to_copy"))
#: Calls that only make a view.
_VIEWS = (_PREPARE - _CASTS) | {
    f"aten::{name}" for name in ("view", "reshape", "flatten", "as_strided", "narrow", "slice", "select")
}
#: The names of what FSDP, and its first version, do before and after a module begin so.
_FSDP = ("FSDP::", "FullyShardedDataParallel._")
_COLLECTIVE = "c10d::"


def has_shapes(profile: Profile) -> bool:
    """Whether calls say the shapes of their inputs (``record_shapes``)."""
    return any("Input Dims" in span.arguments for span in profile.calls)


def nodes(profile: Profile, where: str, *, needs_shapes: bool = True) -> list[ExecutionTraceNode]:
    """Return a node for each call and annotation, in order of start, and number the profile's spans by them.

    Raises ``TraceError`` when the profile has no shapes and they are needed.
    """
    if needs_shapes and not has_shapes(profile):
        raise TraceError(
            "has no shapes, and there is no execution trace next to it",
            where=where,
            fix="profile with record_shapes=True, and best register a torch.profiler.ExecutionTraceObserver too",
        )
    found = _tree(profile)
    calls = [node for node in found if node.scope != USER_SCOPE]
    outermost = [node for node in calls if node.parent < 0 or found[node.parent].scope == USER_SCOPE]
    step = last_step(profile)
    if step is not None:
        begins = {span.function: span.start for span in profile.calls}
        outermost = [node for node in outermost if step.start <= begins[node.number] <= step.end]
    return _InferredTensors(found).given_to(outermost)


def _tree(profile: Profile) -> list[ExecutionTraceNode]:
    ordered = sorted([*profile.calls, *profile.steps], key=lambda span: (span.start, -span.end, span.order))
    threads = {thread: number for number, thread in enumerate(dict.fromkeys(span.thread for span in ordered))}
    running: dict[str, list[tuple[Span, ExecutionTraceNode]]] = {}
    found: list[ExecutionTraceNode] = []
    for number, span in enumerate(ordered):
        around = running.setdefault(span.thread, [])
        while around and around[-1][0].end < span.end:
            around.pop()
        parent = around[-1][1] if around else None
        span.function = number
        sequence = span.arguments.get("Sequence number")
        sequence = sequence if type(sequence) is int else -1
        backward = bool(span.arguments.get("Fwd thread id")) or span.name.startswith(ENGINE_PREFIX)
        scope = USER_SCOPE if span.annotation else BACKWARD_SCOPE if backward else 0
        above = -1 if parent is None else parent.number
        node = ExecutionTraceNode(number, span.name, above, number, sequence, scope, threads[span.thread])
        node.scalars = list(_shaped(span.arguments))
        found.append(node)
        around.append((span, node))
        if parent is not None:
            parent.children.append(node)
    return found


class _InferredTensors:
    """Gives calls input and output tensors, inferred from shapes."""

    def __init__(self, found: list[ExecutionTraceNode]) -> None:
        self._nodes = found
        self._count = 0
        self._stated: list[ExecutionTraceNode] = []
        self._names: dict[int, str] = {}  # of parameters, by their numbers
        self._gradients: dict[int, RawTensor] = {}  # by the numbers of their parameters

    def given_to(self, calls: list[ExecutionTraceNode]) -> list[ExecutionTraceNode]:
        """Return all nodes, with the tensors of these calls, the outermost."""
        updates = {node.number for node in self._nodes if self._optimizes(node)}
        forward = [node for node in calls if node.scope != BACKWARD_SCOPE and node.number not in updates]
        backward = [node for node in calls if node.scope == BACKWARD_SCOPE]
        last = backward[-1].number if backward else len(self._nodes)
        by_sequence = {part.sequence: node for node in forward for part in node.walk() if part.sequence >= 0}
        parameters = self._parameters(by_sequence, backward)
        differentiated = [
            by_sequence[part.sequence].number
            for node in backward
            for part in node.walk()
            if part.sequence in by_sequence
        ]
        begin = min(differentiated, default=0)
        for part in _between([node for node in forward if node.number < last], backward):
            self._chain(part, parameters, begin)
        self._chain_back(backward, by_sequence)
        optimizer = [node for node in calls if node.number in updates]
        self._updates(parameters.values()).give(optimizer, self._new)
        for node in calls:
            if node.number not in updates and node.scope != BACKWARD_SCOPE and node.number > last:
                self._give_new(node, node.scalars)
        for node in self._nodes:
            node.scalars = []
        return [*self._stated, *self._nodes]

    def _updates(self, parameters: Iterable[RawTensor]) -> InferredUpdates:
        def state(parameter: RawTensor, dtype: str) -> RawTensor:
            return self._state("optimizer_state", self._names[parameter.number], self._new(parameter.shape, dtype))

        return InferredUpdates(parameters, self._gradients, state)

    def _optimizes(self, node: ExecutionTraceNode) -> bool:
        while node.parent >= 0:
            node = self._nodes[node.parent]
            if node.name.startswith(OPTIMIZER_STEP):
                return True
        return False

    def _parameters(
        self, by_sequence: Mapping[int, ExecutionTraceNode], backward: list[ExecutionTraceNode]
    ) -> dict[tuple[int, int], RawTensor]:
        """Return the parameters by forward call and argument, and give the backward calls the gradients that they return."""
        found: dict[tuple[int, int], RawTensor] = {}
        maker: ExecutionTraceNode | None = None
        for node in backward:
            if node.name != _ACCUMULATE:
                maker = node if node.sequence in by_sequence else maker  # what a hook copies differentiates nothing
                continue
            accumulated = _first(node)
            source = by_sequence.get(maker.sequence) if maker is not None else None
            if accumulated is None or maker is None or source is None:
                continue
            for argument, row in enumerate(source.scalars):
                if row == [accumulated] and (source.number, argument) not in found:
                    name = f"{source.name.rpartition('::')[2]}_{source.number}.{argument}"
                    parameter = self._state("parameter", name, self._new(*accumulated))
                    gradient = self._state("gradient", name, self._new(*accumulated))
                    found[source.number, argument] = parameter
                    self._names[parameter.number], self._gradients[parameter.number] = name, gradient
                    maker.returned.append([gradient])
                    node.arguments = [[gradient]]
                    break
        return found

    def _chain(
        self, forward: list[ExecutionTraceNode], parameters: dict[tuple[int, int], RawTensor], begin: int
    ) -> None:
        """Chain the forward calls, of those ahead of ``begin``, the first one that is differentiated, some."""
        before: ExecutionTraceNode | None = None
        size = _sample_elements([node for node in forward if node.number >= begin], parameters)
        distributed = any(node.name.startswith(_COLLECTIVE) for node in self._nodes)
        flowing = [
            node for node in forward
            if self._flows(node) and (
                node.number >= begin or _elements(node) == size or not (distributed or node.name in _VIEWS)
            )
        ]  # fmt: skip
        numbers = {node.number for node in flowing}
        prepared = _PreparedParameters(flowing, parameters)
        for node in forward:
            if node.number not in numbers:
                self._give_new(node, node.scalars)
                continue
            node.arguments = [
                [known] if (known := parameters.get((node.number, argument))) else [self._new(*shape) for shape in row]
                for argument, row in enumerate(node.scalars)
            ]
            prepared.give(node)
            entry = prepared.entry(node)
            if entry is None:
                continue
            if before is None or _begins(node, entry):
                self._state("input", "", entry)
            else:
                self._give_result(before, entry)
            before = node

    def _flows(self, node: ExecutionTraceNode) -> bool:
        """Whether samples go through a forward call: not if it has scalars alone, such as a counter, or moves parameters."""
        return any(shape for row in node.scalars for shape, _ in row) and not self._moves_parameters(node)

    def _moves_parameters(self, node: ExecutionTraceNode) -> bool:
        """Whether a call gathers parameters or scatters their gradients."""
        around = node.parent
        while around >= 0:
            if self._nodes[around].name.startswith(_FSDP):
                return True
            around = self._nodes[around].parent
        return node.name.startswith(_COLLECTIVE)

    def _chain_back(self, backward: list[ExecutionTraceNode], by_sequence: Mapping[int, ExecutionTraceNode]) -> None:
        """Chain the backward calls; beside the gradient that comes in, a call takes what its forward call took or returned."""
        before: ExecutionTraceNode | None = None
        for node in backward:
            if node.name == _ACCUMULATE:
                continue
            shapes = next((part.scalars for part in node.walk() if any(part.scalars)), [])
            self._give_new(node, shapes)
            source = by_sequence.get(next((part.sequence for part in node.walk() if part.sequence >= 0), -1))
            if source is not None:
                _give_saved(node, source)
            if self._moves_parameters(node):
                continue
            first = next((row[0] for row in node.arguments if row), None)
            if before is not None and first is not None:
                self._give_result(before, first)
            before = node

    def _give_result(self, node: ExecutionTraceNode, following: RawTensor) -> None:
        """Let a call return what the next one takes, unless its own shapes say that it returns others."""
        shapes = _returned(node) or _convolved(node, following.shape)
        if following.shape in shapes:
            shapes.remove(following.shape)
            node.returned.append([following])
        elif not shapes:
            node.returned.append([following])
        node.returned += [[self._new(shape, following.dtype)] for shape in shapes]

    def _give_new(self, node: ExecutionTraceNode, shapes: list[Any]) -> None:
        if node.name.startswith(_COLLECTIVE):
            return
        node.arguments = [[self._new(*shape) for shape in row] for row in shapes]

    def _new(self, shape: tuple[int, ...], dtype: str) -> RawTensor:
        self._count += 1
        return RawTensor(self._count, self._count, shape, dtype)

    def _state(self, category: Category, name: str, tensor: RawTensor) -> RawTensor:
        """State a tensor's category as the tracer does, ahead of all calls."""
        annotation = ExecutionTraceNode(-2, f"{CATEGORY_PREFIX}{category} 0 0 {name}", -1, scope=USER_SCOPE)
        annotation.children.append(ExecutionTraceNode(-1, "aten::detach", -2, arguments=[[tensor]]))
        self._stated.append(annotation)
        return tensor


class _PreparedParameters:
    """The forward calls that transpose or cast a parameter for a call after them, and so take no samples.

    Where no gradient tells that an argument is a parameter, the call right before a product or an embedding prepares it if the
    table or the second factor has its sizes, in either order.
    """

    def __init__(self, flowing: Sequence[ExecutionTraceNode], parameters: Mapping[tuple[int, int], RawTensor]) -> None:
        self._parameters = parameters
        self._makers: dict[tuple[int, int], ExecutionTraceNode] = {}  # by the call and the argument that they make
        self._ready: list[ExecutionTraceNode] = []
        for position, node in enumerate(flowing):
            if node.name in _PREPARE and (node.number, 0) in parameters:
                self._ready.append(node)
            else:
                self._find_makers(node, flowing[:position])
        self._preparing = {maker.number for maker in self._makers.values()} | {node.number for node in self._ready}
        self._known: dict[int, set[int]] = defaultdict(set)  # by call: the arguments that no samples come in by
        for number, argument in (*parameters, *self._makers):
            self._known[number].add(argument)

    def _find_makers(self, node: ExecutionTraceNode, before: Sequence[ExecutionTraceNode]) -> None:
        """Find what prepares the arguments of a call: what is known to prepare parameters, or stands right before it."""
        last = list(takewhile(lambda one: one.name in _PREPARE or one.name == "aten::view", reversed(before[-3:])))
        for argument, row in enumerate(node.scalars):
            known = (node.number, argument) in self._parameters or argument == _entry(node.name, node.scalars, ())
            if known or len(row) != 1:
                continue
            near = last if node.name in _SAMPLES else []
            makers = (one for one in (*reversed(self._ready), *near) if one.name in _PREPARE and _makes(one, *row[0]))
            maker = next(makers, None)
            if maker is not None:
                self._makers[node.number, argument] = maker
                if maker in self._ready:
                    self._ready.remove(maker)

    def give(self, node: ExecutionTraceNode) -> None:
        """Let the calls that prepare arguments of this one return them."""
        for argument, row in enumerate(node.arguments):
            maker = self._makers.get((node.number, argument))
            if maker is not None and row:
                if maker.returned:
                    node.arguments[argument] = maker.returned[0]
                else:
                    maker.returned.append(row)

    def entry(self, node: ExecutionTraceNode) -> RawTensor | None:
        """Return the argument that the samples come in by, if any do."""
        if node.number in self._preparing:
            return None
        position = _entry(node.name, node.arguments, self._known[node.number])
        return None if position is None else node.arguments[position][0]


def _between(
    forward: Iterable[ExecutionTraceNode], backward: Sequence[ExecutionTraceNode]
) -> Iterator[list[ExecutionTraceNode]]:
    """Yield the forward calls between backward passes: those of one micro-batch, or of several in a row."""
    starts = [node.number for node in backward]
    for _, found in groupby(forward, key=lambda node: bisect.bisect(starts, node.number)):
        yield list(found)


def _begins(node: ExecutionTraceNode, entry: RawTensor) -> bool:
    """Whether a call takes samples of its own: a look-up by whole numbers, which nothing before it computes."""
    return node.name in _LOOK_UPS and entry.dtype.startswith("int")


def _give_saved(node: ExecutionTraceNode, source: ExecutionTraceNode) -> None:
    """Let a backward call take the tensors that its forward call saved, by their shapes, in place of new ones."""
    rows = (*source.arguments, *source.returned)
    saved = [tensor for row in rows for tensor in row]
    for argument, row in enumerate(node.arguments):
        for place, tensor in enumerate(row if argument else ()):
            found = next((one for one in saved if (one.shape, one.dtype) == (tensor.shape, tensor.dtype)), None)
            if found is not None:
                saved.remove(found)
                row[place] = found


def _entry(name: str, rows: Sequence[Sequence[Any]], known: Collection[int]) -> int | None:
    """Return the position of the argument that samples come in by: not one of those that are known to be others."""
    preferred = _SAMPLES.get(name, 0)
    found = [position for position, row in enumerate(rows) if row and position not in known]
    return preferred if preferred in found else next(iter(found), None)


def _sample_elements(
    calls: Sequence[ExecutionTraceNode], parameters: Mapping[tuple[int, int], RawTensor]
) -> int | None:
    """Return how many elements the samples have that the first call that takes any takes; None where none does."""
    for node in calls:
        known = {argument for number, argument in parameters if number == node.number}
        position = _entry(node.name, node.scalars, known)
        if position is not None:
            shape: tuple[int, ...] = node.scalars[position][0][0]
            return math.prod(shape)
    return None


def _elements(node: ExecutionTraceNode) -> int:
    """Return how many elements the first tensor of a call has."""
    return next((math.prod(row[0][0]) for row in node.scalars if row), 0)


def _makes(node: ExecutionTraceNode, shape: tuple[int, ...], dtype: str) -> bool:
    """Whether a call that prepares a parameter may return such a tensor: a transpose reverses sizes, a cast changes dtype."""
    given, given_dtype = node.scalars[0][0]
    if (given_dtype != dtype) != (node.name in _CASTS):
        return False
    return bool(shape == given[::-1] if node.name == "aten::t" else sorted(shape) == sorted(given))


def _returned(node: ExecutionTraceNode) -> list[tuple[int, ...]]:
    """Return the shapes that a call returns, as far as those of its arguments tell."""
    name, shapes = node.name.removeprefix(ENGINE_PREFIX), [row[0].shape if row else () for row in node.arguments]
    if name == "aten::convolution_backward" and len(shapes) > 2:
        return [shapes[1], shapes[2]]
    if name == _GROUPED and len(shapes) > 1 and (len(shapes[0]), len(shapes[1])) == (2, 3):
        return [(shapes[0][0], shapes[1][-1])]  # the rows of each group by its matrix
    if name not in _FACTORS or len(shapes) <= _FACTORS[name][1]:
        return []
    left, right = (shapes[position] for position in _FACTORS[name])
    return [(*left[:-1], right[-1])] if len(left) == len(right) > 1 else []


def _convolved(node: ExecutionTraceNode, following: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shape that a convolution returns: it has as many channels as its weight has rows, and the next call's sizes.

    A rank that has a part of the channels gathers them before the next call. A transposed convolution has others.
    """
    shapes = [row[0].shape if row else () for row in node.arguments[:2]]
    if node.name not in _CONVOLUTIONS or len(shapes) < 2 or not len(shapes[0]) == len(shapes[1]) == len(following) > 2:
        return []
    samples, weight = shapes
    transposed = weight[0] == samples[1] != weight[1]
    return [] if transposed or not weight[1] else [(samples[0], weight[0], *following[2:])]


def _first(node: ExecutionTraceNode) -> tuple[tuple[int, ...], str] | None:
    return next((row[0] for part in node.walk() for row in part.scalars if row), None)


def _shaped(arguments: dict[str, Any]) -> Iterator[list[tuple[tuple[int, ...], str]]]:
    """Yield shape and dtype of the tensors of each argument of a call: one, several of a list, or none."""
    shapes, kinds = (arguments.get(key, []) for key in ("Input Dims", "Input type"))
    if not isinstance(shapes, list) or not isinstance(kinds, list):
        raise ValueError(f"the inputs of no call are {shapes!r:.60} of {kinds!r:.60}")
    for shape, kind in zip(shapes, map(str, kinds), strict=False):
        if isinstance(shape, str):  # as some versions write them
            shape = json.loads(shape)
        if kind in DTYPES:
            yield [(_sizes(shape), DTYPES[kind])]
        elif kind == "TensorList":
            yield [(_sizes(one), "float32") for one in (shape if isinstance(shape, list) else [shape])]
        else:
            yield []


def _sizes(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError(f"no tensor has the shape {shape!r:.60}")
    return tuple(shape)
