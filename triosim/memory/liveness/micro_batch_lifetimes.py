"""The lifetimes of what one micro-batch allocates in a stage of a program (liveness analysis).

A tensor lives from the operator that makes it to the last one that reads it, or, where a capture recorded its storage, until
that was freed. Where an operator reads more bytes of a tensor than its maker wrote, the rest was gathered from other ranks,
and where it reads fewer, the tensor was scattered: each is memory of its own. What tensor parallelism gathers in the forward
pass and again in the backward pass is freed in between; what it gathers once is kept. Parameters, buffers, optimizer states
and inputs persist, and are not followed here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triosim.extrapolators.core.memory import LoadActivations, StoreActivations
from triosim.extrapolators.core.program import Await, Block, Communicate, Gradient, Program, SendToStage, TransferKey
from triosim.extrapolators.core.program.kept_programs import Kept
from triosim.extrapolators.core.program.shape_differences import ShapeDifferences
from triosim.memory.liveness.away import AwayTensors
from triosim.memory.liveness.lifetimes import COLUMN, MEMORY_CATEGORIES, PERSISTENT, whole_blocks
from triosim.memory.liveness.logits import kept_for_loss
from triosim.memory.liveness.module_inputs import module_inputs
from triosim.operators.features import base_name
from triosim.trace import Category, Operator, Storage, Tensor, Trace


@dataclass(slots=True, eq=False)
class MicroBatchLifetime:
    """Memory that a micro-batch takes: from operator ``born`` to operator ``last``, counted over all passes.

    ``storage`` is None for a buffer. Clocks are those of birth and death in the capture, where it has them. What outlives the
    micro-batch, such as a complete gradient, the rank keeps under the key ``kept_as``, in bytes that are the rank's to say.
    """

    nbytes: float
    category: Category
    layer: str
    shape: tuple[int, ...]
    dtype: str
    stream: str
    born: int
    storage: int | None
    last: int = field(init=False)
    gathered: bool = False
    recomputed: bool = False
    birth_clock: int | None = None
    death_clock: int | None = None
    kept_as: Hashable | None = None

    def __post_init__(self) -> None:
        self.last = self.born


class LifetimeChange(NamedTuple):
    """The birth or death of a lifetime at the operator with position ``position``."""

    number: int
    birth: bool
    position: int


@dataclass(slots=True, eq=False)
class MicroBatchLifetimes:
    """The lifetimes of a micro-batch in a stage, in order of birth.

    ``offsets`` say at which operator each pass begins, ``starts[i]`` is the first change of operator ``i``. ``totals[i]`` are
    the live bytes after ``i`` changes, and ``bytes[i]`` those by category. ``kept`` are the deaths of what the rank keeps.
    """

    items: list[MicroBatchLifetime]
    changes: list[LifetimeChange]
    offsets: Mapping[str, int]
    starts: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    totals: npt.NDArray[np.int64]
    kept: list[int]
    layers: list[str]


class ProgramStorages:
    """The storages of a whole program: which persist, which are parameters, and what was captured of them.

    ``part`` are those alone in which other programs differ from it, where such ``differences`` are given.
    """

    #: The operators that use, keep or free what is followed; None for all.
    operators: Set[int] | None = None

    def __init__(self, program: Program, trace: Trace, differences: ShapeDifferences | None = None) -> None:
        blocks = program.blocks
        #: The storage of a parameter, by the ids that it goes by.
        self.parameters: dict[int, int] = {}
        #: What lives longer than its readers, by the operator until which it does.
        self.kept_until = {**program.kept_until, **_kept_for_loss(program, trace)}
        #: The inputs of modules, which live until these return, by their last operator.
        self.module_inputs = {} if trace.storages else module_inputs(program)
        #: Whether an input that was gathered is one tensor for all of a module, as where DTensor gathers it ahead.
        self.gathered_ahead = program.stack is None or program.stack.tensor_parallelism == "dtensor"
        made = frozenset[int]().union(*(block.tensors.made for block in blocks))
        first: dict[int, Tensor] = {}  # by storage
        for block in reversed(blocks):
            first.update(block.tensors.first)
            self.parameters.update(block.tensors.parameters)
        self.persistent = {  # by storage: whether it existed before the step, and is not followed
            storage: tensor.category in PERSISTENT or (storage not in made and tensor.category != "temporary")
            for storage, tensor in first.items()
        }
        self.captured = CapturedStorages(trace, first)
        #: Stands for what lifetimes follow from beside blocks: one object for all programs in which that is equal. None where
        #: they cannot be shared: those of a capture.
        self.known_by: object = None if trace.storages else _KNOWN.get(_Storages(self), object)
        items = (item for block in blocks for item in block.items)
        self.sent_bytes = {item.key: item.nbytes for item in items if isinstance(item, SendToStage)}
        self.part = None if differences is None else DifferingStorages(program, trace, differences)
        #: Whether what the step finds is the same in the other programs.
        self.held_alike = differences is not None and not any(map(self.persistent.__getitem__, differences.storages))


def _kept_for_loss(program: Program, trace: Trace) -> dict[int, frozenset[int]]:
    """Return what lives until the loss is computed, by its operator's id, where no capture says when it was freed."""
    if trace.storages or not program.training:
        return {}
    forward = (block for block in reversed(program.blocks) if block.phase == "forward")
    return kept_for_loss(operator for block in forward for operator in reversed(block.operators))


class _Storages:
    """The facts of a program's storages that lifetimes follow from."""

    def __init__(self, of: ProgramStorages) -> None:
        self._facts: tuple[Mapping[int, object], ...] = of.persistent, of.parameters, of.kept_until, of.module_inputs
        self._gathered_ahead = of.gathered_ahead

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Storages) and (
            self is other or (self._gathered_ahead, self._facts) == (other._gathered_ahead, other._facts)
        )

    def __hash__(self) -> int:
        return hash(tuple(map(len, self._facts)))


#: Those of the programs that were used last.
_KNOWN = Kept[object](16)


class DifferingStorages(ProgramStorages):
    """The storages of a program in which other programs differ from it: no others are followed."""

    def __init__(self, program: Program, trace: Trace, differences: ShapeDifferences) -> None:
        super().__init__(program, trace)
        self.known_by = None
        hidden = (one.id for number in differences.operators for one in self.captured.hidden.get(number, ()))
        storages = self.storages = differences.storages.union(hidden)
        self.persistent = {one: persists or one not in storages for one, persists in self.persistent.items()}
        self.operators = {
            operator.id
            for operator in program.operators
            if operator.id in differences.operators
            or any(tensor.storage in storages for tensor in (*operator.inputs, *operator.outputs))
            or any(one.id in storages for one in self.captured.freed.get(operator.id, ()))
            or not storages.isdisjoint(self.kept_until.get(operator.id, ()))
            or not storages.isdisjoint(self.module_inputs.get(operator.id, ()))
        }


class CapturedStorages:
    """The storages that a capture recorded: when each was freed, and those that are no operator's input or output."""

    def __init__(self, trace: Trace, shown: Mapping[int, Tensor]) -> None:
        self.storages: dict[int, Storage] = {}
        self.freed: dict[int, list[Storage]] = {}  # by the operator that ran when they were freed
        self.hidden: dict[int, list[Storage]] = {}  # no operator's; by the operator that ran when they were made
        self.persistent: list[Storage] = []  # hidden, and there for the whole step
        self.outlive: set[int] = set()  # freed by the optimizer, or not in the step
        self.sizes: dict[int, int] = {}  # of the largest tensor of a storage, as captured
        self.written: dict[int, int] = {}  # by operator: bytes of its outputs, as captured
        if not trace.storages:
            return
        numbers = [operator.id for operator in trace.operators]
        optimizer = next((i for i, one in enumerate(trace.operators) if one.phase == "optimizer"), len(numbers))
        for operator in trace.operators:
            self.written[operator.id] = sum(tensor.nbytes for tensor in operator.outputs)
            for tensor in (*operator.inputs, *operator.outputs):
                self.sizes[tensor.storage] = max(self.sizes.get(tensor.storage, 0), tensor.nbytes)
        for one in trace.storages:
            if not one.nbytes or (one.died or 0) < 0:
                continue
            if one.id not in shown:
                if one.born < 0 or one.operator < 0:
                    if one.died is None:
                        self.persistent.append(one)
                    continue
                self.hidden.setdefault(numbers[one.operator], []).append(one)
            else:
                self.storages[one.id] = one
            if one.died is not None and one.last_operator is not None and one.last_operator >= 0:
                self.freed.setdefault(numbers[one.last_operator], []).append(one)
            if one.died is None or (one.last_operator or 0) >= optimizer > one.operator:
                self.outlive.add(one.id)

    def scale(self, storage: int, nbytes: float) -> float:
        """Return the bytes of a storage of which the largest tensor now has ``nbytes``."""
        size = self.sizes.get(storage)
        found = self.storages.get(storage)
        return nbytes if found is None or not size else nbytes * found.nbytes / size


@dataclass(slots=True)
class _TensorMemory:
    """The lifetimes of a tensor by the bytes that operators read; ``generation`` counts how often its storage was allocated."""

    generation: int
    nbytes: int
    lifetimes: dict[int, MicroBatchLifetime]


class MicroBatchLiveness:
    """Finds the lifetimes over the passes of a micro-batch; or, with ``receives`` off, over the optimizer."""

    def __init__(self, storages: ProgramStorages, gradients: Iterable[Gradient] = (), *, receives: bool = True) -> None:
        self._storages = storages
        self._receives = receives
        captured = storages.captured
        self._is_captured = bool(captured.hidden or captured.freed)
        self._kept_until = storages.kept_until
        self._ready: dict[int, list[Gradient]] = {}
        for gradient in gradients:
            self._ready.setdefault(gradient.ready, []).append(gradient)
        self._items: list[MicroBatchLifetime] = []
        self._layers: list[str] = []
        self._offsets: dict[str, int] = {}
        self._current: dict[int, MicroBatchLifetime] = {}
        self._generations: dict[int, int] = {}
        self._seen: dict[int, _TensorMemory] = {}
        # What was gathered, and in which pass, by storage, generation and bytes.
        self._whole: dict[tuple[int, int, int], tuple[MicroBatchLifetime, str]] = {}
        self._gathered_inputs: dict[int, list[MicroBatchLifetime]] = {}  # by storage
        self._scattered: dict[tuple[MicroBatchLifetime, float], MicroBatchLifetime] = {}
        self._rotating: dict[TransferKey | None, MicroBatchLifetime] = {}  # buffers that are being received, by key
        self._away = AwayTensors()
        self._pass = ""
        self._gathered: set[float] = set()  # bytes of each tensor that this pass has gathered

    def add_pass(self, name: str, blocks: Iterable[Block]) -> None:
        """Add the blocks of a pass, after those of the passes before."""
        self._pass = name
        self._gathered = set()
        self._offsets[name] = len(self._layers)
        followed = self._storages.operators
        for block in blocks:
            if followed is not None and _are_operators_alone(block) and followed.isdisjoint(block.operator_ids):
                self._layers += [operator.layer for operator in block.operators]
                continue
            arriving: Communicate | None = None  # an all-to-all; the next operator reorders what it brings
            for item in block.items:
                if isinstance(item, Operator):
                    if arriving is not None:
                        self._buffer(_arriving_bytes(arriving, item), block.layer)
                        arriving = None
                    if followed is None or item.id in followed:
                        self._operator(item)
                    else:
                        self._layers.append(item.layer)
                elif isinstance(item, Communicate) and item.kind == "all_to_all":
                    arriving = item if item.nbytes else None
                elif isinstance(item, Communicate) and item.kind in ("all_gather", "rotate"):
                    if item.operator is not None or item.key is not None:  # an input; others are gradients
                        self._gathered.add(item.nbytes)
                    if item.kind == "rotate":
                        self._rotating[item.key] = self._buffer(item.nbytes, block.layer)
                elif isinstance(item, StoreActivations):
                    moved = [self._current[one] for one in item.storages if one in self._current]
                    if isinstance(item, LoadActivations):
                        self._away.come_back(moved, len(self._layers))
                    else:
                        self._away.begin_to_leave(item.key, moved)
                elif isinstance(item, Await) and item.key in self._rotating:
                    self._rotating.pop(item.key).last = len(self._layers)  # the next operator reads it
                elif isinstance(item, Await):
                    self._away.left(item.key, len(self._layers) - 1)

    def _buffer(self, nbytes: float, layer: str) -> MicroBatchLifetime:
        """Add a buffer that is received while the next operator runs."""
        return self._add(MicroBatchLifetime(nbytes, "communication", layer, (), "", "compute", len(self._layers), None))

    def _add(self, lifetime: MicroBatchLifetime) -> MicroBatchLifetime:
        self._items.append(lifetime)
        return lifetime

    # ---- operators ----------------------------------------------------------------------------------------------

    def _operator(self, operator: Operator) -> None:
        position = len(self._layers)
        self._layers.append(operator.layer)
        persistent = self._storages.persistent
        here: dict[int, MicroBatchLifetime | None] = {}
        for tensor in operator.inputs:
            if not persistent[tensor.storage]:
                here[tensor.storage] = self._read(tensor, operator, position)
        fresh: dict[int, MicroBatchLifetime] = {}
        for tensor in operator.outputs:
            storage = tensor.storage
            if persistent[storage]:
                continue
            nbytes = tensor.nbytes
            lifetime = here[storage] if storage in here else fresh.get(storage)
            if lifetime is None:
                if storage in here:
                    continue  # the optimizer writes a gradient
                lifetime = fresh[storage] = self._make(tensor, nbytes, operator, position)
            elif storage in fresh:
                lifetime.nbytes = max(lifetime.nbytes, self._storages.captured.scale(storage, nbytes))
            lifetime.last = position
            self._seen[tensor.id] = _TensorMemory(self._generations[storage], nbytes, {nbytes: lifetime})
        for storage in self._kept_until.get(operator.id, ()):
            if storage in self._current:
                self._current[storage].last = max(self._current[storage].last, position)
        for storage in self._storages.module_inputs.get(operator.id, ()):
            for held in (self._current.get(storage), *self._gathered_inputs.get(storage, ())):
                if held is not None:
                    held.last = max(held.last, position)
        if self._is_captured:
            self._capture(operator, position)
        if operator.id in self._ready:
            for gradient in self._ready[operator.id]:
                self._complete(gradient, operator, position)

    def _make(self, tensor: Tensor, nbytes: int, operator: Operator, position: int) -> MicroBatchLifetime:
        storage, captured = tensor.storage, self._storages.captured
        lifetime = self._new(tensor, captured.scale(storage, nbytes), operator, position)
        self._current[storage] = lifetime
        self._gathered_inputs.pop(storage, None)
        self._generations[storage] = self._generations.get(storage, 0) + 1
        found = captured.storages.get(storage)
        if found is not None:
            lifetime.birth_clock = found.born
        return lifetime

    def _new(self, tensor: Tensor, nbytes: float, operator: Operator, position: int) -> MicroBatchLifetime:
        layer, stream = operator.layer, operator.stream
        what = tensor.category, layer, tensor.shape, tensor.dtype, stream
        lifetime = MicroBatchLifetime(nbytes, *what, position, tensor.storage)
        lifetime.recomputed = operator.recomputed
        return self._add(lifetime)

    def _read(self, tensor: Tensor, operator: Operator, position: int) -> MicroBatchLifetime | None:
        seen = self._seen.get(tensor.id)
        lifetime = self._current.get(tensor.storage)
        if lifetime is None:
            if not self._receives or self._adds_up(operator):
                return None
            # It came from another stage.
            lifetime = self._make(tensor, tensor.nbytes, operator, self._offsets[self._pass])
        nbytes, generation = tensor.nbytes, self._generations[tensor.storage]
        if seen is None or seen.generation != generation:
            seen = self._seen[tensor.id] = _TensorMemory(generation, nbytes, {nbytes: lifetime})
        found = seen.lifetimes.get(nbytes)
        if found is None:
            found = self._in_other_size(seen, tensor, operator, position)
        found.last = max(found.last, position)
        return found

    def _adds_up(self, operator: Operator) -> bool:
        """Whether an operator adds to a gradient of which another stage holds a part until the step ends."""
        of_parameter = operator.id in self._ready or any(tensor.parameter is not None for tensor in operator.outputs)
        return of_parameter and base_name(operator.name) in ("add", "add_")

    def _in_other_size(
        self, seen: _TensorMemory, tensor: Tensor, operator: Operator, position: int
    ) -> MicroBatchLifetime:
        """Return what an operator reads of a tensor whose maker wrote more (it was scattered) or less (it was gathered)."""
        base = seen.lifetimes[seen.nbytes]
        if tensor.nbytes < seen.nbytes:
            share = tensor.nbytes / seen.nbytes
            lifetime = self._scattered.get((base, share))
            if lifetime is None:
                lifetime = self._scattered[base, share] = self._new(tensor, base.nbytes * share, operator, position)
                lifetime.category, lifetime.layer = base.category, base.layer
                self._current[tensor.storage] = lifetime
            seen.lifetimes[tensor.nbytes] = lifetime
            return lifetime
        base.last = max(base.last, position)
        what = tensor.storage, seen.generation, tensor.nbytes
        found = self._whole.get(what)
        if found is None or (found[1] != self._pass and tensor.nbytes in self._gathered):
            lifetime = self._new(tensor, float(tensor.nbytes), operator, position)
            lifetime.gathered = True
            found = self._whole[what] = lifetime, self._pass
            if self._storages.gathered_ahead:
                self._gathered_inputs.setdefault(tensor.storage, []).append(lifetime)
        return found[0]

    def _capture(self, operator: Operator, position: int) -> None:
        """Let captured storages live until the capture freed them, and add those that are no operator's output."""
        captured = self._storages.captured
        for one in captured.hidden.get(operator.id, ()):
            before = captured.written.get(operator.id)
            scale = sum(tensor.nbytes for tensor in operator.outputs) / before if before else 1.0
            size = one.nbytes * scale
            what = one.category, one.layer, one.shape, one.dtype, one.stream
            lifetime = MicroBatchLifetime(size, *what, position, one.id)
            lifetime.birth_clock = one.born
            self._current[one.id] = self._add(lifetime)
        for one in captured.freed.get(operator.id, ()):
            freed = self._current.get(one.id)
            if freed is not None and position >= freed.last:
                freed.last = position
                freed.death_clock = one.died

    def _complete(self, gradient: Gradient, operator: Operator, position: int) -> None:
        """Note that a gradient is complete for this micro-batch, and goes to what the rank keeps."""
        storage = gradient.parameter.storage
        outputs = [t for t in operator.outputs if t.parameter is not None]
        mine = next((t for t in outputs if self._storages.parameters.get(t.parameter or 0) == storage), None)
        lifetime = None if mine is None else self._current.get(mine.storage)
        if lifetime is None:
            lifetime = self._new(gradient.parameter, 0.0, operator, position)
        lifetime.category, lifetime.layer = "gradient", gradient.layer
        lifetime.kept_as, lifetime.last = ("gradient", storage), position

    # ---- the result ---------------------------------------------------------------------------------------------

    def lifetimes(self) -> MicroBatchLifetimes:
        """Return all lifetimes in order of birth."""
        positions = len(self._layers)
        for storage in self._storages.captured.outlive if self._pass != "optimizer" else ():
            left = self._current.get(storage)
            if left is not None and left.kept_as is None:
                left.last, left.kept_as = positions - 1, ("left", storage)
        ends = sorted([*self._offsets.values(), positions])
        for lifetime in self._items:
            lifetime.born, lifetime.last = min(lifetime.born, positions - 1), min(lifetime.last, positions - 1)
            lifetime.category = self._category(lifetime, ends)
        self._items += self._away.divide()
        numbers, births, places = self._in_order()
        changes = list(map(LifetimeChange, numbers.tolist(), births.tolist(), places.tolist()))
        sizes = np.array([whole_blocks(one.nbytes) for one in self._items], np.int64)[numbers]
        columns = np.array([COLUMN[one.category] for one in self._items], np.int64)[numbers]
        change = np.zeros((len(changes) + 1, len(MEMORY_CATEGORIES)), np.int64)
        change[np.arange(1, len(change)), columns] = np.where(births, sizes, -sizes)
        starts = np.searchsorted(places, np.arange(positions + 1))
        found = np.cumsum(change, axis=0)
        kept = np.array([one.kept_as is not None for one in self._items], bool)[numbers] & ~births
        return MicroBatchLifetimes(
            self._items,
            changes,
            self._offsets,
            starts,
            found,
            found.sum(axis=1),
            np.flatnonzero(kept).tolist(),
            self._layers,
        )

    def _in_order(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Return the changes in order: the number of the lifetime, whether it is born, the position of the operator."""
        keys = [
            key
            for one in self._items
            for key in ((one.born, *_order(one.birth_clock, 0)), (one.last, *_order(one.death_clock, 2)))
        ]
        places, order, clocks = np.array(keys, np.int64).reshape(len(keys), 3).T
        by = np.lexsort((clocks, order, places))  # equal ones as they are: a birth first
        return by // 2, by % 2 == 0, places[by]

    def _category(self, lifetime: MicroBatchLifetime, ends: list[int]) -> Category:
        """Return the category: activations are read by a later pass; what dies in the pass that made it is temporary."""
        if lifetime.kept_as is not None or lifetime.category in ("output", "communication", "input"):
            return lifetime.category
        if self._pass == "optimizer":
            return "temporary"
        forward_alone = len(self._offsets) == 1
        outlives = any(lifetime.born < end <= lifetime.last for end in ends)
        if lifetime.gathered and not outlives:
            return "communication"
        return "activation" if outlives or lifetime.recomputed or forward_alone else "temporary"


def _are_operators_alone(block: Block) -> bool:
    return len(block.operators) == len(block.items)


def _arriving_bytes(sent: Communicate, reordered: Operator) -> float:
    """Return the bytes of an all-to-all's buffer: as many as the largest share makes, at most what is made of them."""
    most = sum(tensor.nbytes for tensor in reordered.outputs)
    if sent.shares is None or sent.nbytes >= most:  # shares that differ come to no less than equal ones
        return min(sent.nbytes, most)
    return min(max(sent.shares) * len(sent.shares), most)


def _order(clock: int | None, otherwise: int) -> tuple[int, int]:
    """Return a sort key among the changes of one operator: births first and deaths last, unless a capture has their clock."""
    return (otherwise, 0) if clock is None else (1, clock)
