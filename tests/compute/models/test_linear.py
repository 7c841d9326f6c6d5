"""The regression finds the line that times were made from, and says what it found."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from triosim.compute.models.linear import Linear
from triosim.compute.pricing.repricing import reprice
from triosim.sharding.reshape import rescaled
from triosim.trace import Operator, Tensor, Trace
from triosim.trace.formats import read


def product(number: int, m: int, n: int, k: int, seconds: float) -> Operator:
    inputs = (Tensor(3 * number, (m, k), category="input"), Tensor(3 * number + 1, (n, k), category="parameter"))
    return Operator(number, "aten::linear", "forward", "fc", inputs, (Tensor(3 * number + 2, (m, n)),), seconds)


def relu(number: int, size: int, seconds: float, name: str = "aten::relu") -> Operator:
    tensor = Tensor(number, (size,))
    return Operator(number, name, "forward", "act", (tensor,), (tensor,), seconds)


def fitted(*operators: Operator) -> Linear:
    model = Linear()
    model.fit(Trace(operators, batch_size=1))
    return model


def drivers(model: Linear) -> list[str]:
    """What the times of linear layers depend on, by the model's coefficients."""
    names = ("FLOPs", "input bytes", "output bytes")
    slopes = model.lines["aten::linear", "forward"].coefficients[1:]
    return [name for name, slope in zip(names, slopes, strict=True) if slope > 0.0]


def test_a_line_in_flops_is_found_again() -> None:
    shapes = [(128, 64, 512), (128, 256, 32), (64, 512, 128), (32, 32, 32), (256, 512, 64)]
    model = fitted(*(product(i, m, n, k, 5e-6 + 2 * m * n * k * 1e-12) for i, (m, n, k) in enumerate(shapes)))
    found = model.estimate([product(9, 512, 512, 512, 0.0)], "").seconds[0]
    assert found == pytest.approx(5e-6 + 2 * 512**3 * 1e-12, rel=1e-6)
    assert drivers(model) == ["FLOPs"]


def test_a_line_in_bytes_is_found_where_flops_do_not_explain_the_times() -> None:
    shapes = [(128, 64, 512), (128, 256, 32), (64, 512, 128), (32, 32, 32), (256, 512, 64), (8, 8, 1024)]
    model = fitted(*(product(i, m, n, k, 3e-6 + 4 * (m * k + n * k) * 1e-11) for i, (m, n, k) in enumerate(shapes)))
    assert drivers(model) == ["input bytes"]


def test_times_that_need_flops_and_bytes_get_both() -> None:
    shapes = [(128, 64, 512), (128, 256, 32), (64, 512, 128), (32, 32, 32), (256, 512, 64), (8, 8, 1024), (512, 8, 8)]
    model = fitted(
        *(product(i, m, n, k, 2 * m * n * k * 1e-12 + 4 * m * n * 1e-10) for i, (m, n, k) in enumerate(shapes))
    )
    assert drivers(model) == ["FLOPs", "output bytes"]


def test_one_point_is_a_line_through_the_origin_of_unknown_error() -> None:
    estimates = fitted(relu(1, 1000, 2e-6)).estimate([relu(2, 3000, 0.0)], "")
    assert estimates.seconds[0] == pytest.approx(6e-6)
    assert math.isnan(estimates.relative_error[0])


def test_operators_of_one_size_give_no_fixed_time() -> None:
    estimates = fitted(relu(1, 1000, 2e-6), relu(2, 1000, 2e-6), relu(3, 1000, 2e-6)).estimate([relu(4, 500, 0.0)], "")
    assert estimates.seconds[0] == pytest.approx(1e-6)


def test_a_time_that_falls_with_size_is_not_believed() -> None:
    model = fitted(relu(1, 1000, 9e-6), relu(2, 2000, 6e-6), relu(3, 3000, 3e-6))
    seconds = model.estimate([relu(4, 1000, 0.0), relu(5, 100_000, 0.0)], "").seconds
    assert 0 < seconds[0] <= seconds[1]


def test_a_kind_that_is_not_in_the_trace_is_estimated_from_all() -> None:
    model = fitted(relu(1, 1000, 2e-6), relu(2, 2000, 4e-6))
    estimates = model.estimate([relu(3, 3000, 0.0, name="aten::gelu")], "")
    assert estimates.seconds[0] == pytest.approx(6e-6)


def test_operators_without_tensors_have_their_mean_time() -> None:
    bare = [Operator(i, "op", "forward", "x", (), (), seconds) for i, seconds in enumerate((1e-3, 3e-3))]
    assert fitted(*bare).estimate(bare, "").seconds == pytest.approx(np.array([2e-3, 2e-3]))


@pytest.mark.parametrize(("known", "asked"), [("h100_vgg13_bs128", "h100_vgg13_bs512_raw")])
def test_vgg13_at_another_batch_size_is_within_6_percent_both_ways(data_dir: Path, known: str, asked: str) -> None:
    """The original simulator scales by the ratio of sizes and is off by 8.6%."""
    traces = [read(data_dir / "traces" / name) for name in (known, asked)]
    for one, other in (traces, reversed(traces)):
        model = Linear()
        model.fit(one)
        shapes = rescaled(one.operators, one.batch_size, other.batch_size).operators
        predicted = sum(operator.seconds for operator in reprice(one.operators, shapes, model))
        assert predicted == pytest.approx(other.seconds, rel=0.06)
