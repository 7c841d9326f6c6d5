"""Activation recomputation: the backward pass of a unit first repeats the operators whose results were not kept.

Chen et al. 2016 ("Training Deep Nets with Sublinear Memory Cost"), and Korthikanti et al. 2022 for the selective policy. A
policy says what runs again in each unit (``triosim.trace.numbered_modules``), just before the unit's backward pass:

- ``full``: all of its forward pass with its collectives, as in Megatron-LM; ``full/2`` that of each second unit, torchtitan's
  default (``selective_ac_option = "2"``), and so with the next two.
- ``checkpoint``: what its backward pass reads, as in ``torch.utils.checkpoint``, which stops early: the last operators, whose
  results nobody reads, do not run again.
- ``selective``: the core of attention (the product of queries and keys, softmax, dropout, the product with the values).
- ``save=mm,attention``: everything but operators of these names or kinds; ``mm/2`` keeps the first of each two, as torchtitan's
  selective policy does. Results are kept until the unit's backward pass begins, read or not, unless a compiler
  knows which of them are read.
- ``modules=mlp,input_layernorm``: as ``checkpoint``, but around each module of these names, and nothing else.
- ``discard=input_layernorm,act_fn``: the same, and their outputs too, which are discarded once they have been used and made
  again for who reads them in the backward pass (Megatron-Core's ``CheckpointWithoutOutput``, its ``recompute_modules``).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from triosim.errors import OptionError, TraceError, nearest
from triosim.extrapolators.core.program import Await, Block, BlockItem, Communicate, Program, Stage
from triosim.operators.features import base_name
from triosim.operators.kinds import kind_of
from triosim.sharding.layers import weight_layer
from triosim.trace import Operator
from triosim.trace.numbered_modules import ROOT, numbered_module_of

#: The operator that a compiler makes of element-wise operators.
_COMPILED = "fused::chain"

#: From the operators of a unit's forward and backward pass to the ids of those that run again.
Again = Callable[[Sequence[Operator], Sequence[Operator]], set[int]]
#: From the operators of a unit's forward pass to the ids of those whose results are saved.
Saved = Callable[[Sequence[Operator]], set[int]]


@dataclass(frozen=True, slots=True)
class _Policy:
    """What runs again, and what is saved for that; ``every`` so many units, which the last of each so many is."""

    again: Again
    saved: Saved | None = None
    every: int = 1


def recomputed(program: Program, policy: str) -> Program:
    """Return the program whose backward pass recomputes. Raises ``OptionError`` for an unknown policy."""
    found = _policy(policy, program)
    if found is None or not program.training:
        return program
    if not any(stage.backward for stage in program.stages):
        raise TraceError("the trace has no backward pass, in which activations would be recomputed")
    first = max(operator.id for operator in program.operators) + 1
    stages = []
    kept: dict[int, frozenset[int]] = {}
    for stage in program.stages:
        recomputation = _Recomputation(stage, found, first)
        stages.append(replace(stage, backward=recomputation.backward()))
        first = recomputation.next_id
        kept |= recomputation.kept
    after = replace(program, stages=tuple(stages), kept_until=kept)
    if len(after.operators) == len(program.operators):
        raise OptionError(
            f"'{policy}' finds nothing to recompute: no numbered module (layers.0) has such operators with a backward pass",
            where="recompute",
        )
    return after


class _Recomputation:
    """The recomputation of one stage."""

    def __init__(self, stage: Stage, policy: _Policy, first_id: int) -> None:
        self._stage = stage
        self._policy = policy
        self.next_id = first_id
        self.kept: dict[int, frozenset[int]] = {}

    def backward(self) -> tuple[Block, ...]:
        """Return the backward blocks, with the recomputed ones ahead of the first one of each unit."""
        units = [numbered_module_of(block.layer) for block in self._stage.forward]
        of_backward = [units[index] for index in self._stage.forward_blocks_of_backward()]
        backward: dict[str, list[Operator]] = {}
        for unit, block in zip(of_backward, self._stage.backward, strict=True):
            backward.setdefault(unit, []).extend(block.operators)
        found: list[Block] = []
        numbered = [unit for unit in dict.fromkeys(units) if unit != ROOT]
        every = self._policy.every
        begun = {ROOT, *numbered} - {*numbered[every - 1 :: every]}
        for unit, block in zip(of_backward, self._stage.backward, strict=True):
            if unit not in begun:
                begun.add(unit)
                forward = [b for u, b in zip(units, self._stage.forward, strict=True) if u == unit]
                copies = list(self._copies(forward, backward[unit]))
                found += copies
                self._keep(forward, [*copies, block])
            found.append(block)
        return tuple(found)

    def _keep(self, forward: Sequence[Block], backward: Sequence[Block]) -> None:
        """Keep saved results until the first operator of a unit's backward pass; compiled code keeps those that it reads."""
        operators = [operator for block in forward for operator in block.operators]
        if self._policy.saved is None or any(operator.name == _COMPILED for operator in operators):
            return
        saved = self._policy.saved(operators)
        first = next((operator for block in backward for operator in block.operators), None)
        storages = frozenset(t.storage for operator in operators if operator.id in saved for t in operator.outputs)
        if first is not None and storages:
            self.kept[first.id] = storages

    def _copies(self, forward: Sequence[Block], backward: Sequence[Operator]) -> Iterable[Block]:
        chosen = self._policy.again([operator for block in forward for operator in block.operators], backward)
        for block in forward:
            items = tuple(self._copy(item) for item in _with_collectives(block.items, chosen))
            if items:
                yield Block(block.layer, "backward", items)

    def _copy(self, item: BlockItem) -> BlockItem:
        if isinstance(item, Operator):
            self.next_id += 1
            return replace(item, id=self.next_id - 1, phase="backward", recomputed=True)
        if isinstance(item, (Communicate, Await)) and item.key is not None:
            return replace(item, key=item.key._replace(again=True))
        return item


def _with_collectives(items: Sequence[BlockItem], chosen: set[int]) -> Iterable[BlockItem]:
    """Yield the chosen operators, and the collectives and transfers that follow them.

    Those ahead of a block's first operator belong to that one.
    """
    numbers = [item.id for item in items if isinstance(item, Operator)]
    current = numbers[0] if numbers else None
    for item in items:
        if isinstance(item, Operator):
            current = item.id
        wanted = item.operator if isinstance(item, Communicate) and item.operator is not None else current
        if wanted in chosen:
            yield item


def check_policy(text: str) -> None:
    """Raise ``OptionError`` for what is no policy, whatever the step's operators and modules are called."""
    if text == "none" or _every_named(text) is not None:
        return
    name, entries = _named(text)
    if name == "save":
        for entry in entries:
            _parse_name(entry)


def _named(text: str) -> tuple[str, list[str]]:
    """Return ``save``, ``modules`` or ``discard`` and the names in a policy. Raises ``OptionError`` for another one."""
    name, _, listed = text.partition("=")
    if name not in ("save", "modules", "discard") or not listed:
        known = (*POLICIES, "save=mm,attention", "modules=mlp", "discard=mlp")
        raise OptionError(f"unknown policy '{text}'", where="recompute", fix=nearest(name, known))
    return name, [entry.strip() for entry in listed.split(",")]


def _every_named(text: str) -> _Policy | None:
    """Return ``full``, ``full/2`` and the like as a policy; None for one of another kind."""
    name, slash, every = text.partition("/")
    if name not in _POLICIES:
        return None
    if slash and not (every.isascii() and every.isdigit() and int(every)):
        raise OptionError(f"'{text}' is no number of layers", where="recompute", fix=f"write {name}/2 for each second")
    return _Policy(_POLICIES[name], every=int(every) if slash else 1)


def _policy(text: str, program: Program) -> _Policy | None:
    """Return what a policy runs again and saves of which units; None for nothing. Raises ``OptionError``."""
    if text == "none":
        return None
    if (found := _every_named(text)) is not None:
        return found
    name, entries = _named(text)
    if name != "save":
        _check_modules(frozenset(entries), program)
        return _Policy(partial(_needed_in, frozenset(entries), outputs=name == "discard"))
    names = [_parse_name(entry) for entry in entries]
    _check_names([name for name, _ in names], program)
    saved = partial(_saved, names)
    return _Policy(lambda forward, backward: _needed(forward, backward, saved(forward)), saved)


def _parse_name(text: str) -> tuple[str, int]:
    """Return ``mm/2`` as a name or kind of operators, and of how many the first is saved."""
    name, slash, every = text.partition("/")
    if not name or (slash and not (every.isascii() and every.isdigit() and int(every))):
        raise OptionError(f"'{text}' names no operators", where="recompute", fix="write save=mm/2,attention")
    return name.removeprefix("aten::"), int(every) if slash else 1


def _is_named(operator: Operator, name: str) -> bool:
    bare = base_name(operator.name)
    return name in (bare, kind_of(bare))


def _check_names(names: Iterable[str], program: Program) -> None:
    forward = [operator for operator in program.operators if operator.phase == "forward"]
    for name in names:
        if not any(_is_named(operator, name) for operator in forward):
            what, known = f"the trace's forward pass has no operator '{name}'", {base_name(one.name) for one in forward}
            raise OptionError(what, where="recompute", fix=nearest(name, known))


def _saved(names: Iterable[tuple[str, int]], operators: Sequence[Operator]) -> set[int]:
    """Return the operators of a unit whose results are saved."""
    found: set[int] = set()
    for name, every in names:
        found.update([operator.id for operator in operators if _is_named(operator, name)][::every])
    return found


def _check_modules(modules: frozenset[str], program: Program) -> None:
    known = {part for one in program.operators if numbered_module_of(one.layer) for part in one.layer.split(".")}
    for name in sorted(modules - known):
        raise OptionError(f"no module is called '{name}'", where="recompute", fix=nearest(name, sorted(known)))


def _needed_in(
    modules: frozenset[str], forward: Sequence[Operator], backward: Sequence[Operator], *, outputs: bool
) -> set[int]:
    """Return the operators of each of a unit's modules of some names that its own backward pass needs.

    With ``outputs``, those that anything in the unit's backward pass needs.
    """
    found: set[int] = set()
    for path in {path for one in forward if (path := _within(one.layer, modules))}:
        inside, after = ([one for one in some if _within(one.layer, modules) == path] for some in (forward, backward))
        found |= _needed(inside, backward if outputs else after)
    return found


@lru_cache(maxsize=65536)
def _within(layer: str, modules: frozenset[str]) -> str:
    """Return the outermost module of one of these names that a layer is in, or an empty text."""
    parts = layer.split(".")
    return next((".".join(parts[: count + 1]) for count, part in enumerate(parts) if part in modules), "")


def _all(forward: Sequence[Operator], backward: Sequence[Operator]) -> set[int]:
    return {operator.id for operator in forward}


def _needed(forward: Sequence[Operator], backward: Sequence[Operator], saved: Container[int] = frozenset()) -> set[int]:
    """Return the operators whose results are read and not saved, and those that they need, by storage: views with bases."""
    wanted = {tensor.storage for operator in backward for tensor in operator.inputs}
    found: set[int] = set()
    for operator in reversed(forward):
        if operator.id not in saved and any(tensor.storage in wanted for tensor in operator.outputs):
            found.add(operator.id)
            wanted.update(tensor.storage for tensor in operator.inputs)
    return found


def _attention_cores(forward: Sequence[Operator], backward: Sequence[Operator]) -> set[int]:
    """Return the operators from the first product of two activations to the last, between two layers with weights.

    An attention kernel counts as a product. The empty memory that a product writes into is made again with it.
    """
    found: set[int] = set()
    run: list[Operator] = []
    for operator in (*forward, None):
        if operator is not None and weight_layer(operator) is None:
            run.append(operator)
            continue
        products = [index for index, one in enumerate(run) if kind_of(base_name(one.name)) in ("attention", "product")]
        if products:
            core = run[products[0] : products[-1] + 1]
            read = {tensor.storage for one in core for tensor in one.inputs}
            empty = (one for one in run if not one.inputs and any(tensor.storage in read for tensor in one.outputs))
            found.update(one.id for one in (*core, *empty))
        run = []
    return found


_POLICIES: dict[str, Again] = {"full": _all, "selective": _attention_cores, "checkpoint": _needed}
POLICIES = ("none", *_POLICIES)
