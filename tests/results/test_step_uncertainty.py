"""How sure a step time is: which operators were predicted, by what, and between which times the step is expected."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from test_result import published_schema, violations

import triosim
from triosim.networks.extensions import ErrorEstimator
from triosim.results.metrics import StepTimes
from triosim.results.operator_columns import OperatorColumns
from triosim.results.result import Result
from triosim.results.uncertainty import (
    EXPERTS,
    EXPERTS_ERROR,
    FUSION,
    FUSION_ERROR,
    HIDDEN,
    LAUNCH_ERROR,
    SLOWDOWN_ERROR,
    STEP,
    STEP_ERROR,
    WIDTH,
    Waits,
    communication_error,
    doubts,
    hidden_launches,
    interval,
    predictions,
)
from triosim.results.values import CollectiveTimes, Doubt, ExposedShare, RankTimes
from triosim.trace import Operator, Trace


def operator(number: int, name: str, seconds: float, model: str | None = None, error: float | None = None) -> Operator:
    return Operator(number, name, "forward", "a", (), (), seconds, predicted_by=model, relative_error=error)


MEASURED = Trace((operator(1, "mm", 1.0),), 1)
PREDICTED = Trace((operator(1, "mm", 1.0, "m", 0.1),), 1)


def parts(
    operators: list[Operator],
    step: float,
    *,
    exposed: float = 0.0,
    network: float = 0.0,
    trace: Trace = MEASURED,
    waits: Waits | None = None,
) -> tuple[Doubt, ...]:
    """Return the doubts about a step of one rank, which computes except while communication is exposed."""
    ranks = (RankTimes(0, step - exposed, exposed, exposed, 0.0, 0.0),)
    times = StepTimes(step, 1, ranks, OperatorColumns([([0], [(tuple(operators), 1)])]), ())
    return doubts(times, trace, network, waits or Waits())


def half_width(operators: list[Operator], step: float, exposed: float = 0.0) -> float:
    found = interval(step, parts(operators, step, exposed=exposed))
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


def test_what_is_measured_is_certain() -> None:
    half = [operator(1, "mm", 1.0, "m", 0.2), operator(2, "mm", 1.0)]
    assert half_width(half, 2.0) == pytest.approx(WIDTH * 0.1)
    assert half_width(half, 4.0, exposed=2.0) == pytest.approx(WIDTH * 0.1 / 2)
    assert parts([operator(1, "mm", 2.0)], 2.0) == ()
    assert interval(2.0, ()) is None


def test_a_model_whose_times_another_scaled_is_named_once() -> None:
    work = [operator(1, "mm", 3.0, "forest", 0.1), operator(2, "bmm", 4.0, "forest, linear", 0.1)]
    (one,) = parts(work, 7.0)
    assert (one.source, one.error_s) == ("operators predicted by forest", pytest.approx(0.5))


class Doubtful(ErrorEstimator):
    """A network whose all-reduces are 20% off, and nothing else."""

    def relative_error(self, kind: str, gpus: int, nbytes: float) -> float:
        return 0.2 if kind == "all_reduce" else 0.0


def test_exposed_communication_is_as_far_off_as_the_transfers_of_its_axis() -> None:
    """Of dp's 4 s three are all-reduces: 15%, of the 2 s in which something moves; sends of pp are certain."""
    rows = [
        CollectiveTimes("all_reduce", 8, 1e6, 3, 3.0, "dp"),
        CollectiveTimes("all_gather", 8, 1e6, 1, 1.0, "dp"),
        CollectiveTimes("send", 2, 1e6, 1, 5.0, "pp"),
    ]
    exposed = [ExposedShare("dp", "a", 1.5, 0.5), ExposedShare("dp", "b", 1.0, 0.0), ExposedShare("pp", "", 5.0, 0.0)]
    assert communication_error(rows, exposed, cast(Any, Doubtful())) == pytest.approx(2.0 * 0.15)


def test_the_network_errs_independently_of_operators() -> None:
    """10% of the 2 s that compute, and 0.15 s of those that communicate, of a step of 4 s."""
    found = interval(4.0, parts([operator(1, "mm", 2.0, "m", 0.1)], 4.0, exposed=2.0, network=0.15))
    assert found is not None
    assert found[1] / 4.0 - 1.0 == pytest.approx(WIDTH * math.hypot(0.2, 0.15) / 4.0)


def test_of_a_step_that_nobody_measured_its_machine_and_launches_are_doubted_too() -> None:
    """Of 4 s one waits for launches, and 0.5 are due to communication beside; the operators' 10% count in the other 3."""
    work = [operator(1, "mm", 2.0, "m", 0.1)]
    waits = Waits(launches_s=1.0, slowed_s=0.5)
    found = {one.source: one for one in parts(work, 4.0, trace=PREDICTED, waits=waits)}
    assert {name: one.error_s for name, one in found.items()} == {
        "operators predicted by m": pytest.approx(0.3),
        "launches by the host": pytest.approx(LAUNCH_ERROR),
        "computation beside communication": pytest.approx(SLOWDOWN_ERROR * 0.5),
        "machine and framework": pytest.approx(STEP_ERROR * 4.0),
    }
    errors = [one.error_s for one in found.values()]
    assert errors == sorted(errors, reverse=True)
    assert sum(one.share for one in found.values()) == pytest.approx(1.0)
    measured = parts(work, 4.0, waits=waits)
    assert {one.source for one in measured} == {"operators predicted by m", "computation beside communication"}


def test_machines_and_frameworks_only_make_a_step_longer() -> None:
    """They widen the upper end; operators, 10% off, both."""
    found = [Doubt("operators predicted by m", 0.3, 0.0, ""), Doubt(STEP, 0.4, 0.0, "")]
    assert interval(3.0, found) == pytest.approx((3.0 / (1.0 + WIDTH * 0.1), 3.0 * (1.0 + WIDTH * 0.5 / 3.0)))


def test_launches_that_would_not_hide_if_they_cost_more_only_make_a_step_longer() -> None:
    """A host that launches for 3.6 of 4 s: 1 + 2.06 x 25% times as much is more than the step; of 2 s nothing shows."""
    work = [operator(1, "mm", 4.0, "m", 0.01)]
    found = {one.source: one for one in parts(work, 4.0, trace=PREDICTED, waits=Waits(host_s=3.6))}
    late = 3.6 * (1.0 + WIDTH * LAUNCH_ERROR) - 4.0
    assert found[HIDDEN].error_s == pytest.approx(late / WIDTH)
    assert interval(4.0, [found[HIDDEN]]) == pytest.approx((4.0, 4.0 + late))
    assert HIDDEN not in {one.source for one in parts(work, 4.0, trace=PREDICTED, waits=Waits(host_s=2.0))}
    assert HIDDEN not in {one.source for one in parts(work, 4.0, waits=Waits(host_s=3.6))}  # a measured script's


def test_waiting_for_launches_and_launches_that_hide_are_one_doubt() -> None:
    """Of a step that its host bounds throughout, both come to the cost of all launches."""
    waits = Waits(launches_s=1.0, host_s=4.0)
    hidden = hidden_launches(waits, 4.0, 0.3)
    assert math.hypot(hidden, 0.3 * waits.launches_s) == pytest.approx(0.3 * 4.0)


def test_what_frameworks_fuse_makes_a_described_step_shorter() -> None:
    """A quarter of the 2 s of element-wise operators and reductions; none of a captured step's, which has its kernels."""
    names = ("aten::mm", "aten::mul", "aten::mean", "fused::chain")
    work = [operator(number, name, 1.0, "m", 0.01) for number, name in enumerate(names)]
    described = replace(PREDICTED, software={"described": "bf16", "stack": "eager"})
    (found,) = (one for one in parts(work, 4.0, trace=described) if one.source == FUSION)
    assert found.error_s == pytest.approx(FUSION_ERROR * 2.0)
    assert interval(4.0, [found]) == pytest.approx((4.0 / (1.0 + WIDTH * FUSION_ERROR / 2.0), 4.0))
    assert FUSION not in {one.source for one in parts(work, 4.0, trace=PREDICTED)}


def test_a_mixture_of_experts_is_doubted_as_a_whole_unless_it_was_measured() -> None:
    predicted = operator(1, "aten::_grouped_mm", 2.0, "m", 0.1)
    found = {one.source: one.error_s for one in parts([predicted], 4.0)}
    assert found[EXPERTS] == pytest.approx(EXPERTS_ERROR * 4.0)
    assert parts([operator(1, "aten::_grouped_mm", 2.0)], 4.0) == ()


def test_measured_operators_with_exposed_collectives_have_an_interval(trace: Trace) -> None:
    result = triosim.simulate(trace, "ddp", gpus=8, topology="dgx-h100")
    assert result.data.predictions == ()
    assert result.step_time_interval_s is not None
    low, high = result.step_time_interval_s
    off = communication_error(result.data.collectives, result.data.exposed_communication, result.network)
    assert high / result.step_time_s - 1 == pytest.approx(WIDTH * off / result.step_time_s)
    assert low < result.step_time_s < high
    assert "all measured; the range of the step time" in " ".join(str(result).split())


def test_a_machine_that_nobody_measured_makes_the_step_less_sure(trace: Trace) -> None:
    """The same step, computed and sent as fast; for the other system another machine's collectives are scaled."""
    steps = [
        triosim.simulate(trace, "ddp", gpus=8, topology=name, batch_size=512, fold=fold)
        for fold in (True, False)
        for name in ("switch(8, bandwidth=450 GB/s)", "dgx-h100", "dgx-h100(bandwidth=100 GB/s)")
    ]
    off = [communication_error(one.data.collectives, one.data.exposed_communication, one.network) for one in steps]
    exposed = [sum(share.exposed_s - share.waiting_s for share in one.data.exposed_communication) for one in steps]
    shares = [error / seconds for error, seconds in zip(off, exposed, strict=True)]
    none, measured, other = shares[:3]
    assert none == 0.0 < measured < other
    assert shares[3:] == pytest.approx(shares[:3])  # whether equal ranks are simulated once or not


def test_a_model_that_cannot_say_its_error_is_taken_to_err_by_30_percent() -> None:
    (row,) = predictions(OperatorColumns([([0], [((operator(1, "aten::mm", 2.0, "m"),), 1)])]), 1)
    assert (row.model, row.names, row.seconds, row.relative_error) == ("m", ("mm",), 2.0, 0.3)


def test_predictions_are_the_mean_over_ranks_and_steps_with_the_longest_first() -> None:
    long, short = operator(1, "mm", 4.0, "m", 0.1), operator(2, "relu", 1.0, "n", 0.2)
    columns = OperatorColumns([([0, 1], [((short,), 2)]), ([2, 3], [((long, short), 2)])])
    rows = list(predictions(columns, 2))
    assert [(row.model, row.operators, row.seconds) for row in rows] == [("m", 0.5, 2.0), ("n", 1, 1.0)]


# ---- a whole run -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace() -> Trace:
    import traces

    return traces.mlp(batch=256, sizes=(256, 512, 256, 64))


def test_a_measured_run_has_no_interval_and_says_so(trace: Trace) -> None:
    result = triosim.simulate(trace, gpus=1)
    assert result.step_time_interval_s is None
    assert result.data.doubts == ()
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
    for key in ("step_time_interval_s", "doubts", "predictions", "launch_wait_s"):
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
