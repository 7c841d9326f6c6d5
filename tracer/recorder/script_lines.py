"""The line of the script that runs, and loops around it that go on until a value that is read there says otherwise."""

from __future__ import annotations

import ast
import linecache
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import triosim

#: The folders of triosim.
OURS = (str(Path(__file__).resolve().parents[1]), *map(str, triosim.__path__))
_TORCH = str(Path(torch.__file__).resolve().parent)
_PYTHON = os.path.dirname(os.__file__) + os.sep
#: Where packages lie, in the folder of Python's own modules.
_PACKAGES = tuple(os.path.join(_PYTHON, name) for name in ("site-packages", "dist-packages"))
#: PyTorch's modules through which every collective goes.
_CALLS_OF_COLLECTIVES = frozenset(
    (
        "distributed_c10d.py",
        "c10d_logger.py",
        "_functional_collectives.py",
        "_ops.py",
        "_contextlib.py",
        "eval_frame.py",
    )
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def script_line() -> str:
    """Return the file and line, of the script or of a library that it uses, that called into PyTorch."""
    file, number = script_place()
    return f"{Path(file).name}:{number}"


def script_place() -> tuple[str, int]:
    """Return that file with its folder, and the line."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        of_python = file.startswith(_PYTHON) and not file.startswith(_PACKAGES)
        if not of_python and not file.startswith((*OURS, _TORCH, "<")):
            return file, frame.f_lineno
        frame = frame.f_back
    return "?", 0


def calling_place() -> tuple[str, int]:
    """Return the file and line of the script itself, which may have called a library that called into PyTorch.

    Of a program that is a library itself they are the library's.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*OURS, _TORCH, _PYTHON, "<")) and not _of_a_package(file):
            return file, frame.f_lineno
        frame = frame.f_back
    return script_place()


def is_asked_by_pytorch() -> bool:
    """Whether a collective is one that PyTorch makes by itself, as its wrappers of models do, and not the script."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*OURS, "<")) and os.path.basename(file) not in _CALLS_OF_COLLECTIVES:
            return bool(file.startswith(_TORCH))
        frame = frame.f_back
    return False


def _of_a_package(file: str) -> bool:
    return any(f"{os.sep}{name}{os.sep}" in file for name in ("site-packages", "dist-packages"))


def reading_frame() -> FrameType:
    """Return the frame that asked PyTorch for a value: the script's, a library's or one of PyTorch's own modules."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return frame


@cache
def is_waited_for(file: str, line: int) -> bool:
    """Whether a ``while`` loop goes on, or is left by ``break``, depending on what a line reads or assigns."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return False
    return any(_depends(loop, line) for loop in ast.walk(tree) if isinstance(loop, ast.While) and _covers(loop, line))


def _depends(loop: ast.While, line: int) -> bool:
    inside = [node for statement in loop.body for node in _nodes(statement)]
    if not _covers(loop.test, line) and not any(isinstance(one, ast.stmt) and _covers(one, line) for one in inside):
        return False  # in a function that is defined in the loop, or after it
    tests = [loop.test, *[node.test for node in inside if isinstance(node, ast.If) and _breaks(node)]]
    assigned = {
        name.id
        for node in inside
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and _covers(node, line)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    return any(
        _covers(test, line) or any(isinstance(one, ast.Name) and one.id in assigned for one in ast.walk(test))
        for test in tests
        if not isinstance(test, ast.Constant)
    )


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those below it, without functions that are defined there."""
    if not isinstance(node, _FUNCTIONS):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _nodes(child)


def _breaks(condition: ast.If) -> bool:
    return any(isinstance(node, ast.Break) for statement in condition.body for node in _nodes(statement))


def _covers(node: Any, line: int) -> bool:
    return bool(node.lineno <= line <= node.end_lineno)
