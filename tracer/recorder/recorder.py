"""Records a step: its operators in the order in which the host issued them, its synchronisation, and its memory.

Backward operators are linked to forward ones by autograd's sequence number, which a node gets from the forward call that made
it, and has when it runs. An operator that runs outside of all modules, neither under autograd nor in the optimizer, belongs to
the optimizer where it works on gradients (clipping, zeroing), else to the forward pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from triosim.errors import CaptureWarning
from triosim.memory.allocator.allocator import CachingAllocator
from triosim.memory.allocator.workspace import multiplies
from triosim.trace import Category, Communication, Mark, Phase
from triosim.tracer.patches import Patches
from triosim.tracer.recorder.categories import TensorCategories
from triosim.tracer.recorder.compiled_code import CompiledLayer, GraphCall, GraphStep, InlinedCalls
from triosim.tracer.recorder.endless_loops import MOST_TURNS, ValueReads
from triosim.tracer.recorder.graph_launches import GraphLaunches, sequence_number
from triosim.tracer.recorder.module_paths import ModulePaths
from triosim.tracer.recorder.recorded_step import Listener, RecordedOperator, RecordedStep
from triosim.tracer.recorder.script_lines import calling_place, is_waited_for, script_line, script_place
from triosim.tracer.recorder.storages import AllocationContext, RecordedStorage, StorageTracker
from triosim.tracer.recorder.tensor_forms import PlacedTensor
from triosim.tracer.steps import optimizer_hooks

#: What is reduced is at most a norm of the gradients, or a few norms, up to this many bytes.
LARGEST_NORMS = 64


class Recorder:
    """The recorder of a step, which is given each operator, and follows modules, optimizers and autograd by itself.

    ``listener`` is told of what is recorded while the step still runs. With an ``allocator``, ``workspace`` are the bytes that
    cuBLAS takes of it for each thread.
    """

    def __init__(self, allocator: CachingAllocator | None = None, workspace: int = 0) -> None:
        self.listener: Listener | None = None
        self.context = AllocationContext()
        self.storages = StorageTracker(self.context, allocator, workspace)
        self._categories = TensorCategories(self.storages)
        self.modules = ModulePaths(self._root_entered, self._root_left)
        self.step = RecordedStep()
        self.notes: dict[str, str] = {}  # by line of the script
        self.reads = ValueReads()
        self.graph: list[GraphCall | GraphStep] | None = None  # while a CUDA graph is captured
        self.launches = GraphLaunches()
        self.compiled: CompiledLayer | None = None  # while compiled code runs
        self.inlined = InlinedCalls()
        self._by_sequence: dict[int, int] = {}
        self._sequence = -1
        self._streams: dict[int, str] = {0: "compute"}
        self._optimizers: list[Any] = []  # those whose step() runs
        self._outside: Phase = "optimizer"  # the phase of what runs outside
        self._outside_since = 0
        self._root_ran = False
        self._in_backward = False
        self._on_begin: list[Callable[[], None]] = []
        self._unrecorded = 0
        self._before_read: dict[int, Callable[[], None]] = {}  # by the storage's number

    def install(self, patches: Patches) -> None:
        """Follow modules and optimizers until the patches are undone."""
        self.modules.install(patches)
        patches.enter_context(optimizer_hooks(self._optimizer_begins, self._optimizer_ends))

    def call_on_begin(self, action: Callable[[], None]) -> None:
        """Call an action whenever a step begins."""
        self._on_begin.append(action)

    def begin(self) -> None:
        """Begin a step: forget what was recorded before."""
        self._assign_outside()
        self.reads.forget()
        self.inlined.forget()
        self.launches.forget()
        self.step = RecordedStep()
        self.context.position = -1
        self.storages.begin()
        self._by_sequence = {}
        self._sequence = sequence_number()
        self._begin_outside()
        self._root_ran = False
        for begins in self._on_begin:
            begins()

    def end(self) -> RecordedStep:
        """Return what was recorded since the step began."""
        self._read(None)
        self._assign_outside()
        for root in self.modules.roots:
            self._categories.of_module(root)
        return self.step

    # ---- operators ------------------------------------------------------------------------------------------------

    def operator(
        self,
        name: str,
        attributes: Mapping[str, Any],
        inputs: Iterable[Any],
        outputs: Iterable[Any],
        communication: Communication | None = None,
    ) -> None:
        """Record an operator that read and wrote these tensors, all on the device."""
        given = list(inputs)
        if self._unrecorded:
            for tensor in (*given, *outputs):
                self.storages.of(tensor)
            return
        if self._before_read:
            self._read(given)
        operator = self._new_operator(name, attributes)
        if self.compiled is not None:
            operator.layer, operator.forward = self.compiled.layer or operator.layer, self.compiled.forward
        operator.communication = communication
        made = list(outputs)
        if self.graph is not None:
            self.graph.append(GraphCall(operator, given, made))
            for tensor in (*given, *made):
                self.storages.of(tensor)
            return
        if operator.outside and not given and operator.phase == "forward":
            operator.layer = "input"
        self._add(operator, self.storages.placed(given), self.storages.placed(made))

    @property
    def takes_calls(self) -> bool:
        """Whether ``call`` may be used now."""
        return not (self._unrecorded or self._before_read or self.graph is not None)

    def call(self, name: str, call: Any, inputs: Sequence[PlacedTensor], outputs: Iterable[PlacedTensor]) -> None:
        """Record an operator whose tensors, all on the device, are given by their forms and storages.

        ``call`` is one object for calls of the operator with equal ``call.attributes`` and forms of tensors.
        """
        operator = self._new_operator(name, call.attributes)
        operator.call = call
        if self.compiled is not None:
            operator.layer, operator.forward = self.compiled.layer or operator.layer, self.compiled.forward
        if operator.outside and not inputs and operator.phase == "forward":
            operator.layer = "input"
        self._add(operator, inputs, outputs)

    def replay(self, calls: Iterable[GraphCall | GraphStep]) -> None:
        """Record the operators of a CUDA graph on the current stream, with one launch; its optimizers' steps are steps."""
        with self.launches.one_launch():
            for call in calls:
                if isinstance(call, GraphCall):
                    again = replace(call.operator, stream=self.stream(), forward=None, inputs=[], outputs=[])
                    self._add(again, self.storages.placed(call.inputs), self.storages.placed(call.outputs))
                else:
                    call.ends()

    def _add(self, operator: RecordedOperator, given: Iterable[PlacedTensor], made: Iterable[PlacedTensor]) -> None:
        if self.launches.exist:
            self.launches.note(operator)
        communication = operator.communication
        context = self.context
        context.position, context.phase = len(self.step.operators), operator.phase
        context.layer, context.stream = operator.layer, operator.stream
        number, storage_of = self.step.number, self.storages.of_form
        operator.inputs = [number(storage_of(form, storage), form) for form, storage in given]
        operator.outputs = list(dict.fromkeys([number(storage_of(form, storage), form) for form, storage in made]))
        if multiplies(operator.name):
            self.storages.multiplies()
        if communication is not None:
            self._communicates(operator, communication)
        self.step.operators.append(operator)
        if self.listener is not None:
            self.listener.operator(operator, self.step)

    def categorise(self, tensor: Any, category: Category) -> None:
        """Say what a tensor's storage is for."""
        self.storages.of(tensor).category = category

    def _communicates(self, operator: RecordedOperator, communication: Communication) -> None:
        """Categorise the memory of a communication, and give sends and receives between modules a layer and phase."""
        storages = [self.step.tensors[number].storage for number in (*operator.inputs, *operator.outputs)]
        if operator.name.startswith("c10d::"):  # on buffers, not a distributed tensor's storage
            for storage in storages:
                if storage.category is None:
                    storage.category = "communication"
        if operator.outside and communication.kind in ("send", "recv"):
            operator.outside = False
            operator.layer = "communication"
            operator.phase = (
                "backward" if any(storage.context.phase == "backward" for storage in storages) else "forward"
            )

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Record of what runs inside only the memory that it takes."""
        self._unrecorded += 1
        try:
            yield
        finally:
            self._unrecorded -= 1

    def before_read(self, tensor: Any, action: Callable[[], None]) -> None:
        """Call ``action`` before an operator of the running backward pass reads a tensor, and at its end at the latest."""
        self._before_read[self.storages.of(tensor).number] = action

    def _read(self, tensors: list[Any] | None) -> None:
        """Call the actions of tensors that are about to be read; of all with ``None``, and outside of the backward pass."""
        if tensors is None or torch._C._current_graph_task_id() == -1:
            found = list(self._before_read)
        else:
            numbers = [self.storages.of(one).number for one in tensors]
            found = [number for number in numbers if number in self._before_read]
        for number in found:
            self._before_read.pop(number)()

    def _new_operator(self, name: str, attributes: Mapping[str, Any]) -> RecordedOperator:
        """Return an operator with phase, layer and forward operator, and no tensors yet."""
        stream = self.stream()
        position = len(self.step.operators)
        graph = torch._C._current_graph_task_id()
        self.context.recomputing = False
        if graph != -1:
            link = self._forward_position()
            if self._recomputes():
                self._note_node(position)
                self.context.recomputing = True
                return RecordedOperator(name, "backward", self.modules.innermost(), attributes, stream)
            if self._outside == "optimizer":
                self._assign_outside()
            layer = self.modules.active[-1] if self.modules.active else self.context.layer
            if link is not None and link < position:
                layer = self.step.operators[link].layer
            self._note_backward()
            return RecordedOperator(name, "backward", layer, attributes, stream, link)
        if self._optimizers and not self.modules.active and sequence_number() == self._sequence:
            return RecordedOperator(name, "optimizer", "optimizer", attributes, stream)
        self._note_node(position)
        if self.modules.active:
            return RecordedOperator(name, "forward", self.modules.active[-1], attributes, stream)
        if self._in_backward:
            self._in_backward = False
            self._begin_outside()
        layer = "optimizer" if self._outside == "optimizer" else "loss" if self._root_ran else "input"
        return RecordedOperator(name, self._outside, layer, attributes, stream, outside=True)

    def _recomputes(self) -> bool:
        """Whether a forward pass runs again inside of the backward pass."""
        if self.compiled is not None:  # in which gradients are off
            return not self.compiled.backward
        return bool(self.modules.active) and torch.is_grad_enabled()

    def _note_backward(self) -> None:
        """Note that a backward pass runs; the gradient of the loss, made just before it began, is moved to it."""
        if self._in_backward:
            return
        self._in_backward = True
        last = self.step.operators[-1] if self.step.operators else None
        if last is not None and last.name == "aten::ones_like" and last.outside:
            last.phase = "backward"
            for number in last.outputs:
                self.step.tensors[number].storage.context.phase = "backward"
            for number in last.inputs:
                self.step.tensors[number].storage.category = "output"

    def _note_node(self, position: int) -> None:
        """Note which operator made the newest autograd node, if it is new."""
        number = sequence_number()
        if number != self._sequence:
            self._sequence = number
            self._by_sequence[number - 1] = position

    def _forward_position(self) -> int | None:
        """Return the position of the forward operator whose autograd node runs now."""
        node = torch._C._current_autograd_node()
        return None if node is None else self._by_sequence.get(node._sequence_nr())

    def stream(self) -> str:
        """Return the name of the current stream."""
        c = torch._C
        return self._stream_name(c._accelerator_getStream(c._accelerator_getDeviceIndex()).stream_id)

    def name_stream(self, number: int, name: str) -> None:
        """Give a stream a name that says what it is for."""
        taken = set(self._streams.values())
        self._streams[number] = name if name not in taken else f"{name} {len(taken)}"

    def _stream_name(self, number: int) -> str:
        found = self._streams.get(number)
        if found is None:
            self._streams[number] = found = f"stream {len(self._streams)}"
        return found

    # ---- what runs outside of modules, autograd and optimizer -----------------------------------------------------

    def _begin_outside(self) -> None:
        """Assign what runs outside from here on to the optimizer, until ``_assign_outside`` knows better."""
        self._outside = "optimizer"
        self._outside_since = len(self.step.operators)

    def _assign_outside(self) -> None:
        """Assign what ran outside since the last backward pass to the optimizer if it works on gradients, else to forward."""
        if self._outside != "optimizer":
            return
        self._outside = "forward"
        of_gradients: set[int] = set()  # numbers of storages
        for operator in self.step.operators[self._outside_since :]:
            if not operator.outside or operator.phase != "optimizer":
                continue
            storages = [self.step.tensors[number].storage for number in operator.inputs]
            scales = operator.name.startswith("aten::_amp_")  # the gradients' scaler
            if scales or any(storage.number in of_gradients or _is_of_the_optimizer(storage) for storage in storages):
                of_gradients.update(self.step.tensors[number].storage.number for number in operator.outputs)
                if operator.communication is not None and any(map(_is_of_gradients, storages)):
                    # the script reduces gradients by itself
                    operator.phase, operator.layer = "backward", "communication"
                continue
            operator.phase, operator.layer = "forward", "loss" if self._root_ran and operator.inputs else "input"
            for number in operator.outputs:
                context = self.step.tensors[number].storage.context
                if context.phase == "optimizer" and context.layer == "optimizer":
                    context.phase, context.layer = "forward", operator.layer

    # ---- modules and optimizers -----------------------------------------------------------------------------------

    def _root_entered(self, module: nn.Module | None, arguments: Any) -> None:
        if torch._C._current_graph_task_id() != -1:
            return  # recomputed
        self._in_backward = False
        self._assign_outside()
        self._root_ran = True
        self._categories.of_new(arguments, "input")

    def _root_left(self, module: nn.Module, result: Any) -> None:
        if torch._C._current_graph_task_id() == -1:
            self._categories.of_new(result, "output")

    def _optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        self._assign_outside()
        for root in self.modules.roots:
            self._categories.of_module(root)
        self._categories.of_parameters(optimizer)
        self._optimizers.append(optimizer)

    def _optimizer_ends(self, optimizer: Any, *_: Any) -> None:
        if self.graph is not None:
            self.graph.append(GraphStep(optimizer))
        while self._optimizers and self._optimizers.pop() is not optimizer:
            pass
        self._categories.of_states(optimizer)
        self.reads.forget()
        self._in_backward = False
        self._begin_outside()

    # ---- synchronisation of streams and host ---------------------------------------------------------------------

    def event_recorded(self, stream: int, number: int) -> None:
        """Record that event ``number`` is put at the tail of a stream."""
        self._mark("record", self._stream_name(stream), number)

    def event_awaited(self, stream: int, number: int) -> None:
        """Record that a stream waits for an event."""
        self._mark("wait", self._stream_name(stream), number)

    def work_awaited(self, number: int) -> None:
        """Record that the current stream waits for a communication."""
        self._mark("wait_work", self.stream(), number)

    def host_waits(self, *, stream: int | None = None, number: int | None = None) -> None:
        """Record that the host waits for a stream, for an event, or for the device."""
        self._mark("synchronize", None if stream is None else self._stream_name(stream), number, script_line())

    def host_waits_here(self) -> None:
        """Record that the host waits for the current stream, as for a copy to the host."""
        self._mark("synchronize", self.stream(), None, script_line())

    def value_read(self, value: object = None, *, known: bool) -> None:
        """Record that the host reads a tensor's value, and waits for it; an unknown one is assumed to be ``value``."""
        self._mark("synchronize", self.stream(), None, script_line())
        if not known:
            if not self._optimizers:  # optimizers read values in loops that end by themselves
                self.reads.add(len(self.step.operators))
            ending = f", and to end the loop after {MOST_TURNS} turns" if is_waited_for(*script_place()) else ""
            self.note(f"reads a tensor's value, which is not computed: it is assumed to be {value}{ending}")

    def note(self, what: str) -> None:
        """Warn of what the running line does differently than on a GPU, once for each line, and name that of the script."""
        line = script_line()
        if line not in self.notes:
            self.notes[line] = what
            file, number = calling_place()
            named = f"{Path(file).name}:{number}"
            said = what if named == line else f"in {line}: {what}"
            warnings.warn_explicit(f"{named}: {said}", CaptureWarning, file, number)

    def _mark(self, kind: Any, stream: str | None, number: int | None, source: str = "") -> None:
        if self._unrecorded or self.graph is not None:
            return
        self.step.marks.append(Mark(len(self.step.operators), kind, stream, number, source))
        if self.listener is not None:
            self.listener.mark(self.step.marks[-1])


def _is_of_gradients(storage: RecordedStorage) -> bool:
    """Whether a reduced storage holds gradients, one or many in a buffer, and not a norm."""
    return storage.category == "gradient" or storage.context.phase == "backward" or storage.nbytes > LARGEST_NORMS


def _is_of_the_optimizer(storage: RecordedStorage) -> bool:
    return storage.category in ("parameter", "gradient", "optimizer_state") or storage.context.phase == "backward"
