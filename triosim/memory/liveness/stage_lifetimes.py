"""What one micro-batch makes on its way through a stage of a program, and how long that lives.

A tensor lives from the operator that makes it to the last one that reads it, or, where a capture followed its storage, until
that was freed. Where an operator reads more of a tensor than its maker left, the rest was gathered, and where it reads less, it
was scattered: each is memory of its own. What several ranks of tensor parallelism gather in the forward pass and again
in the backward pass is not kept in between. Parameters, buffers, optimizer states and inputs stay, and are not followed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triosim.extrapolators.core.program import Await, Block, Communicate, Gradient, Program, Send, TransferKey
from triosim.memory.allocator.settings import SMALLEST_BLOCK
from triosim.memory.liveness.lifetimes import MEMORY_CATEGORIES
from triosim.operators.features import base_name
from triosim.trace import Category, Operator, Storage, Tensor, Trace

STAYING = ("parameter", "buffer", "optimizer_state", "input")
COLUMN = {name: place for place, name in enumerate(MEMORY_CATEGORIES)}


def whole_blocks(nbytes: float) -> int:
    """Return the bytes of the allocator's blocks that ``nbytes`` take."""
    return -int(-nbytes // SMALLEST_BLOCK) * SMALLEST_BLOCK


@dataclass(slots=True, eq=False)
class Life:
    """Memory that a micro-batch takes: from operator ``born`` to operator ``last``, counted over all passes.

    ``clocks`` are a capture's, of its birth and death, where it has them. ``keeps`` is under which key a rank goes on to have
    it (a gradient that is complete), ``kept_bytes`` how much of it then.
    """

    nbytes: float
    category: Category
    layer: str
    shape: tuple[int, ...]
    dtype: str
    stream: str
    born: int
    last: int
    gathered: bool = False
    recomputed: bool = False
    clocks: list[int | None] = field(default_factory=lambda: [None, None])
    keeps: Hashable | None = None
    kept_bytes: float = 0.0


class Change(NamedTuple):
    """That a life begins or ends."""

    number: int
    birth: bool
    place: int


@dataclass(slots=True, eq=False)
class Lives:
    """The lives of a micro-batch in a stage, in order.

    ``offsets`` say at which operator each pass begins, ``starts[place]`` is the first change of an operator. ``totals[i]`` are
    the bytes after ``i`` changes, and ``bytes[i]`` those by category. ``keeping`` are the changes that end what is kept on.
    """

    items: list[Life]
    changes: list[Change]
    offsets: Mapping[str, int]
    starts: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    totals: npt.NDArray[np.int64]
    keeping: list[int]
    layers: list[str]


class Known:
    """What a whole program says of its storages, and what was captured of them."""

    def __init__(self, program: Program, trace: Trace) -> None:
        self.first: dict[int, Tensor] = {}
        self.made: set[int] = set()
        self.parameters: dict[int, int] = {}  # storage of a parameter, by the ids that it goes by
        self.kept = program.kept
        for operator in program.operators:
            given = {tensor.storage for tensor in operator.inputs}
            for tensor in operator.inputs:
                self.first.setdefault(tensor.storage, tensor)
                if tensor.category == "parameter":
                    self.parameters[tensor.id] = tensor.storage
            for tensor in operator.outputs:
                self.first.setdefault(tensor.storage, tensor)
                if tensor.storage not in given:
                    self.made.add(tensor.storage)
        self.staying = {  # storages: whether they were there before the step, and are not followed
            storage: tensor.category in STAYING or storage not in self.made for storage, tensor in self.first.items()
        }
        self.captured = Captured(trace, self.first)
        blocks = (block for stage in program.stages for block in stage.blocks)
        self.sent = {item.key: item.nbytes for block in blocks for item in block.items if isinstance(item, Send)}

    def stays(self, tensor: Tensor) -> bool:
        """Whether a tensor was there before the step, and is not followed."""
        return self.staying[tensor.storage]

    def found(self) -> Iterable[Tensor]:
        """What was there before the step, each storage once, but for gradients, which a step makes."""
        return (t for t in self.first.values() if self.staying[t.storage] and t.category != "gradient")


class Captured:
    """What a capture knows of storages: when each was freed, and which ones no operator shows."""

    def __init__(self, trace: Trace, shown: Mapping[int, Tensor]) -> None:
        self.storages: dict[int, Storage] = {}
        self.deaths: dict[int, list[int]] = {}  # storages, by the operator that ran when they were freed
        self.unseen: dict[int, list[Storage]] = {}  # by the operator that ran when they were made
        self.staying: list[Storage] = []  # unseen, and there all the time
        self.left: set[int] = set()  # what is there until the step ends
        self.died: dict[int, int | None] = {}
        self.sizes: dict[int, int] = {}  # of the largest tensor of a storage, as captured
        self.written: dict[int, int] = {}  # by operator: bytes of its outputs, as captured
        if not trace.storages:
            return
        numbers = [operator.id for operator in trace.operators]
        ends = len(numbers)
        end_of_backward = next((i for i, one in enumerate(trace.operators) if one.phase == "optimizer"), ends)
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
                        self.staying.append(one)
                    continue
                self.unseen.setdefault(numbers[one.operator], []).append(one)
            else:
                self.storages[one.id] = one
            self.died[one.id] = one.died
            if one.died is not None and one.last_operator is not None and one.last_operator >= 0:
                self.deaths.setdefault(numbers[one.last_operator], []).append(one.id)
            if one.died is None or (one.last_operator or 0) >= end_of_backward > one.operator:
                self.left.add(one.id)

    def scale(self, storage: int, nbytes: float) -> float:
        """Return the bytes of a storage of which the largest tensor now has ``nbytes``."""
        size = self.sizes.get(storage)
        found = self.storages.get(storage)
        return nbytes if found is None or not size else nbytes * found.nbytes / size


@dataclass(slots=True)
class _Seen:
    """The memory that a tensor is in, by the bytes that operators see of it; ``generation`` counts how often it was made."""

    generation: int
    nbytes: int
    lives: dict[int, Life]
    gathered: dict[int, tuple[Life, str]] = field(default_factory=dict)


class Following:
    """Goes through the passes of a micro-batch, one after the other; or through the optimizer, which receives nothing."""

    def __init__(
        self, known: Known, gradients: Iterable[tuple[Gradient, float]] = (), *, receives: bool = True
    ) -> None:
        self._known = known
        self._receives = receives
        self._ready: dict[int, list[tuple[Gradient, float]]] = {}
        for gradient, nbytes in gradients:
            self._ready.setdefault(gradient.ready, []).append((gradient, nbytes))
        self._items: list[Life] = []
        self._layers: list[str] = []
        self._offsets: dict[str, int] = {}
        self._current: dict[int, Life] = {}
        self._generations: dict[int, int] = {}
        self._seen: dict[int, _Seen] = {}
        self._scattered: dict[tuple[Life, float], Life] = {}
        self._rotating: dict[TransferKey | None, Life] = {}  # what is on its way, by key
        self._pass = ""
        captured = known.captured
        self._told = bool(captured.unseen or captured.deaths or known.kept)  # of what operators do not show
        self._again: set[float] = set()  # bytes of what this pass has gathered

    def through(self, name: str, blocks: Iterable[Block]) -> None:
        """Go through a pass."""
        self._pass = name
        self._again = set()
        self._offsets[name] = len(self._layers)
        for block in blocks:
            arriving = 0.0  # from all ranks; the next operator puts it in order
            for item in block.items:
                if isinstance(item, Operator):
                    if arriving:
                        self._buffer(min(arriving, sum(tensor.nbytes for tensor in item.outputs)), block.layer)
                        arriving = 0.0
                    self._operator(item)
                elif isinstance(item, Communicate) and item.kind == "all_to_all":
                    arriving = item.nbytes if item.shares is None else max(item.shares) * len(item.shares)
                elif isinstance(item, Communicate) and item.kind in ("all_gather", "rotate"):
                    self._again.add(item.nbytes)
                    if item.kind == "rotate":
                        self._rotating[item.key] = self._buffer(item.nbytes, block.layer)
                elif isinstance(item, Await) and item.key in self._rotating:
                    self._rotating.pop(item.key).last = len(self._layers)  # the next operator reads it

    def _buffer(self, nbytes: float, layer: str) -> Life:
        """What comes from other ranks while the next operator runs."""
        place = len(self._layers)
        life = Life(nbytes, "communication", layer, (), "", "compute", place, place)
        self._items.append(life)
        return life

    # ---- operators ----------------------------------------------------------------------------------------------

    def _operator(self, operator: Operator) -> None:
        place = len(self._layers)
        self._layers.append(operator.layer)
        staying = self._known.staying
        here: dict[int, Life | None] = {}
        for tensor in operator.inputs:
            if not staying[tensor.storage]:
                here[tensor.storage] = self._read(tensor, operator, place)
        fresh: dict[int, Life] = {}
        for tensor in operator.outputs:
            storage = tensor.storage
            if staying[storage]:
                continue
            nbytes = tensor.nbytes
            life = here[storage] if storage in here else fresh.get(storage)
            if life is None:
                if storage in here:
                    continue  # the optimizer writes a gradient
                life = fresh[storage] = self._make(tensor, nbytes, operator, place)
            elif storage in fresh:
                life.nbytes = max(life.nbytes, self._known.captured.scale(storage, nbytes))
            life.last = place
            self._seen[tensor.id] = _Seen(self._generations[storage], nbytes, {nbytes: life})
        if self._told:
            self._capture(operator, place)
        for gradient, kept in self._ready.get(operator.id, ()):
            self._complete(gradient, kept, operator, place)

    def _make(self, tensor: Tensor, nbytes: int, operator: Operator, place: int) -> Life:
        storage, captured = tensor.storage, self._known.captured
        life = self._new(tensor, captured.scale(storage, nbytes), operator, place)
        self._current[storage] = life
        self._generations[storage] = self._generations.get(storage, 0) + 1
        found = captured.storages.get(storage)
        if found is not None:
            life.clocks[0] = found.born
        return life

    def _new(self, tensor: Tensor, nbytes: float, operator: Operator, place: int) -> Life:
        life = Life(
            nbytes,
            tensor.category,
            operator.layer,
            tensor.shape,
            tensor.dtype,
            operator.stream,
            place,
            place,
            recomputed=operator.recomputed,
        )
        self._items.append(life)
        return life

    def _read(self, tensor: Tensor, operator: Operator, place: int) -> Life | None:
        seen = self._seen.get(tensor.id)
        life = self._current.get(tensor.storage)
        if life is None:
            if not self._receives or self._adds_up(operator):
                return None
            life = self._make(tensor, tensor.nbytes, operator, self._offsets[self._pass])  # it came from another stage
        nbytes, generation = tensor.nbytes, self._generations[tensor.storage]
        if seen is None or seen.generation != generation:
            seen = self._seen[tensor.id] = _Seen(generation, nbytes, {nbytes: life})
        found = seen.lives.get(nbytes)
        if found is None:
            found = self._in_other_size(seen, tensor, operator, place)
        found.last = max(found.last, place)
        return found

    def _adds_up(self, operator: Operator) -> bool:
        """Whether an operator adds to a gradient what another stage has of it, which stays there until the step ends."""
        of_parameter = operator.id in self._ready or any(tensor.parameter is not None for tensor in operator.outputs)
        return of_parameter and base_name(operator.name) in ("add", "add_")

    def _in_other_size(self, seen: _Seen, tensor: Tensor, operator: Operator, place: int) -> Life:
        """What an operator reads of a tensor of which its maker left more or less: it was scattered, or gathered."""
        base = seen.lives[seen.nbytes]
        if tensor.nbytes < seen.nbytes:
            share = tensor.nbytes / seen.nbytes
            life = self._scattered.get((base, share))
            if life is None:
                life = self._scattered[base, share] = self._new(tensor, base.nbytes * share, operator, place)
                life.category, life.layer = base.category, base.layer
                self._current[tensor.storage] = life
            seen.lives[tensor.nbytes] = life
            return life
        base.last = max(base.last, place)
        found = seen.gathered.get(tensor.nbytes)
        if found is None or (found[1] != self._pass and tensor.nbytes in self._again):
            life = self._new(tensor, float(tensor.nbytes), operator, place)
            life.gathered = True
            found = seen.gathered[tensor.nbytes] = life, self._pass
        return found[0]

    def _capture(self, operator: Operator, place: int) -> None:
        """Let what a capture followed live until it was freed, and take what no operator shows."""
        captured = self._known.captured
        for one in captured.unseen.get(operator.id, ()):
            before = captured.written.get(operator.id)
            scale = sum(tensor.nbytes for tensor in operator.outputs) / before if before else 1.0
            life = Life(one.nbytes * scale, one.category, one.layer, one.shape, one.dtype, one.stream, place, place)
            life.clocks[0] = one.born
            self._items.append(life)
            self._current[one.id] = life
        for storage in self._known.kept.get(operator.id, ()):
            if storage in self._current:
                self._current[storage].last = max(self._current[storage].last, place)
        for storage in captured.deaths.get(operator.id, ()):
            freed = self._current.get(storage)
            if freed is not None and place >= freed.last:
                freed.last = place
                freed.clocks[1] = captured.died[storage]

    def _complete(self, gradient: Gradient, nbytes: float, operator: Operator, place: int) -> None:
        """A gradient is complete for this micro-batch; it is added to what the rank keeps."""
        storage = gradient.parameter.storage
        outputs = [t for t in operator.outputs if t.parameter is not None]
        mine = next((t for t in outputs if self._known.parameters.get(t.parameter or 0) == storage), None)
        life = None if mine is None else self._current.get(mine.storage)
        if life is None:
            tensor = gradient.parameter
            life = Life(0.0, "gradient", gradient.layer, tensor.shape, tensor.dtype, operator.stream, place, place)
            self._items.append(life)
        life.category, life.layer = "gradient", gradient.layer
        life.keeps, life.kept_bytes = ("gradient", storage), nbytes
        life.last = place

    # ---- what comes of it ---------------------------------------------------------------------------------------

    def lives(self) -> Lives:
        """Return all of them, in order."""
        places = len(self._layers)
        for storage in self._known.captured.left if self._pass != "optimizer" else ():
            left = self._current.get(storage)
            if left is not None and left.keeps is None:
                left.last, left.keeps, left.kept_bytes = places - 1, ("left", storage), left.nbytes
        ends = sorted([*self._offsets.values(), places])
        entries = []
        for number, life in enumerate(self._items):
            life.born, life.last = min(life.born, places - 1), min(life.last, places - 1)
            life.category = self._category(life, ends)
            entries.append((life.born, *_order(life.clocks[0], 0), number, True))
            entries.append((life.last, *_order(life.clocks[1], 2), number, False))
        entries.sort(key=lambda entry: entry[:3])
        changes = [Change(number, birth, place) for place, _, _, number, birth in entries]
        change = np.zeros((len(changes) + 1, len(MEMORY_CATEGORIES)), np.int64)
        for row, one in enumerate(changes, 1):
            life = self._items[one.number]
            change[row, COLUMN[life.category]] = whole_blocks(life.nbytes) * (1 if one.birth else -1)
        starts = np.searchsorted([one.place for one in changes], np.arange(places + 1))
        found = np.cumsum(change, axis=0)
        keeping = [i for i, one in enumerate(changes) if not one.birth and self._items[one.number].keeps is not None]
        return Lives(self._items, changes, self._offsets, starts, found, found.sum(axis=1), keeping, self._layers)

    def _category(self, life: Life, ends: list[int]) -> Category:
        """Activations are what a later pass reads; what goes in the pass that made it is temporary."""
        if life.keeps is not None or life.category in ("output", "communication", "input"):
            return life.category
        if self._pass == "optimizer":
            return "temporary"
        forward_alone = len(self._offsets) == 1
        outlives = any(life.born < end <= life.last for end in ends)
        if life.gathered and not outlives:
            return "communication"
        return "activation" if outlives or life.recomputed or forward_alone else "temporary"


def _order(clock: int | None, otherwise: int) -> tuple[int, int]:
    """Where a change stands among those of its operator: births first and deaths last, unless a capture says when."""
    return (otherwise, 0) if clock is None else (1, clock)
