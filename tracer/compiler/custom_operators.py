"""Operators that a script defines (``torch.library``): those that launch Triton kernels run as their Python says.

All others are one operator, with the shapes that the script registered for fake tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from torch._library.custom_ops import OPDEFS

#: Through so many functions a kernel is looked for.
_DEPTH = 8


def implementation(name: str) -> Callable[..., Any] | None:
    """Return the Python function that runs an operator on a GPU; None where it launches no Triton kernel."""
    definition = OPDEFS.get(name)
    if definition is None or "triton" not in sys.modules:
        return None
    functions = definition._backend_fns
    found = functions.get("cuda") or functions.get(None)
    return found if found is not None and _launches(found, set(), _DEPTH) else None


def _launches(value: Any, seen: set[int], depth: int) -> bool:
    """Whether a value is a kernel, or a function that names one, or names a function that does."""
    from triton.runtime import KernelInterface

    if isinstance(value, KernelInterface):
        return True
    if not isinstance(value, FunctionType) or not depth or id(value) in seen:
        return False
    seen.add(id(value))
    return any(_launches(one, seen, depth - 1) for one in _named(value))


def _named(function: FunctionType) -> Iterator[Any]:
    """Yield what a function names: of its module and of the functions around it, and its arguments' defaults."""
    yield from function.__defaults__ or ()
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # nothing was assigned yet
            continue


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
