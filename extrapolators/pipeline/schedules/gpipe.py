"""GPipe (Huang et al. 2019): all micro-batches forward, then all backward."""

from __future__ import annotations

from triosim.extrapolators.core.schedule import Action, ActionPhase, ScheduleTable


def gpipe(places: int, micro_batches: int) -> ScheduleTable:
    """The bubble is (p - 1) of a micro-batch's forward and backward pass; each place holds all micro-batches."""
    phases: tuple[ActionPhase, ...] = ("forward", "backward")
    return ScheduleTable.of(
        [[Action(place, phase, index) for phase in phases for index in range(micro_batches)] for place in range(places)]
    )
