"""How sure a step time is: which operators were predicted, by what, and between which times the step is expected."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from test_result import published_schema, violations

import triosim
from triosim.results.result import Result
from triosim.results.uncertainty import WIDTH, interval, predictions
from triosim.results.values import RankTimes
from triosim.trace import Operator, Trace


def operator(number: int, name: str, seconds: float, model: str | None = None, error: float | None = None) -> Operator:
    return Operator(number, name, "forward", "a", (), (), seconds, predicted_by=model, relative_error=error)


def rank(seconds: float, exposed: float = 0.0, waiting: float = 0.0) -> dict[int, RankTimes]:
    return {0: RankTimes(0, seconds, exposed, exposed, 0.0, waiting)}


def half_width(operators: list[Operator], step: float, exposed: float = 0.0) -> float:
    found = interval(step, [([0], [(operators, 1)])], rank(step - exposed, exposed), 0.0)
    assert found is not None
    low, high = found
    assert low * high == pytest.approx(step * step)
    return high / step - 1.0


def test_errors_of_one_kind_add_up_and_those_of_different_kinds_add_in_squares() -> None:
    one_kind = [operator(1, "mm", 3.0, "m", 0.1), operator(2, "mm", 4.0, "m", 0.1)]
    two_kinds = [operator(1, "mm", 3.0, "m", 0.1), operator(2, "conv", 4.0, "m", 0.1)]
    two_models = [operator(1, "mm", 3.0, "m", 0.1), operator(2, "mm", 4.0, "n", 0.1)]
    assert half_width(one_kind, 7.0) == pytest.approx(WIDTH * 0.7 / 7)
    assert half_width(two_kinds, 7.0) == pytest.approx(WIDTH * 0.5 / 7)
    assert half_width(two_models, 7.0) == pytest.approx(WIDTH * 0.5 / 7)


def test_nine_of_ten_normal_errors_are_inside() -> None:
    """Of a normal distribution with mean absolute deviation 1, the standard deviation is sqrt(pi/2)."""
    assert math.erf(WIDTH / math.sqrt(math.pi / 2) / math.sqrt(2)) == pytest.approx(0.9, abs=1e-3)


def test_what_is_measured_and_what_is_on_the_wire_is_certain() -> None:
    half = [operator(1, "mm", 1.0, "m", 0.2), operator(2, "mm", 1.0)]
    assert half_width(half, 2.0) == pytest.approx(WIDTH * 0.1)
    assert half_width(half, 4.0, exposed=2.0) == pytest.approx(WIDTH * 0.1 / 2)
    assert interval(2.0, [([0], [([operator(1, "mm", 2.0)], 1)])], rank(2.0), 0.0) is None


def test_a_model_that_cannot_say_its_error_is_taken_to_err_by_30_percent() -> None:
    (row,) = predictions([([0], [([operator(1, "aten::mm", 2.0, "m")], 1)])], 1)
    assert (row.model, row.names, row.seconds, row.relative_error) == ("m", ("mm",), 2.0, 0.3)


def test_predictions_are_the_mean_over_ranks_and_steps_with_the_longest_first() -> None:
    long, short = operator(1, "mm", 4.0, "m", 0.1), operator(2, "relu", 1.0, "n", 0.2)
    rows = list(predictions([([0, 1], [([short], 2)]), ([2, 3], [([long, short], 2)])], 2))
    assert [(row.model, row.operators, row.seconds) for row in rows] == [("m", 0.5, 2.0), ("n", 1, 1.0)]


# ---- a whole run -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace() -> Trace:
    import traces

    return traces.mlp(batch=256, sizes=(256, 512, 256, 64))


def test_a_measured_run_has_no_interval_and_says_so(trace: Trace) -> None:
    result = triosim.simulate(trace, gpus=1)
    assert result.step_time_interval_s is None
    assert result.data.predictions == ()
    assert "all measured" in str(result)


def test_a_predicted_run_shows_its_interval_and_where_it_comes_from(trace: Trace, tmp_path: Path) -> None:
    result = triosim.simulate(trace, gpus=1, batch_size=512)
    assert result.step_time_interval_s is not None
    low, high = result.step_time_interval_s
    assert low < result.step_time_s < high
    assert "predicted by roofline" in str(result)
    assert "linear ±" in str(result)
    assert "is a 90% interval" in result._repr_html_()
    assert violations(json.loads(result.to_json()), published_schema()) == []
    result.save(tmp_path / "result.json")
    assert Result.load(tmp_path / "result.json").data == result.data
    result.to_csv(tmp_path / "result.csv")
    assert "step_time_high" in (tmp_path / "result.csv").read_text()


def test_a_result_of_before_there_were_intervals_is_still_read(trace: Trace, tmp_path: Path) -> None:
    result = triosim.simulate(trace, gpus=1)
    old = result.to_dict()
    for key in ("step_time_interval_s", "predictions", "launch_wait_s"):
        del old[key]
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert Result.load(tmp_path / "old.json").data == result.data


def test_more_replicas_are_no_less_sure(trace: Trace) -> None:
    alone = triosim.simulate(trace, gpus=1, batch_size=512)
    many = triosim.simulate(trace, "ddp", gpus=8, topology="dgx-h100", batch_size=512)
    assert alone.step_time_interval_s is not None
    assert many.step_time_interval_s is not None
    spread = [one.step_time_interval_s[1] / one.step_time_s for one in (alone, many) if one.step_time_interval_s]
    assert spread[1] <= spread[0] * 1.000001


def test_vgg_at_four_times_the_batch_is_measured_inside_the_interval(data_dir: Path) -> None:
    """The raw profile at batch 512 is not what the interval was made from."""
    folder = data_dir / "traces"
    measured = triosim.simulate(folder / "h100_vgg13_bs512_raw", gpus=1).step_time_s
    found = triosim.simulate(folder / "h100_vgg13_bs128", gpus=1, batch_size=512)
    assert found.step_time_interval_s is not None
    low, high = found.step_time_interval_s
    assert low < measured < high < 1.25 * found.step_time_s


def test_a_launch_bound_step_is_not_uncertain_by_its_compute(trace: Trace) -> None:
    fast = replace(trace, operators=tuple(replace(op, seconds=op.seconds / 1000) for op in trace.operators))
    bound = triosim.simulate(fast, gpus=1, batch_size=512, host_overhead="1 ms")
    assert bound.step_time_interval_s is not None
    assert bound.step_time_interval_s[1] < 1.01 * bound.step_time_s
