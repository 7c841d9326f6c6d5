"""How calls, kernels and modules of one profiled step become operators: who belongs to whom.

Calls are joined to the execution trace by record-function id, or, in files that have none, by their order on each thread. A
kernel belongs to the outermost call in which it was launched; a kernel launched outside of all calls is an operator of its
own, so that no GPU time is lost. A backward node belongs to the forward call of the same sequence number.
"""

from __future__ import annotations

from typing import NamedTuple

from triosim.errors import TraceError
from triosim.trace.autograd import ENGINE_PREFIX, short_name
from triosim.trace.formats.draft import DraftOperator, DraftTensor, Hints, Identities, RawTensor
from triosim.trace.formats.pytorch.execution_trace import BACKWARD_SCOPE, USER_SCOPE, Node
from triosim.trace.formats.pytorch.kineto import Profile, Span, Spans, Work
from triosim.trace.trace import CATEGORIES, Category, Phase

#: An annotation that names a module's path, as triosim.tracer writes them.
LAYER_PREFIX = "layer: "
#: One around a tensor's ``detach``, which says what the tensor is for: category, address, bytes, and the parameter's name.
ROLE_PREFIX = "role: "

MICROSECONDS = 1e6

_OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
_DATA = {"aten::to", "aten::_to_copy", "aten::copy_", "aten::randn", "aten::rand", "aten::randint", "aten::normal"}
_DETACH = {"aten::detach", "detach"}
_FRAME = "[pytorch|profiler|execution_trace|"


class _Call(NamedTuple):
    """A call that may become an operator, with the annotations around it, the outermost first."""

    node: Node
    span: Span
    annotations: tuple[str, ...]


class _Role(NamedTuple):
    """That someone said what a tensor is for; ``number`` is the node at which it was said."""

    number: int
    category: Category
    name: str
    tensor: RawTensor
    annotation: str


class Step:
    """One step: the last complete one of the profile."""

    def __init__(self, profile: Profile, nodes: list[Node], where: str) -> None:
        self.profile = profile
        self.hints = Hints()
        self.where = where
        self.drafts: dict[int, DraftOperator] = {}  # by the number of the call's node
        spans = join(profile, nodes, where)
        window = last_step(profile)
        self.calls = [
            call for call in _outermost(nodes, spans) if window is None or window.start <= call.span.start <= window.end
        ]
        self._roles = _said_roles(nodes)
        self._annotations = _by_thread([span for span in profile.calls if not span.name.startswith("aten::")])
        self._work, self._orphans = self._launched_by(window)

    @property
    def model(self) -> str:
        """The class of the outermost module, without its number."""
        named = [name for call in self.calls for name in call.annotations if name.startswith(LAYER_PREFIX)]
        if named:
            return named[0].removeprefix(LAYER_PREFIX)
        firsts = [spans.spans[0] for spans in self.profile.modules.values() if spans.spans]
        if not firsts:
            return "unknown"
        return min(firsts, key=lambda span: span.start).name.rpartition("_")[0] or "unknown"

    def operators(self) -> list[DraftOperator]:
        """Return the operators in the order in which the GPU ran them, or, without one, in which the host called them."""
        drafts, by_sequence = self._drafts()
        self._link(drafts, by_sequence)
        self.drafts = {call.node.number: draft for call, draft in drafts}
        kept = [(call.span.start, draft) for call, draft in drafts if self._matters(call, draft)]
        if not self.profile.work:
            return [draft for _, draft in kept]
        starts = {id(draft): self._work[id(call)][0].start for call, draft in drafts if self._work.get(id(call))}
        for work in self._orphans:
            draft = self._orphan(work, kept)
            starts[id(draft)] = work.start
            kept.append((work.launched or work.start, draft))
        kept.sort(key=lambda pair: pair[0])
        # A call without kernels stays behind the one that the host called before it.
        keys: list[float] = []
        for _, draft in kept:
            keys.append(starts.get(id(draft), keys[-1] if keys else 0.0))
        return [kept[index][1] for index in sorted(range(len(kept)), key=lambda index: keys[index])]

    def _drafts(self) -> tuple[list[tuple[_Call, DraftOperator]], dict[int, DraftOperator]]:
        """Return a draft of every call with its tensors, and the forward drafts by sequence number."""
        phases = self._phases()
        times = _times(self.calls, self._work) if self.profile.work else None
        flow = _Dataflow(self.hints)
        drafts: list[tuple[_Call, DraftOperator]] = []
        by_sequence: dict[int, DraftOperator] = {}
        numbers: dict[str, int] = {}
        roles = iter(self._roles)
        role = next(roles, None)
        for index, (call, phase) in enumerate(zip(self.calls, phases, strict=True)):
            while role is not None and role.number < call.node.number:
                flow.say(role)
                role = next(roles, None)
            draft = DraftOperator(short_name(call.node.name), phase, "", [], [])
            flow.add(call.node, draft)
            draft.attributes = call.node.attributes
            host = (call.span.end - call.span.start + (call.span.after or 0.0)) / MICROSECONDS
            if times is None:
                draft.seconds = (call.span.end - call.span.start) / MICROSECONDS
                draft.host_seconds = host if call.span.after is not None else None
            else:
                draft.seconds, draft.busy_seconds = times[index]
                draft.host_seconds = host
                draft.kernels = tuple(work.name for work in self._work.get(id(call), ()))
            if phase == "forward":
                draft.layer = self._layer(call) or _numbered(call.node.name, numbers)
                for node in call.node.walk():
                    if node.sequence >= 0:
                        by_sequence[node.sequence] = draft  # calls that need no gradient have the number of the next
            drafts.append((call, draft))
        for left in (role, *roles):
            if left is not None:
                flow.say(left)
        flow.finish([draft for _, draft in drafts])
        return drafts, by_sequence

    def _link(self, drafts: list[tuple[_Call, DraftOperator]], by_sequence: dict[int, DraftOperator]) -> None:
        """Give backward operators their forward operator and its layer."""
        makers: dict[int, DraftOperator] = {}
        layer = next((draft.layer for _, draft in reversed(drafts) if draft.phase == "forward"), "")
        for call, draft in drafts:
            if draft.phase == "optimizer":
                draft.layer = "optimizer"
            elif draft.phase == "backward":
                numbers = [node.sequence for node in call.node.walk() if node.sequence >= 0]
                draft.forward = by_sequence.get(numbers[0]) if numbers else None
                if draft.forward is None:  # what accumulates a gradient belongs to what made it
                    maker = next((makers[one.id] for one in draft.inputs if one.id in makers), None)
                    draft.forward = maker.forward if maker is not None else None
                layer = draft.forward.layer if draft.forward is not None else layer
                draft.layer = layer
                makers.update((tensor.id, draft) for tensor in draft.outputs)

    def _phases(self) -> list[Phase]:
        """Return the phase of each call.

        What comes after the last backward node (clipping, say) is the optimizer's, unless a module calls it. An optimizer may
        call the model and its backward pass in its step (LBFGS).
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
        named = [name for name in call.annotations if name.startswith(LAYER_PREFIX)]
        if named:
            return named[-1].removeprefix(LAYER_PREFIX)
        spans = self.profile.modules.get(call.span.thread)
        path = [span.name for span in spans.holding(call.span.start)] if spans is not None else []
        if path:
            return ".".join(path[1:] or path)
        return ".".join(call.annotations)

    def _launched_by(self, window: Span | None) -> tuple[dict[int, list[Work]], list[Work]]:
        """Return the GPU's work by the call that launched it, and what no call launched."""
        threads = _by_thread([call.span for call in self.calls])
        by_span = {id(call.span): call for call in self.calls}
        by_external = {span.external: span for span in self.profile.calls if span.external is not None}
        found: dict[int, list[Work]] = {}
        orphans: list[Work] = []
        for work in self.profile.work:
            moment, thread = work.launched, work.thread
            if thread is None and work.external in by_external:  # no launch in the file, but the call
                moment, thread = by_external[work.external].start, by_external[work.external].thread
            if window is not None and not window.start <= (moment or work.start) <= window.end:
                continue
            holding = threads[thread].holding(moment) if thread in threads else []
            if holding:
                found.setdefault(id(by_span[id(holding[-1])]), []).append(work)
            else:
                orphans.append(work)
        return found, orphans

    def _orphan(self, work: Work, kept: list[tuple[float, DraftOperator]]) -> DraftOperator:
        """Return an operator of its own for work that no call launched, named after the annotation around its launch."""
        spans = self._annotations.get(work.thread or "")
        around = [span.name for span in spans.holding(work.launched)] if spans is not None else []
        moment = work.launched or work.start
        before = [draft for start, draft in kept if start <= moment]
        neighbour = before[-1] if before else kept[0][1] if kept else None
        phase: Phase = neighbour.phase if neighbour is not None else "forward"
        if any(name.startswith(_OPTIMIZER) for name in around):
            phase = "optimizer"
        layer = neighbour.layer if neighbour is not None and neighbour.phase == phase else phase
        seconds = (work.end - work.start) / MICROSECONDS
        name = short_name(around[-1]) if around else work.name
        return DraftOperator(name, phase, layer, [], [], seconds, seconds, kernels=(work.name,))

    def _matters(self, call: _Call, draft: DraftOperator) -> bool:
        """Whether a call becomes an operator: it kept the GPU busy, or the dataflow goes through it."""
        if self._work.get(id(call)):
            return True
        if draft.name == "AccumulateGrad":
            idle = {draft.name, *_DETACH}
            return not self.profile.work and any(short_name(node.name) not in idle for node in call.node.walk())
        if not self.profile.work:
            return bool(draft.inputs or draft.outputs)
        return draft.phase != "optimizer" and bool(draft.outputs)


class _Dataflow:
    """Which tensors each operator reads and makes, seen from outside of it."""

    def __init__(self, hints: Hints) -> None:
        self.hints = hints
        self.identities = Identities()
        self._made: list[list[DraftTensor]] = []  # by operator: what came to be inside it, in order
        self._parameters: dict[str, int] = {}  # storages by the name that someone said

    def say(self, role: _Role) -> None:
        """Take a tensor's role from someone who knows it."""
        storage = self.identities.read(role.tensor).storage
        self.hints.said.setdefault(role.annotation, []).append(storage)
        if role.category == "parameter":
            self._parameters[role.name] = storage
            self.hints.parameters.add(storage)
        elif role.category == "input":
            self.hints.inputs.add(storage)
            if storage in self.hints.known:
                return  # a parameter that someone hands to a module
        owner = self._parameters.get(role.name) if role.category in ("gradient", "optimizer_state") else None
        self.hints.known[storage] = (role.category, owner)

    def add(self, top: Node, draft: DraftOperator) -> None:
        """Take the next operator: a call with the calls inside it."""
        made: dict[int, DraftTensor] = {}
        reads: dict[int, DraftTensor] = {}
        changed: dict[int, DraftTensor] = {}
        self._enter(top, draft, made, reads, changed)
        draft.lists = [[self.identities.read(raw) for raw in row] for row in top.arguments if row]
        own = [self.identities.read(raw) for raw in top.results]
        draft.returned = own
        if draft.phase == "optimizer" and own:
            draft.lists.append(own)
        draft.inputs = list(reads.values())
        outputs = {tensor.id: tensor for tensor in own}
        outputs.update(changed)
        draft.outputs = list(outputs.values())
        self._made.append(list(made.values()))
        if draft.phase == "forward" and not draft.inputs and top.name in _DATA:
            self.hints.inputs.update(tensor.storage for tensor in own)

    def finish(self, drafts: list[DraftOperator]) -> None:
        """Add to each operator's outputs what it made and others read later: saved tensors, and all gradients."""
        read = {tensor.id for draft in drafts for tensor in draft.inputs}
        for draft, made in zip(drafts, self._made, strict=True):
            known = {tensor.id for tensor in draft.outputs}
            # A view that a forward call made of its weight is no result of it; what a backward node hands on is, view or not.
            outside = {tensor.storage for tensor in draft.inputs if draft.phase == "forward"}
            for tensor in made:
                if tensor.id in read and tensor.id not in known and tensor.storage not in outside:
                    draft.outputs.append(tensor)

    def _enter(
        self,
        node: Node,
        draft: DraftOperator,
        made: dict[int, DraftTensor],
        reads: dict[int, DraftTensor],
        changed: dict[int, DraftTensor],
    ) -> set[tuple[int, int]]:
        """Follow a call in its order: what it is given, what it makes itself, the calls inside it. Return what came to be."""
        given = node.given
        for raw in given:
            tensor = self.identities.read(raw)
            if tensor.id not in made:
                reads.setdefault(tensor.id, tensor)
        if draft.phase == "forward":
            self._hint(node)
        brought = {(raw.number, raw.storage) for raw in given}
        inner = set().union(*(_created(child) for child in node.children)) if node.children else set()
        for raw in node.results:
            place = (raw.number, raw.storage)
            if node.name in _DETACH and given:
                self.identities.alias(raw, given[0])
            elif place not in brought and place not in inner:
                tensor = self.identities.write(raw, given)
                made.setdefault(tensor.id, tensor)
        for child in node.children:
            self._enter(child, draft, made, reads, changed)
        for raw in node.changed:
            tensor = self.identities.read(raw)
            if tensor.id not in made:
                changed.setdefault(tensor.id, tensor)
        return inner

    def _hint(self, node: Node) -> None:
        if "loss" in node.name:
            return
        for name, row in zip(node.argument_names, node.arguments, strict=False):
            storages = {self.identities.read(raw).storage for raw in row}
            if name in ("weight", "bias"):
                self.hints.parameters |= storages
            elif name in ("running_mean", "running_var"):
                self.hints.buffers |= storages


def _created(node: Node) -> set[tuple[int, int]]:
    """Return id and storage of what a call or one inside it makes."""
    brought = {(raw.number, raw.storage) for raw in node.given}
    found = {(raw.number, raw.storage) for raw in node.results} - brought
    return found.union(*(_created(child) for child in node.children))


def _times(calls: list[_Call], work: dict[int, list[Work]]) -> list[tuple[float, float]]:
    """Return each call's seconds, and those in which its kernels ran.

    Where calls overlap on several streams, time that an earlier one covers is not counted again, so that all seconds
    together are what the step took.
    """
    found = [(0.0, 0.0)] * len(calls)
    busy_until = float("-inf")
    working = [(index, rows) for index, call in enumerate(calls) if (rows := work.get(id(call)))]
    for index, rows in sorted(working, key=lambda pair: pair[1][0].start):
        first, last = rows[0].start, max(row.end for row in rows)
        seconds = max(0.0, last - max(first, busy_until))
        busy_until = max(busy_until, last)
        busy, until = 0.0, float("-inf")
        for row in rows:
            busy += max(0.0, row.end - max(row.start, until))
            until = max(until, row.end)
        found[index] = (seconds / MICROSECONDS, busy / MICROSECONDS)
    return found


def join(profile: Profile, nodes: list[Node], where: str) -> dict[int, Span]:
    """Return the profiler's span of each node, by the node's number."""
    by_function = {span.function: span for span in (*profile.calls, *profile.steps) if span.function is not None}
    calls = [node for node in nodes if not node.name.startswith(_FRAME)]
    if by_function:
        found = {node.number: by_function[node.function] for node in calls if node.function in by_function}
    else:
        found = _join_by_order(profile, calls)
    if not found:
        raise TraceError(
            "the profiler file and the execution trace have no call in common",
            where=where,
            fix="capture them in one run",
        )
    return found


def _join_by_order(profile: Profile, calls: list[Node]) -> dict[int, Span]:
    """Join by names: each thread of the execution trace is a stretch of a thread of the profile."""
    threads: dict[int, list[Node]] = {}
    for node in sorted(calls, key=lambda node: node.function):
        threads.setdefault(node.thread, []).append(node)
    spans = {thread: list(found.spans) for thread, found in _by_thread([*profile.calls, *profile.steps]).items()}
    found: dict[int, Span] = {}
    for nodes in threads.values():
        names = [node.name for node in nodes]
        for candidates in spans.values():
            # Spans of one microsecond may nest either way round: the order in which they were numbered tells.
            ordered = sorted(candidates, key=lambda span: (span.external or 0, span.start))
            listed = [span.name for span in ordered]
            start = next(
                (at for at in range(len(listed) - len(names), -1, -1) if listed[at : at + len(names)] == names), None
            )
            if start is not None:
                found.update((node.number, ordered[start + place]) for place, node in enumerate(nodes))
                break
    return found


def last_step(profile: Profile) -> Span | None:
    """Return the last complete step: the profiler leaves a short one at the end when it stops between steps."""
    counts = {id(step): 0 for step in profile.steps}
    for call in profile.calls:
        for step in profile.steps:
            if step.start <= call.start <= step.end:
                counts[id(step)] += 1
    enough = 0.9 * max(counts.values(), default=0)
    complete = [step for step in profile.steps if counts[id(step)] >= enough]
    return max(complete, key=lambda step: step.start) if complete else None


def _outermost(nodes: list[Node], spans: dict[int, Span]) -> list[_Call]:
    """Return the outermost calls, that is, those inside of annotations only, in the order in which they began."""
    numbers = {node.number for node in nodes}
    found: list[_Call] = []

    def descend(node: Node, annotations: tuple[str, ...]) -> None:
        if node.name.startswith(_FRAME):
            inside = annotations
        elif node.scope == USER_SCOPE and node.name.startswith(ROLE_PREFIX):
            return
        elif node.scope == USER_SCOPE:
            inside = annotations if node.name.startswith("ProfilerStep#") else (*annotations, node.name)
        elif node.number in spans:
            found.append(_Call(node, spans[node.number], annotations))
            return
        else:
            return
        for child in node.children:
            descend(child, inside)

    for node in nodes:
        if node.parent not in numbers or node.parent >= node.number:
            descend(node, ())
    return sorted(found, key=lambda call: call.node.number)


def _by_thread(spans: list[Span]) -> dict[str, Spans]:
    threads: dict[str, list[Span]] = {}
    for span in spans:
        threads.setdefault(span.thread, []).append(span)
    return {thread: Spans(found) for thread, found in threads.items()}


def _said_roles(nodes: list[Node]) -> list[_Role]:
    found = []
    for node in nodes:
        if node.scope == USER_SCOPE and node.name.startswith(ROLE_PREFIX):
            category, name = said_role(node.name)[::3]
            given = [raw for child in node.children for raw in child.given]
            if given:
                found.append(_Role(node.number, category, name, given[0], node.name))
    return found


def said_role(annotation: str) -> tuple[Category, int, int, str]:
    """Return category, address, bytes and parameter of what ``ROLE_PREFIX`` begins. Raises ``ValueError`` for no category."""
    category, address, nbytes, name = annotation.removeprefix(ROLE_PREFIX).split(" ", 3)
    if category not in CATEGORIES:
        raise ValueError(f"there is no category '{category}'")
    return category, int(address), int(nbytes), name


def _numbered(name: str, numbers: dict[str, int]) -> str:
    kind = name.rpartition("::")[2].rstrip("_")
    numbers[kind] = numbers.get(kind, 0) + 1
    return f"{kind}_{numbers[kind]}"
