"""Activation recomputation: the backward pass of a unit first computes again what the forward pass did not keep.

Chen et al. 2016 ("Training Deep Nets with Sublinear Memory Cost"), and Korthikanti et al. 2022 for the selective policy. A
policy says what runs again in each unit (``triosim.extrapolators.units``), just before the unit's backward pass:

- ``full``: all of its forward pass, as Megatron-LM does, its collectives included.
- ``checkpoint``: what its backward pass needs, as ``torch.utils.checkpoint`` does, which stops early: the last operators,
  whose results nobody keeps, do not run again.
- ``selective``: the core of attention (the product of queries and keys, softmax, dropout, the product with the values).
- ``save=mm,attention``: everything but operators of these names or kinds; ``mm/2`` keeps the first of each two, as torchtitan's
  selective policy does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from triosim.compute.features import base_name
from triosim.compute.operator_kinds import kind_of
from triosim.errors import OptionError, TraceError, nearest
from triosim.extrapolators.program import Await, Block, Communicate, Item, Program, Stage
from triosim.extrapolators.sharding import weighted
from triosim.extrapolators.stages import backward_places
from triosim.extrapolators.units import ROOT, unit_of
from triosim.trace import Operator

POLICIES = ("none", "full", "selective", "checkpoint")

Again = Callable[[Sequence[Operator], frozenset[int]], set[int]]


def recomputed(program: Program, policy: str) -> Program:
    """Return the program whose backward pass recomputes. Raises ``OptionError`` for what is no policy."""
    again = _policy(policy, program)
    if again is None or not program.training:
        return program
    if not any(stage.backward for stage in program.stages):
        raise TraceError("the trace has no backward pass, in which activations would be recomputed")
    first = max(operator.id for operator in program.operators) + 1
    stages = []
    for stage in program.stages:
        made = _Recomputation(stage, again, first)
        stages.append(replace(stage, backward=made.backward()))
        first = made.next_id
    after = replace(program, stages=tuple(stages))
    if len(after.operators) == len(program.operators):
        raise OptionError(
            f"'{policy}' finds nothing to recompute: no numbered module (layers.0) has such operators with a backward pass",
            where="recompute",
        )
    return after


class _Recomputation:
    """What one stage computes again."""

    def __init__(self, stage: Stage, again: Again, first_id: int) -> None:
        self._stage = stage
        self._again = again
        self.next_id = first_id

    def backward(self) -> tuple[Block, ...]:
        """The backward blocks, with those that run again ahead of the first one of each unit."""
        units = [unit_of(block.layer) for block in self._stage.forward]
        of_backward = [units[place] for place in backward_places(self._stage)]
        read: dict[str, set[int]] = {}
        for unit, block in zip(of_backward, self._stage.backward, strict=True):
            for operator in block.operators:
                read.setdefault(unit, set()).update(tensor.storage for tensor in operator.inputs)
        found: list[Block] = []
        begun = {ROOT}
        for unit, block in zip(of_backward, self._stage.backward, strict=True):
            if unit not in begun:
                begun.add(unit)
                forward = [b for u, b in zip(units, self._stage.forward, strict=True) if u == unit]
                found += self._copies(forward, frozenset(read[unit]))
            found.append(block)
        return tuple(found)

    def _copies(self, forward: Sequence[Block], read: frozenset[int]) -> Iterable[Block]:
        chosen = self._again([operator for block in forward for operator in block.operators], read)
        for block in forward:
            items = tuple(self._copy(item) for item in _with_collectives(block.items, chosen))
            if items:
                yield Block(block.layer, "backward", items)

    def _copy(self, item: Item) -> Item:
        if isinstance(item, Operator):
            self.next_id += 1
            return replace(item, id=self.next_id - 1, phase="backward", recomputed=True)
        if isinstance(item, (Communicate, Await)) and item.key is not None:
            return replace(item, key=f"{item.key} again")
        return item


def _with_collectives(items: Sequence[Item], chosen: set[int]) -> Iterable[Item]:
    """The chosen operators, and what is communicated for them: what stands after an operator, up to the next one.

    What stands ahead of a block's first operator belongs to that one.
    """
    numbers = [item.id for item in items if isinstance(item, Operator)]
    current = numbers[0] if numbers else None
    for item in items:
        if isinstance(item, Operator):
            current = item.id
        wanted = item.operator if isinstance(item, Communicate) and item.operator is not None else current
        if wanted in chosen:
            yield item


def _policy(text: str, program: Program) -> Again | None:
    """What runs again, of a unit's forward operators, where its backward pass reads some storages."""
    if text == "none":
        return None
    if text == "full":
        return lambda operators, read: {operator.id for operator in operators}
    if text == "checkpoint":
        return lambda operators, read: _needed(operators, read, frozenset())
    if text == "selective":
        return lambda operators, read: _attention_cores(operators)
    name, _, saved = text.partition("=")
    if name != "save" or not saved:
        raise OptionError(
            f"unknown policy '{text}'", where="recompute", fix=nearest(name, (*POLICIES, "save=mm,attention"))
        )
    keeps = [_Kept.parse(entry) for entry in saved.split(",")]
    _check_names(keeps, program)
    return lambda operators, read: _needed(operators, read, _saved(operators, keeps))


@dataclass(frozen=True, slots=True)
class _Kept:
    """Operators of a name or kind whose results are kept: the first of each ``every``."""

    name: str
    every: int

    @classmethod
    def parse(cls, text: str) -> _Kept:
        name, slash, every = text.strip().partition("/")
        if not name or (slash and not (every.isascii() and every.isdigit() and int(every))):
            raise OptionError(f"'{text}' names no operators", where="recompute", fix="write save=mm/2,attention")
        return cls(name.removeprefix("aten::"), int(every) if slash else 1)

    def names(self, operator: Operator) -> bool:
        bare = base_name(operator.name)
        return self.name in (bare, kind_of(bare))


def _check_names(keeps: Iterable[_Kept], program: Program) -> None:
    forward = [operator for operator in program.operators if operator.phase == "forward"]
    for kept in keeps:
        if not any(kept.names(operator) for operator in forward):
            known = {base_name(operator.name) for operator in forward}
            raise OptionError(
                f"the trace's forward pass has no operator '{kept.name}'",
                where="recompute",
                fix=nearest(kept.name, known),
            )


def _saved(operators: Iterable[Operator], keeps: Iterable[_Kept]) -> frozenset[int]:
    """The operators of a unit whose results are kept."""
    listed = list(operators)
    found: set[int] = set()
    for kept in keeps:
        named = [operator.id for operator in listed if kept.names(operator)]
        found.update(named[:: kept.every])
    return frozenset(found)


def _needed(operators: Sequence[Operator], read: frozenset[int], saved: frozenset[int]) -> set[int]:
    """The operators that make what is read, from what was kept; by storage, so that views are made with their bases."""
    wanted = set(read)
    found: set[int] = set()
    for operator in reversed(operators):
        if operator.id not in saved and any(tensor.storage in wanted for tensor in operator.outputs):
            found.add(operator.id)
            wanted.update(tensor.storage for tensor in operator.inputs)
    return found


def _attention_cores(operators: Sequence[Operator]) -> set[int]:
    """Between two layers with weights, from the first product of two activations to the last; an attention kernel is one."""
    found: set[int] = set()
    run: list[Operator] = []
    for operator in (*operators, None):
        if operator is not None and weighted(operator) is None:
            run.append(operator)
            continue
        products = [place for place, one in enumerate(run) if kind_of(base_name(one.name)) in ("attention", "product")]
        if products:
            found.update(one.id for one in run[products[0] : products[-1] + 1])
        run = []
    return found
