"""Kernel fusion as by ``torch.compile``: chains of element-wise operators become kernels that read and write memory once.

As TorchInductor does (Ansel et al., "PyTorch 2", ASPLOS 2024, section 4). Of a described step each numbered module is compiled
by itself, as people compile transformers; what is in no numbered module (embeddings, the last norm, the loss, the optimizer)
stays as it is. Of a captured one the compiler's graphs are (``triosim.tracer.compiler``).

- Element-wise operators, copies, and reductions over the last dimension that depend on each other are one kernel, up to an
  operator that is not one of these (a product, attention) and reads what they made. A kernel writes what others read.
- A reduction over rows (the gradient of a norm's weight) is a kernel of its own, which recomputes what it reads.
- A result that is another one in another type is not written for a later kernel, which converts again what it reads.
- The backward pass recomputes what the forward pass did not write to memory; small results, such as one number a row, are
  kept.
- What a view shows to every head of attention is in memory: ranks that have some of the heads each add its gradients up.
- Views, operators in place and those of the optimizer stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from triosim.operators.features import base_name, is_free
from triosim.operators.kinds import kind_of
from triosim.sharding.kernel_patterns import pattern_of
from triosim.sharding.step_dimensions import StepDimensions
from triosim.trace import Operator, Tensor, Trace
from triosim.trace.numbered_modules import ROOT, numbered_module_of

NAME = "fused::chain"
_FUSED = frozenset(("elementwise", "softmax", "copy"))
_NORMS = frozenset(("layer_norm", "native_layer_norm", "rms_norm"))
_MOVES = frozenset(("cat", "stack", "slice_backward", "select_backward"))
_REDUCTIONS = frozenset(("sum", "mean", "amax", "amin", "max", "min", "prod", "var_mean"))
_CONVERSIONS = frozenset(("to_copy", "convert_element_type"))
_FOR_EACH = "foreach_"
#: A result of which there is one number for so many of its kernel, or fewer, is kept for the backward pass.
_SMALL = 64


def compiled(trace: Trace) -> Trace:
    """Return a trace without times whose element-wise operators are the kernels that a compiler makes of them."""
    step = StepDimensions(trace.operators, trace.batch_size)
    return replace(trace, operators=tuple(Fusion(trace.operators, _numbered_module, step).kernels()))


def _numbered_module(operator: Operator) -> Hashable:
    """Return what is compiled with an operator of a described step: its pass of its numbered module; None for nothing."""
    module = numbered_module_of(operator.layer)
    return None if operator.phase == "optimizer" or module == ROOT else (operator.phase, module)


@dataclass(slots=True, eq=False)
class _Kernel:
    """Operators that are one kernel, which runs when the operator ``at`` did.

    ``rows``: it reduces over rows. ``of_lists``: it has a loop for each tensor of a list. It is ``closed``,
    and runs no later, once another operator reads what it made.
    """

    unit: Hashable
    phase: str
    rows: bool = False
    members: list[Operator] = field(default_factory=list)
    made: dict[int, Tensor] = field(default_factory=dict)  # by storage
    numel: int = 0
    of_lists: bool = False
    at: int = 0
    closed: bool = False
    read: set[int] = field(default_factory=set)  # storages


class Fusion:
    """Finds the kernels of operators in their order, and then the tensors that each reads and writes.

    Operators with the same ``unit_of`` are compiled together, those without one (None) are left as they are. ``also`` are the
    names of further operators that are parts of kernels. Where the dimensions of a ``step`` are known, heads are kept apart.
    """

    def __init__(
        self,
        operators: Sequence[Operator],
        unit_of: Callable[[Operator], Hashable],
        step: StepDimensions | None = None,
        also: frozenset[str] = frozenset(),
    ) -> None:
        self._operators = operators
        self._unit_of = unit_of
        self._step = step
        self._also = also
        self._maker: dict[int, Operator] = {}  # by storage: the operator in a kernel that made it
        self._base: dict[int, int] = {}  # elements by storage
        self._ready: dict[int, int] = {}  # by storage: the operator outside of kernels that made it
        self._readers: dict[int, _Kernel] = {}  # by storage: the last kernel that reads it
        self._kernel: dict[int, _Kernel] = {}  # by operator
        self._sources: dict[tuple[int, bool], dict[int, Tensor]] = {}
        for operator in operators:
            self._assign(operator)
        self._in_memory = self._find_in_memory()

    # ---- operators to kernels ------------------------------------------------------------------------------

    def _assign(self, operator: Operator) -> None:
        for tensor in (*operator.inputs, *operator.outputs):
            self._base.setdefault(tensor.storage, tensor.numel)
        form = self._form(operator)
        if form is None and is_free(operator):
            return
        read = dict.fromkeys(kernel for kernel in map(self._made_by, operator.inputs) if kernel is not None)
        into = self._joined(operator, list(read)) if form == "chain" else None
        for kernel in read:
            if kernel is not into and form != "rows":
                kernel.closed = True
        if form is None:
            self._ready.update((tensor.storage, operator.id) for tensor in operator.outputs)
            return
        if into is None:
            into = _Kernel(self._unit_of(operator), operator.phase, form == "rows", at=operator.id)
        elif not into.closed:
            into.at = operator.id
        into.members.append(operator)
        into.numel = max(into.numel, _numel(operator))
        into.of_lists = into.of_lists or base_name(operator.name).startswith(_FOR_EACH)
        self._kernel[operator.id] = into
        for tensor in operator.outputs:
            into.made[tensor.storage] = tensor
            self._maker[tensor.storage] = operator
        for tensor in operator.inputs:
            self._readers[tensor.storage] = into
            into.read.add(tensor.storage)

    def _joined(self, operator: Operator, made: list[_Kernel]) -> _Kernel | None:
        """Return the kernel that an operator becomes part of, if any; several that are not closed become one."""
        able = [one for one in made if self._takes(one, operator)]
        running = [one for one in able if not one.closed]
        for other in running[1:]:
            self._merge(running[0], other)
        readers = [self._readers[tensor.storage] for tensor in operator.inputs if tensor.storage in self._readers]
        same = (one for one in readers if one.numel == _numel(operator) and self._takes(one, operator))
        return (running or able)[0] if able else next(same, None)

    def _takes(self, kernel: _Kernel, operator: Operator) -> bool:
        """Whether an operator may be part of a kernel: in its module, of its size, and with all that it reads there in time.

        Of two sizes, the larger loop runs through the smaller one several times.
        """
        sizes = kernel.numel, _numel(operator)
        if kernel.rows or kernel.unit != self._unit_of(operator) or not min(sizes):
            return False
        of_lists = kernel.of_lists or base_name(operator.name).startswith(_FOR_EACH)
        if (max(sizes) % min(sizes) and not of_lists) or any(
            self._expands_to_heads(tensor, kernel.made) for tensor in operator.inputs
        ):
            return False
        others = [tensor for tensor in operator.inputs if tensor.storage not in kernel.made]
        makers = (self._made_by(tensor) for tensor in others)
        if any(of is not None and not of.read.isdisjoint(kernel.made) for of in makers):
            return False  # it reads this kernel's results by way of another kernel
        return not kernel.closed or all(self._is_ready(tensor, kernel.at) for tensor in others)

    def _expands_to_heads(self, tensor: Tensor, made: Mapping[int, Tensor]) -> bool:
        step = self._step
        return step is not None and tensor.storage in made and step.expands_to_heads(tensor, made[tensor.storage])

    def _is_ready(self, tensor: Tensor, at: int) -> bool:
        of = self._made_by(tensor)
        return (self._ready.get(tensor.storage, 0) if of is None else of.at) < at

    def _made_by(self, tensor: Tensor) -> _Kernel | None:
        maker = self._maker.get(tensor.storage)
        return None if maker is None else self._kernel[maker.id]

    def _merge(self, into: _Kernel, other: _Kernel) -> None:
        into.members += other.members
        into.made |= other.made
        into.read |= other.read
        into.numel, into.at = max(into.numel, other.numel), max(into.at, other.at)
        into.of_lists = into.of_lists or other.of_lists
        for member in other.members:
            self._kernel[member.id] = into
        for storage, reader in self._readers.items():
            if reader is other:
                self._readers[storage] = into

    def _form(self, operator: Operator) -> Literal["chain", "rows"] | None:
        """Return whether an operator is part of a chain, reduces over rows, or is neither, as all outside of units."""
        if self._unit_of(operator) is None or operator.communication is not None:
            return None
        name = base_name(operator.name)
        given = {tensor.storage for tensor in operator.inputs}
        if any(tensor.storage in given for tensor in operator.outputs):
            return None
        if name.startswith(_FOR_EACH):
            return "chain" if _FOR_EACH in self._also else None
        if name in _REDUCTIONS and given:
            given_dims = operator.attributes.get("dim")
            dims = [given_dims] if isinstance(given_dims, int) else given_dims
            rank = len(operator.inputs[0].shape)
            return "chain" if isinstance(dims, list) and {dim % max(rank, 1) for dim in dims} == {rank - 1} else "rows"
        if name in self._also:
            return "chain"
        return "chain" if given and (name in _MOVES or name in _NORMS or kind_of(name) in _FUSED) else None

    # ---- inputs and outputs of kernels ----------------------------------------------------------------------------------

    def kernels(self) -> Iterable[Operator]:
        """Yield the operators that are left, and each kernel where its last member was."""
        reads = {kernel: self._read(kernel) for kernel in self._kernel.values()}
        wanted = {tensor.storage for read in reads.values() for tensor in read}
        for operator in self._operators:
            if operator.id not in self._kernel and not is_free(operator):
                wanted.update(tensor.storage for tensor in operator.inputs)
        ends = {number: kernel.at for number, kernel in self._kernel.items()}
        waiting: dict[int, list[Operator]] = {}  # views of a kernel's results, by its last member
        for operator in self._operators:
            kernel = self._kernel.get(operator.id)
            if kernel is not None:
                if operator.id == kernel.at:
                    written = self._written(kernel, reads[kernel], wanted, ends)
                    if written is None:
                        continue
                    after = max((of.at for of in map(self._made_by, written.inputs) if of is not None), default=0)
                    if after > operator.id:
                        waiting.setdefault(after, []).append(written)
                    else:
                        yield written
                    yield from waiting.pop(operator.id, ())
                continue
            linked = replace(operator, forward=ends.get(operator.forward or 0, operator.forward))
            of = next(filter(None, map(self._made_by, operator.inputs)), None) if is_free(operator) else None
            if of is not None and not any(tensor.storage in wanted for tensor in operator.outputs):
                ends[operator.id] = of.at  # a view that only the kernel had
            elif of is not None and of.at > operator.id:
                waiting.setdefault(of.at, []).append(linked)
            else:
                yield linked

    def members(self, kernel: Operator) -> tuple[int, ...]:
        """Return the ids of the operators that are in a kernel, none for an operator that is not fused."""
        of = self._kernel.get(kernel.id)
        return () if of is None else tuple([member.id for member in of.members])

    def _read(self, kernel: _Kernel) -> list[Tensor]:
        """Return the tensors that a kernel reads from memory, one a storage: where several views are read, the whole."""
        found: dict[int, Tensor] = {}
        for member in kernel.members:
            for tensor in member.inputs:
                if tensor.storage in kernel.made:
                    continue
                for source in self._sources_of(tensor, kernel):
                    before = found.get(source.storage)
                    if before is None or before.numel < source.numel <= self._base[source.storage]:
                        found[source.storage] = source
        return list(found.values())

    def _sources_of(self, tensor: Tensor, reader: _Kernel) -> Iterable[Tensor]:
        """Return the tensors in memory that a kernel reads for a tensor: itself, or those it is recomputed from."""
        of = self._made_by(tensor)
        if of is None or of is reader or of.rows or not self._recomputes(tensor, of, reader):
            return (tensor,)
        maker = self._maker[tensor.storage]
        key = maker.id, reader.rows
        if key not in self._sources:
            found: dict[int, Tensor] = {}
            for given in maker.inputs:
                inner = self._made_by(given)
                sources = (given,) if inner is None or self._small(given, of) else self._sources_of(given, reader)
                found.update((one.storage, one) for one in sources)
            self._sources[key] = found
        return self._sources[key].values()

    def _recomputes(self, tensor: Tensor, of: _Kernel, reader: _Kernel) -> bool:
        """Whether a kernel recomputes a result: a large one in no memory, for row sums or another pass, or of another type."""
        if self._small(tensor, of) or tensor.storage in self._in_memory:
            return False
        return reader.rows or of.phase != reader.phase or self._converted(tensor) is not None

    def _small(self, tensor: Tensor, of: _Kernel) -> bool:
        return self._base[tensor.storage] * _SMALL <= of.numel

    def _find_in_memory(self) -> frozenset[int]:
        """Return the storages that others than kernels read, or kernels of the same pass after the one that made them."""
        found: set[int] = set()
        for operator in self._operators:
            reader = self._kernel.get(operator.id)
            if reader is None and is_free(operator):
                continue
            for tensor in operator.inputs:
                of = self._made_by(tensor)
                if of is None or of is reader:
                    continue
                if reader is None or (not reader.rows and of.phase == reader.phase):
                    found.update(self._kept_for(tensor, reader))
        return frozenset(found)

    def _kept_for(self, tensor: Tensor, reader: _Kernel | None) -> Iterator[int]:
        """Yield the storage of a result that a later reader finds in memory: of a conversion, what a kernel converts again."""
        source = None if reader is None else self._converted(tensor)
        of = None if source is None else self._made_by(source)
        if source is None or of is reader:
            yield tensor.storage
        elif of is not None:
            yield source.storage

    def _converted(self, tensor: Tensor) -> Tensor | None:
        """Return what a result is, but for its type; None for what more was computed for."""
        maker = self._maker.get(tensor.storage)
        if maker is None or base_name(maker.name) not in _CONVERSIONS or len(maker.inputs) != 1:
            return None
        return maker.inputs[0] if maker.inputs[0].numel == tensor.numel else None

    def _written(
        self, kernel: _Kernel, read: list[Tensor], wanted: set[int], ends: Mapping[int, int]
    ) -> Operator | None:
        """Return a kernel's operator; None where all that it makes is computed again by those that read it."""
        last = next(member for member in kernel.members if member.id == kernel.at)
        made = [tensor for storage, tensor in kernel.made.items() if storage in wanted or _is_result(tensor)]
        if not made:
            return None
        forward = ends.get(last.forward or 0, last.forward)
        if len(kernel.members) == 1 and {one.storage for one in read} == {one.storage for one in last.inputs}:
            return replace(last, forward=forward)
        names = [base_name(member.name) for member in kernel.members]
        attributes: dict[str, Any] = {"operators": names}
        if (step := self._step) is not None:
            attributes["axes"] = pattern_of([step[tensor] for tensor in read], [step[tensor] for tensor in made])
        return replace(last, name=NAME, inputs=tuple(read), outputs=tuple(made), forward=forward, attributes=attributes)


def _numel(operator: Operator) -> int:
    return max(tensor.numel for tensor in (*operator.inputs, *operator.outputs))


def _is_result(tensor: Tensor) -> bool:
    """Whether a tensor outlives the step's operators: the loss, and gradients of parameters."""
    return tensor.category == "output" or (tensor.category == "gradient" and tensor.parameter is not None)
