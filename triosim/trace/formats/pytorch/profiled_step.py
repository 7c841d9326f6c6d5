"""Converts the calls, kernels and modules of one profiled step to operators.

A kernel belongs to the outermost call in which it was launched; a kernel launched outside of all calls is an operator of its
own, so that no GPU time is lost. A backward node belongs to the forward call of the same sequence number.
"""

from __future__ import annotations

from typing import NamedTuple

from triosim.trace.autograd import ENGINE_PREFIX, short_name
from triosim.trace.formats.pytorch.execution_trace import BACKWARD_SCOPE, USER_SCOPE, ExecutionTraceNode
from triosim.trace.formats.pytorch.host_waits import HostWaits
from triosim.trace.formats.pytorch.joined_calls import FRAME, by_thread, join, last_step
from triosim.trace.formats.pytorch.kineto import Profile, Span, Work
from triosim.trace.formats.unclassified import (
    CategoryHints,
    RawTensor,
    TensorIdentities,
    UnclassifiedOperator,
    UnclassifiedTensor,
)
from triosim.trace.trace import CATEGORIES, Category, Phase

#: An annotation that names a module's path, as triosim.tracer writes them.
LAYER_PREFIX = "layer: "
#: An annotation around a tensor's ``detach`` that states its category, address, bytes, and the parameter's name.
CATEGORY_PREFIX = "role: "

MICROSECONDS = 1e6

#: An optimizer's annotation of its step begins so.
OPTIMIZER_STEP = "Optimizer.step#"
_OPTIMIZER = (OPTIMIZER_STEP, "Optimizer.zero_grad#")
_DATA = {"aten::to", "aten::_to_copy", "aten::copy_", "aten::randn", "aten::rand", "aten::randint", "aten::normal"}
_DETACH = {"aten::detach", "detach"}
_NCCL = "nccl"


class _Call(NamedTuple):
    """A call with the annotations around it, the outermost first."""

    node: ExecutionTraceNode
    span: Span
    annotations: tuple[str, ...]


class _StatedCategory(NamedTuple):
    """The category of a tensor as an annotation of the tracer states it; ``number`` is the annotation's node."""

    number: int
    category: Category
    name: str
    tensor: RawTensor
    annotation: str


class ProfiledStep:
    """One step: the last complete one of the profile."""

    def __init__(self, profile: Profile, nodes: list[ExecutionTraceNode], where: str) -> None:
        self.profile = profile
        self.hints = CategoryHints()
        self.where = where
        self.by_call: dict[int, UnclassifiedOperator] = {}  # by the number of the call's node
        spans = join(profile, nodes, where)
        window = last_step(profile)
        self.calls = [
            call for call in _outermost(nodes, spans) if window is None or window.start <= call.span.start <= window.end
        ]
        self._stated = _stated_categories(nodes)
        self.left_out = 0.0  # seconds of communication with other ranks
        self._annotations = by_thread([span for span in profile.calls if not span.name.startswith("aten::")])
        self._work, self._orphans = self._launched_by(window)

    @property
    def model(self) -> str:
        """The class of the outermost module, without its number."""
        named = [name for call in self.calls for name in _named_layers(call)]
        if named:
            return named[0]
        firsts = [spans.spans[0] for spans in self.profile.modules.values() if spans.spans]
        if not firsts:
            return "unknown"
        return min(firsts, key=lambda span: span.start).name.rpartition("_")[0] or "unknown"

    def operators(self) -> list[UnclassifiedOperator]:
        """Return the operators in the order in which the GPU ran them, or, without one, in which the host called them."""
        operators, by_sequence = self._converted()
        self._link(operators, by_sequence)
        self.by_call = {call.node.number: operator for call, operator in operators}
        kept = [(call.span.start, operator) for call, operator in operators if self._matters(call, operator)]
        if not self.profile.work:
            return [operator for _, operator in kept]
        starts: dict[UnclassifiedOperator, float] = {
            operator: self._work[call.node.number][0].start
            for call, operator in operators
            if self._work.get(call.node.number)
        }
        for work in self._orphans:
            operator = self._orphan(work, kept)
            starts[operator] = work.start
            kept.append((work.launched or work.start, operator))
        kept.sort(key=lambda pair: pair[0])
        # A call without kernels stays behind the one that the host called before it.
        keys: list[float] = []
        for _, operator in kept:
            keys.append(starts.get(operator, keys[-1] if keys else 0.0))
        return [kept[index][1] for index in sorted(range(len(kept)), key=keys.__getitem__)]

    def launched(self) -> dict[int, UnclassifiedOperator]:
        """Return the operator of the call that launched each work, by the work's ``id()``, once there are operators."""
        return {
            id(work): self.by_call[number]
            for number, found in self._work.items()
            if number in self.by_call
            for work in found
        }

    def _converted(self) -> tuple[list[tuple[_Call, UnclassifiedOperator]], dict[int, UnclassifiedOperator]]:
        """Return an operator for every call with its tensors, and the forward operators by sequence number."""
        phases = self._phases()
        times = _times(self.calls, self._work) if self.profile.work else None
        flow, waits = _Dataflow(self.hints), HostWaits(self.profile)
        operators: list[tuple[_Call, UnclassifiedOperator]] = []
        by_sequence: dict[int, UnclassifiedOperator] = {}
        numbers: dict[str, int] = {}
        stated = iter(self._stated)
        upcoming = next(stated, None)
        for index, (call, phase) in enumerate(zip(self.calls, phases, strict=True)):
            while upcoming is not None and upcoming.number < call.node.number:
                flow.note_category(upcoming)
                upcoming = next(stated, None)
            operator = UnclassifiedOperator(short_name(call.node.name), phase, "", [], [])
            flow.add(call.node, operator)
            operator.attributes = call.node.attributes
            waited = waits.within(call.span.thread, call.span.start, call.span.end)
            host = (call.span.end - call.span.start - waited + (call.span.after or 0.0)) / MICROSECONDS
            if times is None:
                operator.seconds = (call.span.end - call.span.start) / MICROSECONDS
                operator.host_seconds = host if call.span.after is not None else None
            else:
                operator.seconds, operator.busy_seconds = times[index]
                operator.host_seconds = None if self.profile.facts.free_launches else host
                operator.kernels = tuple(work.name for work in self._work.get(call.node.number, ()))
            if phase == "forward":
                operator.layer = self._layer(call) or _numbered(call.node.name, numbers)
                for node in call.node.walk():
                    if node.sequence >= 0:
                        by_sequence[node.sequence] = operator  # calls that need no gradient have the number of the next
            operators.append((call, operator))
        for left in (upcoming, *stated):
            if left is not None:
                flow.note_category(left)
        flow.finish([operator for _, operator in operators])
        return operators, by_sequence

    def _link(
        self, operators: list[tuple[_Call, UnclassifiedOperator]], by_sequence: dict[int, UnclassifiedOperator]
    ) -> None:
        makers: dict[int, UnclassifiedOperator] = {}
        layer = next((operator.layer for _, operator in reversed(operators) if operator.phase == "forward"), "")
        for call, operator in operators:
            if operator.phase == "optimizer":
                operator.layer = "optimizer"
            elif operator.phase == "backward":
                numbers = [node.sequence for node in call.node.walk() if node.sequence >= 0]
                operator.forward = by_sequence.get(numbers[0]) if numbers else None
                if operator.forward is None:  # an accumulation belongs to the operator that made the gradient
                    maker = next((makers[one.id] for one in operator.inputs if one.id in makers), None)
                    operator.forward = maker.forward if maker is not None else None
                annotated = _named_layers(call)[-1:]  # triosim's profiles name the layers of the backward pass, too
                layer = operator.forward.layer if operator.forward is not None else annotated[0] if annotated else layer
                operator.layer = layer
                makers.update((tensor.id, operator) for tensor in operator.outputs)

    def _phases(self) -> list[Phase]:
        """Return the phase of each call.

        Calls after the last backward node, such as clipping, are the optimizer's, unless a module makes them. An optimizer's
        step may call the model and its backward pass (LBFGS).
        """
        backward = [
            call.node.name.startswith(ENGINE_PREFIX) or call.node.scope == BACKWARD_SCOPE for call in self.calls
        ]
        last = max((index for index, is_backward in enumerate(backward) if is_backward), default=len(backward))
        phases: list[Phase] = []
        for index, call in enumerate(self.calls):
            seeds = call.node.name == "aten::ones_like" and backward[index + 1 : index + 2] == [True]
            optimizes = any(name.startswith(_OPTIMIZER) for name in call.annotations)
            if call.node.name.startswith(ENGINE_PREFIX) or (not optimizes and (backward[index] or seeds)):
                phases.append("backward")
            elif any(name.startswith(LAYER_PREFIX) for name in call.annotations):
                phases.append("forward")
            else:
                phases.append("optimizer" if optimizes or index > last else "forward")
        return phases

    def _layer(self, call: _Call) -> str:
        named = _named_layers(call)
        if named:
            return named[-1]
        spans = self.profile.modules.get(call.span.thread)
        path = [span.name for span in spans.at(call.span.start)] if spans is not None else []
        if path:
            return ".".join(path[1:] or path)
        return ".".join(call.annotations)

    def _launched_by(self, window: Span | None) -> tuple[dict[int, list[Work]], list[Work]]:
        """Return the GPU's work by the call that launched it, and the work that no call launched."""
        threads = by_thread([call.span for call in self.calls])
        by_span = {call.span: call for call in self.calls}
        by_external = {span.external: span for span in self.profile.calls if span.external is not None}
        found: dict[int, list[Work]] = {}
        orphans: list[Work] = []
        for work in self.profile.work:
            moment, thread = work.launched, work.thread
            if thread is None and work.external in by_external:  # no launch in the file, but the call
                moment, thread = by_external[work.external].start, by_external[work.external].thread
            if window is not None and not window.start <= (moment or work.start) <= window.end:
                continue
            if _NCCL in work.name.lower() and world_of(self.profile) > 1:
                self.left_out += (work.end - work.start) / MICROSECONDS
                continue
            around = threads[thread].at(moment) if thread in threads else []
            if around:
                found.setdefault(by_span[around[-1]].node.number, []).append(work)
            else:
                orphans.append(work)
        return found, orphans

    def _orphan(self, work: Work, kept: list[tuple[float, UnclassifiedOperator]]) -> UnclassifiedOperator:
        """Return an operator of its own for work that no call launched, named after the annotation around its launch."""
        spans = self._annotations.get(work.thread or "")
        around = [span.name for span in spans.at(work.launched)] if spans is not None else []
        moment = work.launched or work.start
        before = [operator for start, operator in kept if start <= moment]
        neighbour = before[-1] if before else kept[0][1] if kept else None
        phase: Phase = neighbour.phase if neighbour is not None else "forward"
        if any(name.startswith(_OPTIMIZER) for name in around):
            phase = "optimizer"
        layer = neighbour.layer if neighbour is not None and neighbour.phase == phase else phase
        seconds = (work.end - work.start) / MICROSECONDS
        name = short_name(around[-1]) if around else work.name
        return UnclassifiedOperator(name, phase, layer, [], [], seconds, seconds, kernels=(work.name,))

    def _matters(self, call: _Call, operator: UnclassifiedOperator) -> bool:
        """Whether a call becomes an operator: it kept the GPU busy, or the dataflow goes through it."""
        if self._work.get(call.node.number):
            return True
        if operator.name == "AccumulateGrad":
            idle = {operator.name, *_DETACH}
            return not self.profile.work and any(short_name(node.name) not in idle for node in call.node.walk())
        if not self.profile.work:
            return bool(operator.inputs or operator.outputs)
        return operator.phase != "optimizer" and bool(operator.outputs)


class _Dataflow:
    """Finds the tensors that each operator reads and makes, as seen from outside of it."""

    def __init__(self, hints: CategoryHints) -> None:
        self.hints = hints
        self.identities = TensorIdentities()
        self._made: list[list[UnclassifiedTensor]] = []  # by operator: the tensors made inside it, in order
        self._parameters: dict[str, int] = {}  # storages by the parameter name that was stated

    def note_category(self, stated: _StatedCategory) -> None:
        """Note the category of a tensor that the tracer stated."""
        storage = self.identities.read(stated.tensor).storage
        self.hints.annotated.setdefault(stated.annotation, []).append(storage)
        if stated.category == "parameter":
            self._parameters[stated.name] = storage
            self.hints.parameters.add(storage)
        elif stated.category == "input":
            self.hints.inputs.add(storage)
            if storage in self.hints.known:
                return  # a parameter that is passed to a module
        owner = self._parameters.get(stated.name) if stated.category in ("gradient", "optimizer_state") else None
        self.hints.known[storage] = (stated.category, owner)

    def add(self, top: ExecutionTraceNode, operator: UnclassifiedOperator) -> None:
        """Take the next operator: a call with the calls inside it."""
        made: dict[int, UnclassifiedTensor] = {}
        reads: dict[int, UnclassifiedTensor] = {}
        changed: dict[int, UnclassifiedTensor] = {}
        self._enter(top, operator, made, reads, changed)
        operator.lists = [[self.identities.read(raw) for raw in row] for row in top.arguments if row]
        own = [self.identities.read(raw) for raw in top.results]
        operator.returned = own
        if operator.phase == "optimizer" and own:
            operator.lists.append(own)
        operator.inputs = list(reads.values())
        outputs = {tensor.id: tensor for tensor in own}
        outputs.update(changed)
        operator.outputs = list(outputs.values())
        self._made.append(list(made.values()))
        if operator.phase == "forward" and not operator.inputs and top.name in _DATA:
            self.hints.inputs.update(tensor.storage for tensor in own)

    def finish(self, operators: list[UnclassifiedOperator]) -> None:
        """Add to each operator's outputs the tensors that it made and others read: saved tensors, and all gradients."""
        read = {tensor.id for operator in operators for tensor in operator.inputs}
        for operator, made in zip(operators, self._made, strict=True):
            known = {tensor.id for tensor in operator.outputs}
            # A forward call's view of its weight is no result of it; a backward node's views are.
            outside = {tensor.storage for tensor in operator.inputs if operator.phase == "forward"}
            for tensor in made:
                if tensor.id in read and tensor.id not in known and tensor.storage not in outside:
                    operator.outputs.append(tensor)

    def _enter(
        self,
        node: ExecutionTraceNode,
        operator: UnclassifiedOperator,
        made: dict[int, UnclassifiedTensor],
        reads: dict[int, UnclassifiedTensor],
        changed: dict[int, UnclassifiedTensor],
    ) -> set[tuple[int, int]]:
        """Follow a call in its order: what it is given, what it makes itself, the calls inside it. Return what those make."""
        given = node.given
        for raw in given:
            tensor = self.identities.read(raw)
            if tensor.id not in made:
                reads.setdefault(tensor.id, tensor)
        if operator.phase == "forward":
            self._hint(node)
        brought = {(raw.number, raw.storage) for raw in given}
        inner = set().union(*(_created(child) for child in node.children)) if node.children else set()
        for raw in node.results:
            identity = (raw.number, raw.storage)
            if node.name in _DETACH and given:
                self.identities.alias(raw, given[0])
            elif identity not in brought and identity not in inner:
                tensor = self.identities.write(raw, given)
                made.setdefault(tensor.id, tensor)
        for child in node.children:
            self._enter(child, operator, made, reads, changed)
        for raw in node.changed:
            tensor = self.identities.read(raw)
            if tensor.id not in made:
                changed.setdefault(tensor.id, tensor)
        return inner

    def _hint(self, node: ExecutionTraceNode) -> None:
        if "loss" in node.name:
            return
        for name, row in zip(node.argument_names, node.arguments, strict=False):
            storages = {self.identities.read(raw).storage for raw in row}
            if name in ("weight", "bias"):
                self.hints.parameters |= storages
            elif name in ("running_mean", "running_var"):
                self.hints.buffers |= storages


def _named_layers(call: _Call) -> list[str]:
    """Return the modules that annotations around a call name, the outermost first."""
    return [name.removeprefix(LAYER_PREFIX) for name in call.annotations if name.startswith(LAYER_PREFIX)]


def _created(node: ExecutionTraceNode) -> set[tuple[int, int]]:
    """Return id and storage of the tensors that a call or one inside it makes."""
    brought = {(raw.number, raw.storage) for raw in node.given}
    found = {(raw.number, raw.storage) for raw in node.results} - brought
    return found.union(*(_created(child) for child in node.children))


def _times(calls: list[_Call], work: dict[int, list[Work]]) -> list[tuple[float, float]]:
    """Return each call's seconds, and those in which its kernels ran.

    Overlap with an earlier call counts once, but that of computing and NCCL's kernels, which run beside it, twice.
    """
    found = [(0.0, 0.0)] * len(calls)
    ends = {True: float("-inf"), False: float("-inf")}  # of what communicates, and of what computes
    working = [(index, rows) for index, call in enumerate(calls) if (rows := work.get(call.node.number))]
    for index, rows in sorted(working, key=lambda pair: pair[1][0].start):
        first, last = rows[0].start, max(row.end for row in rows)
        communicates = rows[0].name.startswith(_NCCL)
        seconds = max(0.0, last - max(first, ends[communicates]))
        ends[communicates] = max(ends[communicates], last)
        busy, until = 0.0, float("-inf")
        for row in rows:
            busy += max(0.0, row.end - max(row.start, until))
            until = max(until, row.end)
        found[index] = (seconds / MICROSECONDS, busy / MICROSECONDS)
    return found


def world_of(profile: Profile) -> int:
    """Return how many ranks there are, of one of which the profile is."""
    world = profile.distributed.get("world_size")
    return world if isinstance(world, int) else 1


def _outermost(nodes: list[ExecutionTraceNode], spans: dict[int, Span]) -> list[_Call]:
    """Return the calls that are inside of annotations only, in the order in which they began."""
    numbers = {node.number for node in nodes}
    found: list[_Call] = []

    def descend(node: ExecutionTraceNode, annotations: tuple[str, ...]) -> None:
        frame = node.name.startswith(FRAME)
        if frame or (node.scope == USER_SCOPE and not node.name.startswith(CATEGORY_PREFIX)):
            named = () if frame or node.name.startswith("ProfilerStep#") else (node.name,)
            for child in node.children:
                descend(child, annotations + named)
        elif node.scope != USER_SCOPE and node.number in spans:
            found.append(_Call(node, spans[node.number], annotations))

    for node in nodes:
        if node.parent not in numbers or node.parent >= node.number:
            descend(node, ())
    return sorted(found, key=lambda call: call.node.number)


def _stated_categories(nodes: list[ExecutionTraceNode]) -> list[_StatedCategory]:
    found = []
    for node in nodes:
        if node.scope == USER_SCOPE and node.name.startswith(CATEGORY_PREFIX):
            category, name = parse_category_annotation(node.name)[::3]
            given = [raw for child in node.children for raw in child.given]
            if given:
                found.append(_StatedCategory(node.number, category, name, given[0], node.name))
    return found


def parse_category_annotation(annotation: str) -> tuple[Category, int, int, str]:
    """Return category, address, bytes and parameter of an annotation. Raises ``ValueError`` where they are none."""
    category, address, nbytes, name = annotation.removeprefix(CATEGORY_PREFIX).split(" ", 3)
    if category not in CATEGORIES:
        raise ValueError(f"there is no category '{category}'")
    return category, int(address), int(nbytes), name


def _numbered(name: str, numbers: dict[str, int]) -> str:
    kind = name.rpartition("::")[2].rstrip("_")
    numbers[kind] = numbers.get(kind, 0) + 1
    return f"{kind}_{numbers[kind]}"
