"""How one GPU's trace becomes many GPUs' task streams: the program, the mesh, and one file for each parallelism.

The names are loaded when they are asked for (PEP 562), so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triosim.extrapolators.base import Extrapolator as Extrapolator
    from triosim.extrapolators.base import ParallelOptions as ParallelOptions
    from triosim.extrapolators.lowering import Loop as Loop
    from triosim.extrapolators.mesh import Mesh as Mesh
    from triosim.extrapolators.plan import Plan as Plan
    from triosim.extrapolators.program import Block as Block
    from triosim.extrapolators.program import Program as Program
    from triosim.extrapolators.reaction import Reaction as Reaction

_HOMES = {
    "Block": "program",
    "Extrapolator": "base",
    "Loop": "lowering",
    "Mesh": "mesh",
    "ParallelOptions": "base",
    "Plan": "plan",
    "Program": "program",
    "Reaction": "reaction",
}
__all__ = ["Block", "Extrapolator", "Loop", "Mesh", "ParallelOptions", "Plan", "Program", "Reaction"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
