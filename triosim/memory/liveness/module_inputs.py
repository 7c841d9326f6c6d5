"""The inputs of modules, which Python refers to until the module returns.

``module(x)`` keeps ``x`` alive while it runs: the caller's frame and ``Module.__call__`` hold the arguments, whatever
``forward`` has read them for. A feed-forward layer so has its input beside the result of its last product. Where a program
frees nothing that is known, a tensor is taken to live until its last reader, which is too short for these. The backward pass
calls no modules, but for those that run again in it. Code that a compiler made frees what it has read: there is no such
reference inside a block that it compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby

from triosim.extrapolators.core.program import Program
from triosim.extrapolators.core.program.kept_programs import Kept
from triosim.models.compilation import NAME as COMPILED
from triosim.trace import Operator
from triosim.trace.numbered_modules import numbered_module_of


def module_inputs(program: Program) -> dict[int, frozenset[int]]:
    """Return what ``kept_for_modules`` does of a program's passes, found once for all programs that share them."""
    forward = [stage.forward for stage in program.stages]
    rows = [*forward, *(stage.backward for stage in reversed(program.stages))]
    operators = tuple([one for row in rows for block in row for one in block.operators])
    return _KEPT.get(_Operators(operators), lambda: kept_for_modules(operators))


@dataclass(frozen=True, slots=True)
class _Operators:
    """Operators in the order in which they run, however they are divided into stages."""

    all: tuple[Operator, ...]

    def __hash__(self) -> int:
        some = self.all[:1] + self.all[-1:] + self.all[len(self.all) // 2 :][:1]
        return hash((len(self.all), *((one.id, one.seconds) for one in some)))


#: Those of the programs that were used last.
_KEPT = Kept[dict[int, frozenset[int]]](16)


def kept_for_modules(operators: Iterable[Operator]) -> dict[int, frozenset[int]]:
    """Return the storages that live until a module returns, by the id of its last operator.

    ``operators`` are those of a step in order; modules run in its forward pass, and again where that is recomputed.
    """
    found: dict[int, set[int]] = {}
    for is_called, run in groupby(operators, lambda one: one.phase == "forward" or one.recomputed):
        if is_called:
            for last, inputs in _of_a_run(list(run)):
                found.setdefault(last, set()).update(inputs)
    return {last: frozenset(inputs) for last, inputs in found.items()}


@dataclass(slots=True)
class _Module:
    """A module that runs: since which position, which operator of it ran last, and its inputs so far."""

    path: str
    since: int
    last: int
    inputs: set[int] = field(default_factory=set)


def _of_a_run(operators: list[Operator]) -> Iterator[tuple[int, set[int]]]:
    """Yield the last operator and the inputs of each module that consecutive operators run."""
    compiled = {numbered_module_of(one.layer) for one in operators if one.name == COMPILED}
    containers = {parent for one in operators for parent in _containers(one.layer)}
    made: dict[int, int] = {}  # by storage
    running: list[_Module] = []
    for position, one in enumerate(operators):
        paths = [
            path for path in _paths(one.layer, numbered_module_of(one.layer) in compiled) if path not in containers
        ]
        while running and running[-1].path not in paths:
            module = running.pop()
            yield module.last, module.inputs
        running += [_Module(path, position, one.id) for path in paths[len(running) :]]
        read = [tensor.storage for tensor in one.inputs if tensor.category != "parameter"]
        for module in running:
            module.last = one.id
            module.inputs.update(storage for storage in read if made.get(storage, -1) < module.since)
        made.update((tensor.storage, position) for tensor in one.outputs if tensor.storage not in made)
    for module in running:
        yield module.last, module.inputs


@lru_cache(maxsize=65536)
def _paths(layer: str, is_compiled: bool) -> tuple[str, ...]:
    """Return the modules that a layer is in, the outer ones first; inside a compiled block, those down to the block."""
    parts = layer.split(".") if layer else []
    paths = tuple(".".join(parts[:count]) for count in range(1, len(parts) + 1))
    block = numbered_module_of(layer)
    return tuple(path for path in paths if not (is_compiled and path.startswith(block + ".")))


@lru_cache(maxsize=65536)
def _containers(layer: str) -> tuple[str, ...]:
    """Return the modules that a layer is in which only hold others, by number, and are not called."""
    parts = layer.split(".")
    return tuple(".".join(parts[:count]) for count, part in enumerate(parts) if part.isdigit())
