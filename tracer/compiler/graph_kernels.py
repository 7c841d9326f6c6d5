"""The kernels of a graph of the compiler: which of its nodes are one, and what each kernel reads and writes.

The graph is one that PyTorch's compiler hands to its code generator: decomposed, without changes in place but the last, and
divided into forward and backward pass. Its nodes become kernels by the rules of described models
(``triosim.models.compilation``).
"""

from __future__ import annotations

import operator as operators
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from triosim.models.compilation import Fusion
from triosim.operators.features import base_name
from triosim.operators.kinds import kind_of
from triosim.trace import Category, Operator, Phase, Tensor
from triosim.tracer.device.operators.operator_info import OperatorInfo

#: Operators that TorchInductor computes inside of kernels (``torch/_inductor/lowering.py``), beside those of described models.
_ALSO = frozenset(
    (
        *("foreach_", "convert_element_type", "index", "gather", "embedding", "index_select", "select_scatter"),
        *("slice_scatter", "constant_pad_nd", "full", "full_like", "unsafe_index", "unsafe_masked_index", "any", "all"),
        *("argmax", "argmin", "rand", "randn", "inductor_random", "inductor_randint", "inductor_lookup_seed"),
        "low_memory_max_pool_offsets_to_indices",
    )
)
#: Of these, what reads or writes its tensors in another order than they lie in.
_OUT_OF_ORDER = frozenset(
    (
        *("index", "gather", "embedding", "index_select", "select_scatter", "slice_scatter", "constant_pad_nd"),
        *("unsafe_index", "unsafe_masked_index", "low_memory_max_pool_offsets_to_indices"),
    )
)
#: Constants, which each kernel that needs them makes itself.
_CONSTANTS = frozenset(("full", "scalar_tensor", "iota", "arange", "empty", "inductor_seeds"))

#: Changes of some rows of a tensor, which the compiler makes in place where nothing else needs that tensor.
_SCATTERS = frozenset(
    ("index_put", "unsafe_masked_index_put_accumulate", "scatter", "scatter_add", "scatter_reduce", "index_add")
)

#: The value of a node; of one with several results, a result.
Place = tuple[fx.Node, int | str | None]


@dataclass(frozen=True, slots=True)
class NodeCall:
    """A call of a node. One that is ``recorded`` is an operator, another one a part of a kernel, a view or a constant.

    One that ``scatters`` changes rows of its first argument, and returns that. ``autograd`` is PyTorch's number of the autograd
    node that the call makes or is of; a backward pass's recomputation has none.
    """

    node: fx.Node
    recorded: bool
    layer: str
    scatters: bool = False
    autograd: int | None = None


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """The launch of a kernel, after the calls of its ``parts``."""

    name: str
    attributes: dict[str, Any]
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]
    layer: str
    parts: tuple[fx.Node, ...]


def kernels_of(graph: fx.Graph, phase: Phase) -> list[NodeCall | KernelLaunch]:
    """Return what a graph does, in order. Raises ``ValueError`` where a size in it is not a number."""
    return list(_Planner(graph, phase).steps())


class _Planner:
    """Finds the operators of a graph's nodes, and the order in which kernels and other operators run."""

    def __init__(self, graph: fx.Graph, phase: Phase) -> None:
        self._node: dict[int, fx.Node] = {}  # by operator
        self._places: dict[int, Place] = {}  # by tensor
        self._tensors: dict[Place, Tensor] = {}
        self._storages: dict[int, int] = {}  # by PyTorch's address
        self._planned: set[fx.Node] = set()
        (output,) = graph.find_nodes(op="output")
        self._results = {key for node in output.all_input_nodes for key in _storages(node)}
        self._output = output
        self._again = frozenset[fx.Node]() if phase == "forward" else _recomputed(graph)
        self._forward = frozenset(graph.nodes) if phase == "forward" else self._again
        self._operators = [found for node in graph.nodes if (found := self._operator(node)) is not None]
        self._fusion = Fusion(self._operators, lambda operator: operator.phase, also=_ALSO)

    def steps(self) -> Iterator[NodeCall | KernelLaunch]:
        """Yield the calls and launches, each call after those of its arguments."""
        for operator in self._fusion.kernels():
            parts = self._fusion.members(operator)
            for part in parts or (operator.id,):
                yield from self._calls(self._node[part], recorded=not parts)
            if parts:
                reads = tuple([self._places[tensor.id] for tensor in operator.inputs])
                writes = tuple([self._places[tensor.id] for tensor in operator.outputs])
                nodes = tuple([self._node[part] for part in parts])
                yield KernelLaunch(operator.name, dict(operator.attributes), reads, writes, operator.layer, nodes)
        for node in self._output.all_input_nodes:
            yield from self._calls(node, recorded=False)

    def _calls(self, node: fx.Node, *, recorded: bool) -> Iterator[NodeCall]:
        """Yield the call of a node after the calls of its arguments that have not run yet: views and constants."""
        if node in self._planned or node.op not in ("call_function", "get_attr"):
            return
        self._planned.add(node)
        for other in node.all_input_nodes:
            yield from self._calls(other, recorded=False)
        autograd = node.meta.get("seq_nr") if recorded and node not in self._again else None
        yield NodeCall(node, recorded, _path(node), recorded and _scatters(node), autograd)

    def _operator(self, node: fx.Node) -> Operator | None:
        """Return a node's operator, and note its tensors; None for arguments, parts of results and constants."""
        if node.target is operators.getitem:
            parent, index = node.args
            if (parent, index) in self._tensors:
                self._tensors[node, None] = self._tensors[parent, index]  # type: ignore[index]
            return None
        changes = _changed(node)
        if node.op == "call_function" and self._is_inlined(node):
            return None
        outputs = tuple(self._outputs(node, changes))
        if node.op != "call_function":
            return None
        read = [one for one in node.all_input_nodes if one is not changes]
        inputs = tuple([self._tensors[one, None] for one in read if (one, None) in self._tensors])
        number = len(self._node) + 1
        self._node[number] = node
        name, attributes = _name_of(node)
        phase: Phase = "forward" if node in self._forward else "backward"
        return Operator(number, name, phase, _path(node), inputs, outputs, 0.0, attributes=attributes)

    def _outputs(self, node: fx.Node, changes: fx.Node | None) -> Iterator[Tensor]:
        """Yield the tensors on the device that a node returns; one that it changes is a new one, as in a compiler's graph."""
        value = node.meta.get("val")
        results = _results(value)
        for index, result in results:
            if not isinstance(result, torch.Tensor) or result.device.type != "cuda":
                continue
            key = _storage(result)
            if changes is not None:
                key = -1 - len(self._places)
            storage = self._storages.setdefault(key, len(self._storages))
            shape = tuple([_number(size) for size in result.shape])
            category: Category = "output" if changes is not None or key in self._results else "activation"
            number, dtype = len(self._places), str(result.dtype).removeprefix("torch.")
            self._tensors[node, index] = tensor = Tensor(number, shape, dtype, category, storage)
            self._places[number] = (node, index)
            yield tensor

    def _is_inlined(self, node: fx.Node) -> bool:
        """Whether a node is a constant that is made inside of kernels."""
        name = base_name(_name_of(node)[0])
        return name in _CONSTANTS and all(_is_fused(user) for user in node.users)


def _results(value: Any) -> Iterable[tuple[int | str | None, Any]]:
    """Return what a node returns, by position or name: a Triton kernel returns its arguments that it changes by name."""
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    return value.items() if isinstance(value, dict) else ((None, value),)


def _recomputed(graph: fx.Graph) -> frozenset[fx.Node]:
    """Return the nodes of a backward pass that need no gradient: what it computes again of the forward pass."""
    with_gradient: set[fx.Node] = set()
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.name.startswith("tangents") or not with_gradient.isdisjoint(node.all_input_nodes):
            with_gradient.add(node)
        else:
            found.add(node)
    return frozenset(found)


def reads_in_order(node: fx.Node) -> bool:
    """Whether a part of a kernel computes each element of its result from those at the same place, or of the same row."""
    return _is_fused(node) and base_name(_name_of(node)[0]) not in _OUT_OF_ORDER


def _is_fused(node: fx.Node) -> bool:
    name = base_name(_name_of(node)[0])
    return name in _ALSO or kind_of(name) in ("elementwise", "softmax", "reduction")


def _changed(node: fx.Node) -> fx.Node | None:
    """Return the argument into which a node copies, if it does: the graph's last change, of one of its inputs."""
    return node.args[0] if node.target is torch.ops.aten.copy_.default else None  # type: ignore[return-value]


def _scatters(node: fx.Node) -> bool:
    """Whether a node changes rows of a tensor that was made for it."""
    first = node.args[0] if node.args else None
    own = isinstance(first, fx.Node) and first.op == "call_function" and len(first.users) == 1
    return own and base_name(_name_of(node)[0]) in _SCATTERS


def _name_of(node: fx.Node) -> tuple[str, dict[str, Any]]:
    """Return the name and attributes of a node's operator."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return str(getattr(target, "__name__", target)), {}
    if _changed(node) is not None:
        return "aten::copy", {}
    if _marks_places(node):
        return "aten::where", {}
    info = OperatorInfo(target)
    given = [None if _has_nodes(value) else value for value in node.args]
    named = {key: value for key, value in node.kwargs.items() if not _has_nodes(value)}
    return info.name, info.attributes_of(tuple(given), named)


def _marks_places(node: fx.Node) -> bool:
    """Whether a node puts a number at one place of each row of a constant: the compiler compares positions instead.

    The gradient of a loss over classes begins so (``scatter_upon_const_tensor`` of TorchInductor).
    """
    if node.target is not torch.ops.aten.scatter.value:
        return False
    constant, dimension, places = node.args[:3]
    if not isinstance(constant, fx.Node) or constant.target is not torch.ops.aten.full.default:
        return False
    sizes, of_places = constant.meta["val"].shape, places.meta["val"].shape  # type: ignore[union-attr]
    along = dimension % len(sizes)  # type: ignore[operator]
    others = (number for number in range(len(sizes)) if number != along)
    return bool(of_places[along] == 1 and all(of_places[number] >= sizes[number] for number in others))


def _has_nodes(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(one, fx.Node) for one in value)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _storages(node: fx.Node) -> Iterator[int]:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        yield _storage(value)


def _number(size: Any) -> int:
    if not isinstance(size, int):
        raise ValueError(f"the size {size} is not known")
    return size


def _path(node: fx.Node) -> str:
    """Return the path of a node's module inside of what is compiled."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    text = str(list(stack.values())[-1][0])
    inner = text.partition("]")[2]
    return (
        re.sub(r"\.?\[['\"]?(\w+)['\"]?\]", r".\1", inner).replace("._modules", "").replace("._orig_mod", "").strip(".")
    )
