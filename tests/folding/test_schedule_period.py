"""Schedules repeat themselves: what a period is, and that fewer of them are the same schedule of fewer micro-batches."""

from __future__ import annotations

from typing import Any

import pytest

from triosim.config import RunConfig
from triosim.extrapolators.core.schedule_table import ScheduleTable, accumulate
from triosim.extrapolators.pipeline.schedule_choice import chosen_schedule, table_of
from triosim.folding.schedule_period import SchedulePeriod, period_of, shortened


def table(name: str, ranks: int, micro_batches: int, **options: Any) -> ScheduleTable:
    return table_of(chosen_schedule(RunConfig.of(schedule=name, **options)), ranks, micro_batches)


def test_1f1b_repeats_one_forward_and_one_backward_pass():
    """Rank 0 of 2 first runs 0F0, then (F1 B0) to (F7 B6) and B7; rank 1 has (F0 B0) to (F7 B7)."""
    found = period_of(table("1f1b", 2, 8))
    assert found == SchedulePeriod(micro_batches=1, count=7, begins=(1, 0), slots=(2, 2))
    assert list(found.marks(0)) == [1, 3, 5, 7, 9, 11, 13]


def test_interleaved_1f1b_repeats_groups_of_as_many_micro_batches_as_ranks():
    """A group of 4 goes forward and backward through 3 stages of a rank: 24 slots."""
    found = period_of(table("interleaved", 4, 32, virtual_stages=3))
    assert found is not None
    assert (found.micro_batches, set(found.slots)) == (4, {24})


@pytest.mark.parametrize(
    ("name", "options"), [("1f1b", {}), ("interleaved", {"virtual_stages": 2}), ("zero-bubble", {})]
)
def test_a_schedule_of_fewer_periods_is_that_of_fewer_micro_batches(name, options):
    whole = table(name, 4, 48, **options)
    period = period_of(whole)
    left = 3
    fewer = 48 - (period.count - left) * period.micro_batches
    assert shortened(whole, period, left) == table(name, 4, fewer, **options)


def test_accumulated_gradients_repeat_every_micro_batch():
    period = period_of(accumulate(9))
    assert period == SchedulePeriod(micro_batches=1, count=9, begins=(0,), slots=(2,))
    assert shortened(accumulate(9), period, 4) == accumulate(4)


@pytest.mark.parametrize("name", ["gpipe", "dualpipe"])
def test_schedules_that_turn_round_in_the_middle_have_no_period(name):
    assert period_of(table(name, 4, 16)) is None
