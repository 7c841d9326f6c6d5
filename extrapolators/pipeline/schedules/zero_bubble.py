"""ZB-H1 (Qi et al. 2024, "Zero Bubble Pipeline Parallelism"): the gradients of parameters are computed when there is time.

1F1B whose backward pass is split: the next place waits for the gradient of the input alone. Place r puts off the weight part
of r micro-batches, so that no place holds more micro-batches than 1F1B's first one does.
"""

from __future__ import annotations

from triosim.extrapolators.core.schedule import Action, ScheduleTable


def zero_bubble(places: int, micro_batches: int) -> ScheduleTable:
    """The bubble is (p - 1) (F + I - W) for at least p micro-batches, where W takes no longer than F or I."""
    return ScheduleTable.of([_row(place, places, micro_batches) for place in range(places)])


def _row(place: int, places: int, micro_batches: int) -> list[Action]:
    ahead = min(places - 1 - place, micro_batches)
    row = [Action(place, "forward", index) for index in range(ahead)]
    for index in range(micro_batches):
        if ahead + index < micro_batches:
            row.append(Action(place, "forward", ahead + index))
        row.append(Action(place, "input", index))
        if index >= place:
            row.append(Action(place, "weight", index - place))
    left = range(max(micro_batches - place, 0), micro_batches)
    return [*row, *(Action(place, "weight", index) for index in left)]
