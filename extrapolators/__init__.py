"""How one GPU's trace becomes many GPUs' task streams: the program, the mesh, and one file for each parallelism.

This is what those who write a parallelism need. The names are loaded when they are asked for (PEP 562), so that importing
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
    from triosim.extrapolators.core.memory_footprint import MemoryFootprint as MemoryFootprint
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

_HOMES = {
    "Action": "core.schedule_table",
    "Await": "core.program",
    "Axis": "core.mesh",
    "Block": "core.program",
    "BlockItem": "core.program",
    "Communicate": "core.program",
    "Extrapolator": "core.extrapolator",
    "Gradient": "core.program",
    "HooksFactory": "core.program",
    "MemoryFootprint": "core.memory_footprint",
    "Mesh": "core.mesh",
    "ParallelPlan": "core.plan",
    "PipelineSchedule": "pipeline.schedule",
    "Program": "core.program",
    "RankContext": "core.hooks",
    "ReceiveFromStage": "core.program",
    "ScheduleTable": "core.schedule_table",
    "SendToStage": "core.program",
    "Stage": "core.program",
    "TrainingHooks": "core.hooks",
    "TrainingLoop": "core.training_loop",
    "in_flight": "core.schedule_table",
    "require_gradients": "core.hooks",
    "with_hooks": "core.hooks",
}
__all__ = [
    "Action",
    "Await",
    "Axis",
    "Block",
    "BlockItem",
    "Communicate",
    "Extrapolator",
    "Gradient",
    "HooksFactory",
    "MemoryFootprint",
    "Mesh",
    "ParallelPlan",
    "PipelineSchedule",
    "Program",
    "RankContext",
    "ReceiveFromStage",
    "ScheduleTable",
    "SendToStage",
    "Stage",
    "TrainingHooks",
    "TrainingLoop",
    "in_flight",
    "require_gradients",
    "with_hooks",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
