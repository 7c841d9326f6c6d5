"""What a step did: its operators in the order in which the host issued them, what orders streams and host, and its memory.

Backward operators are joined to forward ones by autograd's sequence number: a node has it from the forward call during which
it was made, and knows it when it runs. An operator that runs outside of all modules, neither under autograd nor in the
optimizer, belongs to the optimizer where it works on gradients (clipping, zeroing), else to the forward pass.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from triosim.errors import CaptureWarning
from triosim.trace import Category, Communication, Mark, Phase
from triosim.tracer.patches import Patches
from triosim.tracer.recorder.endless_loops import Reads
from triosim.tracer.recorder.module_paths import Layers
from triosim.tracer.recorder.storages import Block, Blocks, Place

#: A norm of the gradients, or a few, are no more bytes than this.
MOST_OF_A_NORM = 64
_OURS = str(Path(__file__).resolve().parents[1])
_TORCH = str(Path(torch.__file__).resolve().parent)


@dataclass(slots=True, eq=False)
class RawOperator:
    """An operator as it was issued; tensors are numbers of the recorder's ``tensors``, ``forward`` is a position."""

    name: str
    phase: Phase
    layer: str
    inputs: list[int]
    outputs: list[int]
    attributes: Mapping[str, Any]
    stream: str
    forward: int | None = None
    communication: Communication | None = None
    outside: bool = False  # of modules, autograd and optimizer


@dataclass(slots=True, eq=False)
class RawTensor:
    """A tensor: a shape and dtype of a storage."""

    block: Block
    shape: tuple[int, ...]
    dtype: str


@dataclass(slots=True)
class Step:
    """What was recorded of one step."""

    operators: list[RawOperator] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    tensors: list[RawTensor] = field(default_factory=list)


class Recorder:
    """Writes down a step. It is told of each operator, and finds out by itself about modules, optimizers and autograd."""

    def __init__(self) -> None:
        self.place = Place()
        self.blocks = Blocks(self.place)
        self.layers = Layers(self._root_entered, self._root_left)
        self.step = Step()
        self.notes: dict[str, str] = {}  # by line of the script
        self.reads = Reads()
        self._numbers: dict[tuple[Any, ...], int] = {}  # of tensors, by what tells them apart
        self._by_sequence: dict[int, int] = {}
        self._sequence = -1
        self._streams: dict[int, str] = {0: "compute"}
        self._optimizers: list[Any] = []  # those that are in their step
        self._outside: Phase = "optimizer"  # the phase of what runs outside of everything
        self._outside_since = 0
        self._root_ran = False
        self._in_backward = False
        self._on_begin: list[Callable[[], None]] = []
        self._unrecorded = 0
        self._before_read: dict[int, Callable[[], None]] = {}  # by the storage's number

    def install(self, patches: Patches) -> None:
        """Follow modules and optimizers until the patches are undone."""
        from torch.optim import optimizer

        self.layers.install(patches)
        before = optimizer.register_optimizer_step_pre_hook(self._optimizer_begins)
        after = optimizer.register_optimizer_step_post_hook(self._optimizer_ends)
        patches.on_leaving(before.remove)
        patches.on_leaving(after.remove)

    def call_on_begin(self, action: Callable[[], None]) -> None:
        """Call an action whenever a step begins."""
        self._on_begin.append(action)

    def begin(self) -> None:
        """A step begins: what was recorded before is forgotten."""
        self._settle_outside()
        self.reads.forget()
        self.step = Step()
        self.place.position = -1
        self.blocks.begin()
        self._numbers = {}
        self._by_sequence = {}
        self._sequence = _sequence_number()
        self._begin_outside()
        self._root_ran = False
        for begins in self._on_begin:
            begins()

    def end(self) -> Step:
        """Return what was recorded since the step began."""
        self._read(None)
        self._settle_outside()
        for root in self.layers.roots:
            self._settle_module(root)
        return self.step

    # Operators

    def operator(
        self,
        name: str,
        attributes: Mapping[str, Any],
        inputs: Iterable[Any],
        outputs: Iterable[Any],
        communication: Communication | None = None,
    ) -> None:
        """An operator ran that read and wrote these tensors, all on the device."""
        given = list(inputs)
        if self._unrecorded:
            for tensor in (*given, *outputs):
                self.blocks.of(tensor)
            return
        if self._before_read:
            self._read(given)
        raw = self._raw(name, attributes)
        raw.communication = communication
        if raw.outside and not given and raw.phase == "forward":
            raw.layer = "input"
        place = self.place
        place.position, place.phase = len(self.step.operators), raw.phase
        place.layer, place.stream = raw.layer, raw.stream
        raw.inputs = [self._tensor(tensor) for tensor in given]
        raw.outputs = list(dict.fromkeys([self._tensor(tensor) for tensor in outputs]))
        if communication is not None:
            self._communicates(raw, communication)
        self.step.operators.append(raw)

    def categorise(self, tensor: Any, category: Category) -> None:
        """Say what a tensor's storage is for."""
        self.blocks.of(tensor).category = category

    def _communicates(self, raw: RawOperator, communication: Communication) -> None:
        """Say what the memory of a communication is for; what is sent between modules belongs to none."""
        blocks = [self.step.tensors[number].block for number in (*raw.inputs, *raw.outputs)]
        if raw.name.startswith("c10d::"):  # on memory of its own, not a distributed tensor's
            for block in blocks:
                if block.category is None:
                    block.category = "communication"
        if raw.outside and communication.kind in ("send", "recv"):
            raw.outside = False
            raw.layer = "communication"
            raw.phase = "backward" if any(block.place.phase == "backward" for block in blocks) else "forward"

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """What runs inside is no part of a step, but for the memory that it takes."""
        self._unrecorded += 1
        try:
            yield
        finally:
            self._unrecorded -= 1

    def before_read(self, tensor: Any, action: Callable[[], None]) -> None:
        """Call ``action`` before an operator of the running backward pass reads a tensor, and at its end at the latest."""
        self._before_read[self.blocks.of(tensor).number] = action

    def _read(self, tensors: list[Any] | None) -> None:
        """Some tensors are to be read, or whatever there is."""
        if tensors is None or torch._C._current_graph_task_id() == -1:
            found = list(self._before_read)
        else:
            numbers = [self.blocks.of(one).number for one in tensors]
            found = [number for number in numbers if number in self._before_read]
        for number in found:
            self._before_read.pop(number)()

    def _raw(self, name: str, attributes: Mapping[str, Any]) -> RawOperator:
        """Return the operator with phase, layer and link, and no tensors yet."""
        stream = self.stream()
        position = len(self.step.operators)
        graph = torch._C._current_graph_task_id()
        self.blocks.recomputing = False
        if graph != -1:
            link = self._differentiated()
            if self.layers.open and torch.is_grad_enabled():
                self._made(position)
                self.blocks.recomputing = True
                return RawOperator(name, "backward", self.layers.open[-1], [], [], attributes, stream)
            if self._outside == "optimizer":
                self._settle_outside()
            layer = self.layers.open[-1] if self.layers.open else self.place.layer
            if link is not None and link < position:
                layer = self.step.operators[link].layer
            self._backward_runs()
            return RawOperator(name, "backward", layer, [], [], attributes, stream, link)
        if self._optimizers and not self.layers.open and _sequence_number() == self._sequence:
            return RawOperator(name, "optimizer", "optimizer", [], [], attributes, stream)
        self._made(position)
        if self.layers.open:
            return RawOperator(name, "forward", self.layers.open[-1], [], [], attributes, stream)
        if self._in_backward:
            self._in_backward = False
            self._begin_outside()
        layer = "optimizer" if self._outside == "optimizer" else "loss" if self._root_ran else "input"
        return RawOperator(name, self._outside, layer, [], [], attributes, stream, outside=True)

    def _backward_runs(self) -> None:
        """A backward pass begins, if it has not: just before it, its caller made the gradient of the loss by itself."""
        if self._in_backward:
            return
        self._in_backward = True
        last = self.step.operators[-1] if self.step.operators else None
        if last is not None and last.name == "aten::ones_like" and last.outside:
            last.phase = "backward"
            for number in last.outputs:
                self.step.tensors[number].block.place.phase = "backward"
            for number in last.inputs:
                self.step.tensors[number].block.category = "output"

    def _made(self, position: int) -> None:
        """Note which operator made the autograd node that is the newest, if it is new."""
        number = _sequence_number()
        if number != self._sequence:
            self._sequence = number
            self._by_sequence[number - 1] = position

    def _differentiated(self) -> int | None:
        """Return the position of the operator whose autograd node runs now."""
        node = torch._C._current_autograd_node()
        return None if node is None else self._by_sequence.get(node._sequence_nr())

    def _tensor(self, tensor: Any) -> int:
        block = self.blocks.of(tensor)
        shape, dtype = tensor.shape, tensor.dtype
        key = (block.number, shape, tensor.stride(), tensor.storage_offset(), dtype)
        number = self._numbers.get(key)
        if number is None:
            self._numbers[key] = number = len(self.step.tensors)
            self.step.tensors.append(RawTensor(block, tuple(shape), str(dtype).removeprefix("torch.")))
        return number

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

    # What runs outside of modules, autograd and optimizer

    def _begin_outside(self) -> None:
        """From here on, what runs outside is the optimizer's, until something shows that it is not."""
        self._outside = "optimizer"
        self._outside_since = len(self.step.operators)

    def _settle_outside(self) -> None:
        """Of what ran outside since the last backward pass, only what works on gradients is the optimizer's."""
        if self._outside != "optimizer":
            return
        self._outside = "forward"
        mine: set[int] = set()
        for raw in self.step.operators[self._outside_since :]:
            if not raw.outside or raw.phase != "optimizer":
                continue
            blocks = [self.step.tensors[number].block for number in raw.inputs]
            scales = raw.name.startswith("aten::_amp_")  # the gradients' scaler
            if scales or any(block.number in mine or _of_the_optimizer(block) for block in blocks):
                mine.update(self.step.tensors[number].block.number for number in raw.outputs)
                if raw.communication is not None and any(map(_is_of_gradients, blocks)):
                    raw.phase, raw.layer = "backward", "communication"  # the script reduces gradients by itself
                continue
            raw.phase, raw.layer = "forward", "loss" if self._root_ran and raw.inputs else "input"
            for number in raw.outputs:
                place = self.step.tensors[number].block.place
                if place.phase == "optimizer" and place.layer == "optimizer":
                    place.phase, place.layer = "forward", raw.layer

    # Modules and optimizers

    def _root_entered(self, module: nn.Module, arguments: Any) -> None:
        if torch._C._current_graph_task_id() != -1:
            return  # recomputed
        self._in_backward = False
        self._settle_outside()
        self._root_ran = True
        self._settle(arguments, "input")

    def _root_left(self, module: nn.Module, result: Any) -> None:
        if torch._C._current_graph_task_id() == -1:
            self._settle(result, "output")

    def _settle(self, values: Any, category: Any) -> None:
        """Say what tensors of the device are for, where nobody said it before."""
        for value in tree_leaves(values):
            if on_device(value):
                block = self.blocks.of(value)
                if block.category is None:
                    block.category = category

    def _settle_module(self, module: nn.Module) -> None:
        for parameter in module.parameters():
            self._settle_parameter(parameter)
        for buffer in module.buffers():
            for local in local_tensors(buffer):
                self.blocks.of(local).category = "buffer"

    def _settle_parameter(self, parameter: Any) -> None:
        for local in local_tensors(parameter):
            block = self.blocks.of(local)
            block.category = "parameter"
            for gradient in local_tensors(parameter.grad):
                mine = self.blocks.of(gradient)
                mine.category, mine.owner = "gradient", block

    def _optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        self._settle_outside()
        for root in self.layers.roots:
            self._settle_module(root)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._settle_parameter(parameter)
        self._optimizers.append(optimizer)

    def _optimizer_ends(self, optimizer: Any, *_: Any) -> None:
        while self._optimizers and self._optimizers.pop() is not optimizer:
            pass
        for parameter, state in optimizer.state.items():
            owner = next((self.blocks.of(local) for local in local_tensors(parameter)), None)
            for value in tree_leaves(state):
                for local in local_tensors(value):
                    block = self.blocks.of(local)
                    block.category, block.owner = "optimizer_state", owner
        self.reads.forget()
        self._in_backward = False
        self._begin_outside()

    # ---- synchronisation of streams and host (triosim.tracer.device.cuda_api.SynchronisationRecorder) --------------

    def event_recorded(self, stream: int, number: int) -> None:
        """Event ``number`` is put at the tail of a stream."""
        self._mark("record", self._stream_name(stream), number)

    def event_awaited(self, stream: int, number: int) -> None:
        """A stream waits for an event."""
        self._mark("wait", self._stream_name(stream), number)

    def work_awaited(self, number: int) -> None:
        """The current stream waits for a communication."""
        self._mark("wait_work", self.stream(), number)

    def host_waits(self, *, stream: int | None = None, number: int | None = None) -> None:
        """The host waits for a stream, for an event, or for the device."""
        self._mark("synchronize", None if stream is None else self._stream_name(stream), number, script_line())

    def host_waits_here(self) -> None:
        """The host waits for the current stream, as a copy to the host makes it."""
        self._mark("synchronize", self.stream(), None, script_line())

    def value_read(self, value: object = None, *, known: bool) -> None:
        """The host reads a tensor's value, and waits for it; what is not known is taken to be ``value``."""
        self._mark("synchronize", self.stream(), None, script_line())
        if not known:
            if not self._optimizers:  # which read values in loops of their own, and end them
                self.reads.add(script_line(), len(self.step.operators))
            self.note(f"reads a tensor's value: the capture goes on as if it were {value}")

    def note(self, what: str) -> None:
        """Say what the line of the script that runs does otherwise than on a GPU, once for each line."""
        file, number = _script_frame()
        line = f"{Path(file).name}:{number}"
        if line not in self.notes:
            self.notes[line] = what
            warnings.warn_explicit(f"{line}: {what}", CaptureWarning, file, number)

    def _mark(self, kind: Any, stream: str | None, number: int | None, source: str = "") -> None:
        if self._unrecorded:
            return
        self.step.marks.append(Mark(len(self.step.operators), kind, stream, number, source))

    def memory_in_use(self) -> tuple[int, int]:
        """Return the bytes in use now, and their peak, as the caching allocator rounds them."""
        return self.blocks.in_use, self.blocks.most_in_use

    def reset_peak(self) -> None:
        """Reset the peak to the bytes in use now."""
        self.blocks.most_in_use = self.blocks.in_use


def on_device(value: Any) -> bool:
    """Whether something is a tensor of the device that is not there."""
    device = getattr(value, "fake_device", None)
    return device is not None and device.type == "cuda"


def local_tensors(value: Any) -> list[Any]:
    """Return the tensors of the device that a tensor is made of on this rank: itself, or what a distributed one holds."""
    if value is None:
        return []
    if on_device(value):
        return [value]
    parts = getattr(value, "__tensor_flatten__", None)
    if parts is None:
        return []
    return [found for name in parts()[0] for found in local_tensors(getattr(value, name))]


def script_line() -> str:
    """Return file and line of the script, or of a library that it uses, that called into PyTorch."""
    file, number = _script_frame()
    return f"{Path(file).name}:{number}"


def _script_frame() -> tuple[str, int]:
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_OURS, _TORCH, "<")):
            return file, frame.f_lineno
        frame = frame.f_back
    return "?", 0


def _sequence_number() -> int:
    return torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]


def _is_of_gradients(block: Block) -> bool:
    """Whether what is sent are gradients, or many of them in one piece, and not a norm."""
    return block.category == "gradient" or block.place.phase == "backward" or block.nbytes > MOST_OF_A_NORM


def _of_the_optimizer(block: Block) -> bool:
    return block.category in ("parameter", "gradient", "optimizer_state") or block.place.phase == "backward"
