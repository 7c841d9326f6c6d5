"""A graph of the compiler as the script calls it: computes shapes node by node, and records its kernels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch.utils._pytree import tree_leaves, tree_map_only

from triosim.trace import Phase
from triosim.tracer.compiler.buffer_reuse import Reuse, reused_buffers
from triosim.tracer.compiler.graph_kernels import KernelLaunch, NodeCall, Place, kernels_of
from triosim.tracer.contents import storage_contents
from triosim.tracer.device.dispatch_mode import DeviceMode
from triosim.tracer.device.operators.attention import note_mask
from triosim.tracer.recorder.compiled_code import CompiledLayer, InlinedModule
from triosim.tracer.recorder.device_tensors import on_device

#: So often a graph runs before it is replayed as a CUDA graph: once as it is, and once to be captured.
_WARMUP = 2
_FLEX = (flex_attention, flex_attention_backward)
#: The compiler's own operators for random numbers, which have no rule for fake tensors.
_RANDOM = "prims.inductor_"


@dataclass(frozen=True, slots=True)
class _Step:
    """What the graph does, the layer, what a kernel computes in place, and the nodes whose values nothing needs afterwards."""

    what: NodeCall | KernelLaunch
    over: tuple[fx.Node, ...]
    in_place: tuple[Reuse, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """The call of a forward graph: its module, and by PyTorch's number of an autograd node the operator that made it."""

    module: str = ""
    operators: dict[int, int] = field(default_factory=dict)


class ForwardCalls:
    """The calls of forward graphs, by their autograd nodes: backward passes run outside of the modules."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}

    def begin(self, module: str) -> Call:
        """Return the call of a forward graph that begins now in a module."""
        found = self._calls[torch.autograd._get_sequence_nr() - 1] = Call(module)  # type: ignore[attr-defined]
        return found

    def of_backward(self) -> Call:
        """Return the call whose backward pass runs now."""
        node = torch._C._current_autograd_node()
        return Call() if node is None else self._calls.get(node._sequence_nr(), Call())

    def forget(self) -> None:
        """Forget all calls."""
        self._calls.clear()


class CompiledGraph:
    """A callable for the graph ``module``, of the forward or the backward pass.

    As PyTorch calls compiled code: with one list of arguments, which is emptied, so that memory is freed as early as there.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        mode: DeviceMode,
        calls: ForwardCalls,
        phase: Phase,
        inlined: InlinedModule | None = None,
        *,
        graphed: bool = False,
        donated: Collection[int] = (),
    ) -> None:
        self._boxed_call = True  # PyTorch asks for it
        self._module = module
        self._mode = mode
        self._calls = calls
        self._phase = phase
        self._inlined = inlined
        self._until_graph = _WARMUP if graphed else -1  # calls until a CUDA graph of it is replayed
        self._inputs = list(module.graph.find_nodes(op="placeholder"))
        (output,) = module.graph.find_nodes(op="output")
        self._output = _plain(output.args[0])
        steps = kernels_of(module.graph, phase)
        in_place = reused_buffers(module.graph, steps, donated)
        self._steps = list(_with_ends(steps, set(output.all_input_nodes), in_place))
        self._arguments = {
            step.node: (_plain(step.node.args), _plain(step.node.kwargs))
            for step in steps
            if isinstance(step, NodeCall)
        }

    def __call__(self, arguments: list[Any]) -> Any:
        """Run the graph."""
        recorder = self._mode.recorder
        if self._inlined is None or recorder.modules.active or torch._C._current_graph_task_id() != -1:
            return self._run(arguments)
        recorder.inlined.add(id(self), self._inlined)
        with recorder.modules.inlined(self._inlined.name):
            return self._run(arguments)

    def _run(self, arguments: list[Any]) -> Any:
        recorder = self._mode.recorder
        backward = self._phase == "backward"
        call = self._calls.of_backward() if backward else self._calls.begin(recorder.modules.innermost())
        values = dict(zip(self._inputs, arguments, strict=True))
        arguments.clear()
        before = recorder.compiled
        is_replayed = self._until_graph == 0
        self._until_graph -= self._until_graph > 0
        try:
            with recorder.launches.one_launch() if is_replayed else nullcontext():
                self._run_steps(call, values)
        finally:
            recorder.compiled = before
        return _filled(self._output, values)

    def _run_steps(self, call: Call, values: dict[fx.Node, Any]) -> None:
        recorder, backward = self._mode.recorder, self._phase == "backward"
        for step in self._steps:
            layer = ".".join(filter(None, (call.module, step.what.layer)))
            number = None if isinstance(step.what, KernelLaunch) else step.what.autograd
            link = call.operators.get(number) if backward and number is not None else None
            recorder.compiled = CompiledLayer(layer, backward, link)
            before = len(recorder.step.operators)
            if isinstance(step.what, NodeCall):
                values[step.what.node] = self._call(step.what, values)
            else:
                self._launch(step.what, step.in_place, values)
            if number is not None and not backward and len(recorder.step.operators) > before:
                call.operators[number] = before
            for node in step.over:
                values.pop(node, None)

    def _call(self, call: NodeCall, values: dict[fx.Node, Any]) -> Any:
        node = call.node
        if node.op == "get_attr":
            return getattr(self._module, str(node.target))
        given, named = (_filled(part, values) for part in self._arguments[node])
        if call.scatters:  # it writes as many bytes as it reads
            changed, *others = tree_leaves(given)
            self._mode.recorder.operator("aten::index_put_", {}, [one for one in others if on_device(one)], ())
            storage_contents.forget(changed)
            return changed
        if node.target in _FLEX:
            return self._flex(node, given)
        with nullcontext() if call.recorded else self._mode.muted():
            if str(node.target).startswith(_RANDOM):
                made = node.meta["val"]
                return torch.empty(made.shape, dtype=made.dtype, device=made.device)
            return node.target(*given, **named)  # type: ignore[operator]

    def _flex(self, node: fx.Node, given: Iterable[Any]) -> Any:
        """Record flex attention, or its gradient: its tensors are those ahead of the functions for scores and masks."""
        with self._mode.muted():
            made = tree_map_only(torch.Tensor, _empty, node.meta["val"])
        reads = [one for one in given if isinstance(one, torch.Tensor)]
        note_mask(self._mode, given)
        self._mode.recorder.operator(node.target.name(), {}, reads, tree_leaves(made))  # type: ignore[union-attr]
        return made

    def _launch(self, launch: KernelLaunch, in_place: tuple[Reuse, ...], values: dict[fx.Node, Any]) -> None:
        recorder = self._mode.recorder
        reads, writes = (_on_device(places, values) for places in (launch.reads, launch.writes))
        if not writes:
            return
        captured = recorder.graph is not None  # a CUDA graph, which keeps the tensors of its calls
        pairs = (
            [] if captured else [tuple(_value(place, values).untyped_storage() for place in pair) for pair in in_place]
        )
        with recorder.storages.computing_in_place(pairs) if pairs else nullcontext():
            recorder.operator(launch.name, launch.attributes, reads, writes)


def _empty(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


def _on_device(places: Iterable[Place], values: dict[fx.Node, Any]) -> list[Any]:
    return [one for place in places if on_device(one := _value(place, values))]


def _value(place: Place, values: dict[fx.Node, Any]) -> Any:
    node, index = place
    return values[node] if index is None else values[node][index]


def _with_ends(
    steps: list[NodeCall | KernelLaunch], kept: set[fx.Node], in_place: Mapping[int, tuple[Reuse, ...]]
) -> Iterator[_Step]:
    """Yield the steps with the nodes that no later one needs, except the graph's results."""
    last: dict[fx.Node, int] = {}
    for number, step in enumerate(steps):
        if isinstance(step, NodeCall):
            used = [step.node, *step.node.all_input_nodes]
        else:
            used = [node for node, _ in (*step.reads, *step.writes)]
        last.update(dict.fromkeys(used, number))
    over: dict[int, list[fx.Node]] = {}
    for node, number in last.items():
        if node not in kept:
            over.setdefault(number, []).append(node)
    for number, step in enumerate(steps):
        yield _Step(step, tuple(over.get(number, ())), in_place.get(number, ()))


def _plain(value: Any) -> Any:
    """Return arguments of a node in ordinary lists and dictionaries."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return tuple([_plain(one) for one in value])
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return value


def _filled(value: Any, values: dict[fx.Node, Any]) -> Any:
    """Return arguments with the nodes in them replaced by their values."""
    kind = type(value)
    if kind is list or kind is tuple:
        return kind([_filled(one, values) for one in value])
    if kind is dict:
        return {key: _filled(one, values) for key, one in value.items()}
    return values[value] if isinstance(value, fx.Node) else value
