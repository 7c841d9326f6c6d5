"""Interleaved 1F1B (Narayanan et al. 2021, section 2.2): each place has v stages, which lie p stages apart."""

from __future__ import annotations

from triosim.errors import OptionError
from triosim.extrapolators.core.schedule import Action, ScheduleTable
from triosim.extrapolators.pipeline.schedules.one_f_one_b import in_turn


def interleaved(places: int, micro_batches: int, virtual_stages: int) -> ScheduleTable:
    """The bubble is 1/v of 1F1B's; v times as much is sent.

    Micro-batches go through in groups of p: a place runs a group in one of its stages, then in the next.
    """
    if micro_batches % places:
        raise OptionError(
            f"{micro_batches} micro-batches do not divide by {places} pipeline ranks",
            where="schedule interleaved",
            fix=f"use a multiple of {places}",
        )
    groups = range(0, micro_batches, places)
    order = [(turn, first + i) for first in groups for turn in range(virtual_stages) for i in range(places)]
    rows = []
    for place in range(places):
        forward = [Action(turn * places + place, "forward", index) for turn, index in order]
        backward = [Action((virtual_stages - 1 - turn) * places + place, "backward", index) for turn, index in order]
        rows.append(in_turn(forward, backward, ahead=2 * (places - 1 - place) + (virtual_stages - 1) * places))
    return ScheduleTable.of(rows)
