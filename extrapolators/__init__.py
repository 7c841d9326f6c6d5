"""How one GPU's trace becomes many GPUs' task streams: the program, the mesh, and one file for each parallelism.

This is what those who write a parallelism need. The names are loaded when they are asked for (PEP 562), so that importing
the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triosim.extrapolators.base import Extrapolator as Extrapolator
    from triosim.extrapolators.base import ParallelOptions as ParallelOptions
    from triosim.extrapolators.holding import Holding as Holding
    from triosim.extrapolators.loop import Loop as Loop
    from triosim.extrapolators.mesh import Axis as Axis
    from triosim.extrapolators.mesh import Mesh as Mesh
    from triosim.extrapolators.plan import Plan as Plan
    from triosim.extrapolators.program import Await as Await
    from triosim.extrapolators.program import Block as Block
    from triosim.extrapolators.program import Communicate as Communicate
    from triosim.extrapolators.program import Gradient as Gradient
    from triosim.extrapolators.program import Item as Item
    from triosim.extrapolators.program import Program as Program
    from triosim.extrapolators.program import ReactionMaker as ReactionMaker
    from triosim.extrapolators.program import Receive as Receive
    from triosim.extrapolators.program import Send as Send
    from triosim.extrapolators.program import Stage as Stage
    from triosim.extrapolators.reaction import Reaction as Reaction
    from triosim.extrapolators.reaction import reacting as reacting
    from triosim.extrapolators.reaction import require_gradients as require_gradients
    from triosim.extrapolators.schedule import Action as Action
    from triosim.extrapolators.schedule import Schedule as Schedule
    from triosim.extrapolators.schedule import in_flight as in_flight

_HOMES = {
    "Action": "schedule",
    "Await": "program",
    "Axis": "mesh",
    "Block": "program",
    "Communicate": "program",
    "Extrapolator": "base",
    "Gradient": "program",
    "Holding": "holding",
    "Item": "program",
    "Loop": "loop",
    "Mesh": "mesh",
    "ParallelOptions": "base",
    "Plan": "plan",
    "Program": "program",
    "Reaction": "reaction",
    "ReactionMaker": "program",
    "Receive": "program",
    "Schedule": "schedule",
    "Send": "program",
    "Stage": "program",
    "in_flight": "schedule",
    "reacting": "reaction",
    "require_gradients": "reaction",
}
__all__ = [
    "Action",
    "Await",
    "Axis",
    "Block",
    "Communicate",
    "Extrapolator",
    "Gradient",
    "Holding",
    "Item",
    "Loop",
    "Mesh",
    "ParallelOptions",
    "Plan",
    "Program",
    "Reaction",
    "ReactionMaker",
    "Receive",
    "Schedule",
    "Send",
    "Stage",
    "in_flight",
    "reacting",
    "require_gradients",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
