"""Extrapolators turn one GPU's trace into many GPUs' task streams: the program, the mesh, and one file for each parallelism.

These are the names that the author of a parallelism needs. They are loaded when they are asked for (PEP 562), so that importing
the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triosim.extrapolators.core.extrapolator import Extrapolator as Extrapolator
    from triosim.extrapolators.core.hooks import RankContext as RankContext
    from triosim.extrapolators.core.hooks import TrainingHooks as TrainingHooks
    from triosim.extrapolators.core.hooks import require_gradients as require_gradients
    from triosim.extrapolators.core.hooks import with_hooks as with_hooks
    from triosim.extrapolators.core.memory import MemoryFootprint as MemoryFootprint
    from triosim.extrapolators.core.mesh import Axis as Axis
    from triosim.extrapolators.core.mesh import Mesh as Mesh
    from triosim.extrapolators.core.plan import ParallelPlan as ParallelPlan
    from triosim.extrapolators.core.program import Await as Await
    from triosim.extrapolators.core.program import Block as Block
    from triosim.extrapolators.core.program import BlockItem as BlockItem
    from triosim.extrapolators.core.program import Communicate as Communicate
    from triosim.extrapolators.core.program import Gradient as Gradient
    from triosim.extrapolators.core.program import HooksFactory as HooksFactory
    from triosim.extrapolators.core.program import Program as Program
    from triosim.extrapolators.core.program import ReceiveFromStage as ReceiveFromStage
    from triosim.extrapolators.core.program import SendToStage as SendToStage
    from triosim.extrapolators.core.program import Stage as Stage
    from triosim.extrapolators.core.schedule_table import Action as Action
    from triosim.extrapolators.core.schedule_table import ScheduleTable as ScheduleTable
    from triosim.extrapolators.core.schedule_table import in_flight as in_flight
    from triosim.extrapolators.core.training_loop import TrainingLoop as TrainingLoop
    from triosim.extrapolators.pipeline.schedule import PipelineSchedule as PipelineSchedule

_MODULES = {
    "core.extrapolator": ["Extrapolator"],
    "core.hooks": ["RankContext", "TrainingHooks", "require_gradients", "with_hooks"],
    "core.memory": ["MemoryFootprint"],
    "core.mesh": ["Axis", "Mesh"],
    "core.plan": ["ParallelPlan"],
    "core.program": [
        *("Await", "Block", "BlockItem", "Communicate", "Gradient", "HooksFactory", "Program"),
        *("ReceiveFromStage", "SendToStage", "Stage"),
    ],
    "core.schedule_table": ["Action", "ScheduleTable", "in_flight"],
    "core.training_loop": ["TrainingLoop"],
    "pipeline.schedule": ["PipelineSchedule"],
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
