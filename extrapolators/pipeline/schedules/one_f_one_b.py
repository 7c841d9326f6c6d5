"""1F1B (PipeDream-Flush, Narayanan et al. 2021): after a start-up, one forward and one backward pass in turn."""

from __future__ import annotations

from collections.abc import Sequence

from triosim.extrapolators.core.schedule import Action, ScheduleTable


def one_f_one_b(places: int, micro_batches: int) -> ScheduleTable:
    """The bubble is GPipe's; place r of p holds at most p - r micro-batches."""
    return ScheduleTable.of(
        [
            in_turn(
                [Action(place, "forward", index) for index in range(micro_batches)],
                [Action(place, "backward", index) for index in range(micro_batches)],
                ahead=places - 1 - place,
            )
            for place in range(places)
        ]
    )


def in_turn(forward: Sequence[Action], backward: Sequence[Action], *, ahead: int) -> list[Action]:
    """The first ``ahead`` forward passes, then one forward and one backward in turn, then the backward passes left."""
    ahead = min(ahead, len(forward))
    pairs = zip(forward[ahead:], backward, strict=False)
    return [*forward[:ahead], *(action for pair in pairs for action in pair), *backward[len(forward) - ahead :]]
