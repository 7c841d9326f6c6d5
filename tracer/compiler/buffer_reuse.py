"""Which kernels of a compiled graph compute in place: they write a result where an input lay that nothing needs afterwards.

As TorchInductor decides it (``decide_inplace_update`` in ``torch/_inductor/scheduler.py``): input and result have one dtype and
size, and the kernel reads and writes them in one order. The input is a result of the same graph, or what the forward pass saved
for this one backward pass ("donated" in PyTorch).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from triosim.tracer.compiler.graph_kernels import KernelLaunch, NodeCall, Place, reads_in_order

#: An input of a kernel, and the result that takes its bytes.
Reuse = tuple[Place, Place]


def reused_buffers(
    graph: fx.Graph, steps: Sequence[NodeCall | KernelLaunch], donated: Collection[int]
) -> dict[int, tuple[Reuse, ...]]:
    """Return what the kernels among a graph's steps compute in place, by the step's number.

    ``donated`` are the positions of the arguments that nothing else needs.
    """
    made = _made_here(graph, donated)
    last: dict[int, int] = {}  # by storage: the last step that uses it
    for number, step in enumerate(steps):
        last.update(dict.fromkeys(_used(step), number))
    found: dict[int, tuple[Reuse, ...]] = {}
    for number, step in enumerate(steps):
        if isinstance(step, KernelLaunch):
            over = {storage for storage in made if last.get(storage) == number}
            if pairs := tuple(_pairs(step, over, made)):
                found[number] = pairs
    return found


def _made_here(graph: fx.Graph, donated: Collection[int]) -> set[int]:
    """Return the storages that are the graph's own, and that it does not return."""
    placeholders = graph.find_nodes(op="placeholder")
    given = {storage for node in placeholders for storage in _storages(node)}
    own = {storage for position in donated for storage in _storages(placeholders[position])}
    own |= {storage for node in graph.nodes if node.op == "call_function" for storage in _storages(node)} - given
    (output,) = graph.find_nodes(op="output")
    return own - {storage for node in output.all_input_nodes for storage in _storages(node)}


def _pairs(launch: KernelLaunch, over: set[int], made: set[int]) -> Iterator[Reuse]:
    reads = [place for place in launch.reads if _storage(place) in over and _fills_its_storage(_value(place))]
    results = {_storage(place): place for place in launch.writes}
    for write in results.values():
        into = _value(write)
        for read in reads:
            if _value(read).dtype == into.dtype and _order(_value(read)) == _order(into) and _in_order(launch, read):
                reads.remove(read)
                yield read, write
                break


def _in_order(launch: KernelLaunch, place: Place) -> bool:
    """Whether every part of a kernel that reads an input does so in the order in which it lies."""
    storage, order = _storage(place), _order(_value(place))
    for part in launch.parts:
        read = [node for node in part.all_input_nodes if storage in _storages(node)]
        if read and not (reads_in_order(part) and all(_order(node.meta["val"]) == order for node in read)):
            return False
    return True


def _order(value: torch.Tensor) -> tuple[tuple[int, int], ...]:
    """Return the sizes and strides of the loops that pass a tensor's elements, as few as there can be."""
    loops: list[tuple[int, int]] = []
    for size, stride in zip(value.shape, value.stride(), strict=True):
        if size == 1:
            continue
        if loops and loops[-1][1] == size * stride:
            loops[-1] = (loops[-1][0] * size, stride)
        else:
            loops.append((size, stride))
    return tuple(loops)


def _fills_its_storage(value: torch.Tensor) -> bool:
    return value.numel() * value.element_size() == value.untyped_storage().nbytes()


def _used(step: NodeCall | KernelLaunch) -> Iterable[int]:
    if isinstance(step, NodeCall):
        return [storage for node in (step.node, *step.node.all_input_nodes) for storage in _storages(node)]
    return [storage for node, _ in (*step.reads, *step.writes) for storage in _storages(node)]


def _storages(node: fx.Node) -> list[int]:
    """Return the addresses of the storages of a node's results on the device."""
    value = node.meta.get("val")
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)
    tensors = [one for one in values if isinstance(one, torch.Tensor) and one.device.type == "cuda"]
    return [one.untyped_storage()._cdata for one in tensors]


def _storage(place: Place) -> int:
    return int(_value(place).untyped_storage()._cdata)


def _value(place: Place) -> Any:
    node, index = place
    value = node.meta["val"]
    return value if index is None else value[index]
