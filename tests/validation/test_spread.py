"""The constants of doubts are those whose intervals cost least: their width, and what lies outside."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from triosim.results.uncertainty import EXPERTS, LAUNCHES, STEP, WIDTH
from triosim.results.values import Doubt
from validation.steps.spread import CONSTANTS, Judged, JudgedStep, fit, read


def step(measured: float, **doubts: float) -> JudgedStep:
    """Return a step with doubts by their sources: s of machine and framework, e of experts, o of operators."""
    names = {"s": STEP, "e": EXPERTS, "o": "operators predicted by m"}
    return JudgedStep(measured, tuple(Doubt(names[key], error, 0.0, "") for key, error in doubts.items()))


def test_another_constant_scales_the_doubt_that_it_makes_and_no_other() -> None:
    one = step(1.0, s=CONSTANTS[STEP], o=0.1)
    low, high = one.ends({**CONSTANTS, STEP: 2.0 * CONSTANTS[STEP]})
    assert low == pytest.approx(1.0 / (1.0 + WIDTH * 0.1))
    assert high == pytest.approx(1.0 + WIDTH * math.hypot(0.1, 2.0 * CONSTANTS[STEP]))


def test_the_score_is_the_width_and_twenty_times_what_is_outside() -> None:
    width = math.log1p(WIDTH * 0.1)
    assert step(1.0, o=0.1).score(CONSTANTS) == pytest.approx(2.0 * width)
    assert step(math.exp(width + 0.01), o=0.1).score(CONSTANTS) == pytest.approx(2.0 * width + 0.2)
    assert step(math.exp(-width - 0.01), o=0.1).score(CONSTANTS) == pytest.approx(2.0 * width + 0.2)


def test_another_cost_of_launches_decides_how_far_they_hide() -> None:
    """Launches of 90% of the step that are 20% off: 0.9 (1 + 2.06 x 0.2) is 27% more than the step."""
    one = JudgedStep(1.0, (), launches=0.9)
    assert one.ends({**CONSTANTS, LAUNCHES: 0.2}) == pytest.approx((1.0, 0.9 * (1.0 + WIDTH * 0.2)))


def test_of_steps_that_are_ten_percent_late_at_most_the_upper_end_is_there() -> None:
    """Of forty steps 39 take up to 10% longer, which 0.1 / 2.06 = 4.9% covers; one takes twice as long, and is given up."""
    shipped = {"s": CONSTANTS[STEP]}
    steps = [*(step(1.0 + 0.1 * number / 39, **shipped) for number in range(1, 40)), step(2.0, **shipped)]
    found = fit({"a": steps})
    assert found[STEP] == pytest.approx(0.05)
    assert Judged.of(steps, found).covered == 39 / 40


def test_each_source_counts_once_whatever_its_rows() -> None:
    """Ninety steps that need nothing, and ten in another table that need 20%: the ten are not left outside."""
    shipped = {"s": CONSTANTS[STEP]}
    found = fit({"sure": [step(1.0, **shipped)] * 90, "late": [step(1.2, **shipped)] * 10})
    assert Judged.of([step(1.2, **shipped)], found).covered == 1.0


def test_steps_are_read_by_table_and_memory_is_left_out(tmp_path: Path) -> None:
    row = {"table": "t", "quantity": "step time", "measured": 3.0, "predicted": 2.0, "doubts": {STEP: 0.14}}
    memory, certain = {**row, "quantity": "peak memory"}, {**row, "doubts": {}}
    (tmp_path / "rows.json").write_text(json.dumps({"rows": [row, memory, certain]}))
    found = read(tmp_path / "rows.json")
    assert [(one.measured, one.doubts[0].source) for one in found["t"]] == [(1.5, STEP)]
