"""How one GPU's trace becomes many GPUs' task streams: the program, the mesh, and one file for each parallelism.

This is what those who write a parallelism need. The names are loaded when they are asked for (PEP 562), so that importing
the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triosim.extrapolators.core.extrapolator import Extrapolator as Extrapolator
    from triosim.extrapolators.core.extrapolator import ParallelOptions as ParallelOptions
    from triosim.extrapolators.core.hooks import Reaction as Reaction
    from triosim.extrapolators.core.hooks import reacting as reacting
    from triosim.extrapolators.core.hooks import require_gradients as require_gradients
    from triosim.extrapolators.core.memory_footprint import Holding as Holding
    from triosim.extrapolators.core.mesh import Axis as Axis
    from triosim.extrapolators.core.mesh import Mesh as Mesh
    from triosim.extrapolators.core.plan import Plan as Plan
    from triosim.extrapolators.core.program import Await as Await
    from triosim.extrapolators.core.program import Block as Block
    from triosim.extrapolators.core.program import Communicate as Communicate
    from triosim.extrapolators.core.program import Gradient as Gradient
    from triosim.extrapolators.core.program import Item as Item
    from triosim.extrapolators.core.program import Program as Program
    from triosim.extrapolators.core.program import ReactionMaker as ReactionMaker
    from triosim.extrapolators.core.program import Receive as Receive
    from triosim.extrapolators.core.program import Send as Send
    from triosim.extrapolators.core.program import Stage as Stage
    from triosim.extrapolators.core.schedule import Action as Action
    from triosim.extrapolators.core.schedule import Schedule as Schedule
    from triosim.extrapolators.core.schedule import in_flight as in_flight
    from triosim.extrapolators.core.training_loop import Loop as Loop

_HOMES = {
    "Action": "core.schedule",
    "Await": "core.program",
    "Axis": "core.mesh",
    "Block": "core.program",
    "Communicate": "core.program",
    "Extrapolator": "core.extrapolator",
    "Gradient": "core.program",
    "Holding": "core.memory_footprint",
    "Item": "core.program",
    "Loop": "core.training_loop",
    "Mesh": "core.mesh",
    "ParallelOptions": "core.extrapolator",
    "Plan": "core.plan",
    "Program": "core.program",
    "Reaction": "core.hooks",
    "ReactionMaker": "core.program",
    "Receive": "core.program",
    "Schedule": "core.schedule",
    "Send": "core.program",
    "Stage": "core.program",
    "in_flight": "core.schedule",
    "reacting": "core.hooks",
    "require_gradients": "core.hooks",
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
