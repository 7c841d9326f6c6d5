"""Ranks that a script singles out, by conditions (``rank == 5``) that the first and the last rank answer alike and others not.

Whether a script acts on one rank alone cannot be seen by running others. But it has to name that rank: its source is read for
conditions of nothing but the rank, the size of the world, constants, and names that are assigned these once, and each is
worked out for all ranks.
"""

from __future__ import annotations

import ast
import operator
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: Names, attributes, functions and variables of the environment that are a rank of the world, its rank on a machine, or the
#: size of the world. A parallelism's own rank (``tp_rank``) is not known here.
_RANK = re.compile(r"(get_)?((my|global|world)_?)?rank", re.IGNORECASE)
_LOCAL = re.compile(r"(get_)?(node_)?local_?rank", re.IGNORECASE)
_WORLD = re.compile(r"(get_)?(world_?size|world|n_?ranks|num_ranks)", re.IGNORECASE)
_MOST_CHARACTERS = 2**20
_COMPUTED: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv, ast.Div: operator.truediv, ast.BitAnd: operator.and_,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda one, others: one in others, ast.NotIn: lambda one, others: one not in others,
    ast.Not: operator.not_, ast.USub: operator.neg,
}  # fmt: skip


def singled_out(sources: Iterator[str], world: int, local: int) -> tuple[tuple[int, ...], ...]:
    """Return, for each condition in some sources that singles out ranks between the first and the last one, those ranks.

    ``local`` ranks are on a machine.
    """
    found: dict[tuple[int, ...], None] = {}
    for source in sources:
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue
        known = _assigned_once(tree)
        for condition in {ast.dump(one): one for one in _conditions(tree)}.values():
            try:
                held = [bool(_Rank(rank, rank % local, world, known).value(condition)) for rank in range(world)]
            except (_Unknown, ArithmeticError, TypeError):
                continue
            if held[0] == held[-1] and not all(one == held[0] for one in held):
                found[tuple([rank for rank, one in enumerate(held) if one != held[0]])] = None
    return tuple(found)


def script_sources(script: str, *, module: bool) -> Iterator[str]:
    """Yield the sources of a script, or of a ``module``, that has run here, and of what it has imported from its folder."""
    spec = find_spec(script) if module else None
    main = spec.origin if spec is not None else script
    if main is None:
        return
    folder = os.path.dirname(os.path.abspath(main)) + os.sep
    files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    for file in dict.fromkeys((os.path.abspath(main), *map(os.path.abspath, filter(None, files)))):
        if (
            file.startswith(folder)
            and file.endswith(".py")
            and f"{os.sep}site-packages{os.sep}" not in file[len(folder) :]
        ):
            try:
                text = Path(file).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            if len(text) <= _MOST_CHARACTERS and "rank" in text.lower():
                yield text


class _Unknown(Exception):
    """Raised where a condition depends on something else."""


def _assigned_once(tree: ast.AST) -> dict[str, ast.expr]:
    """Return what is assigned to the names that are assigned to once."""
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            for name, value in _pairs(node.targets[0], node.value):
                assigned.setdefault(name, []).append(value)
    return {name: values[0] for name, values in assigned.items() if len(values) == 1}


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names of an assignment's target, each with its value, as far as they are written one by one."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, other)


def _conditions(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            yield node
        elif isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
            yield node.test
        elif isinstance(node, ast.BoolOp):
            yield from node.values


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank, which is the ``local``-th of its machine, and what names are assigned in the script: an expression each."""

    number: int
    local: int
    world: int
    known: Mapping[str, ast.expr]

    def value(self, node: ast.AST, within: tuple[str, ...] = ()) -> Any:
        """Return what an expression is on the rank, ``within`` those of names. Raises ``_Unknown``."""

        def of(one: ast.AST) -> Any:
            return self.value(one, within)

        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            return [of(one) for one in node.elts]
        if isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
            return _COMPUTED[type(node.op)](of(node.left), of(node.right))
        if isinstance(node, ast.UnaryOp) and type(node.op) in _COMPUTED:
            return _COMPUTED[type(node.op)](of(node.operand))
        if isinstance(node, ast.BoolOp):
            values = [of(one) for one in node.values]
            return all(values) if isinstance(node.op, ast.And) else any(values)
        if isinstance(node, ast.Compare) and all(type(one) in _COMPUTED for one in node.ops):
            values = [of(one) for one in (node.left, *node.comparators)]
            return all(_COMPUTED[type(op)](*pair) for op, *pair in zip(node.ops, values, values[1:], strict=False))
        return self._named(node, within)

    def _named(self, node: ast.AST, within: tuple[str, ...]) -> Any:
        """Return what a name or a call without arguments is on the rank."""
        name = _name(node)
        for pattern, number in ((_RANK, self.number), (_LOCAL, self.local), (_WORLD, self.world)):
            if name is not None and pattern.fullmatch(name):
                return number
        if isinstance(node, ast.Name) and node.id in self.known and node.id not in within:
            return self.value(self.known[node.id], (*within, node.id))
        raise _Unknown


def _name(node: ast.AST) -> str | None:
    """Return the name of a variable, an attribute, a function without arguments, or a variable of the environment."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and _name(node.value) == "environ" and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    if isinstance(node, ast.Call):
        called = _name(node.func)
        if called == "int" and len(node.args) == 1:
            return _name(node.args[0])
        if called in ("get", "getenv") and node.args and isinstance(node.args[0], ast.Constant):
            return str(node.args[0].value)
        return called if not node.args else None
    return None
