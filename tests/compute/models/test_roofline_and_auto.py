"""The roofline of a GPU, and the choice of the model that is expected to err least."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import traces

from triosim import gpus
from triosim.compute.compute_model import ComputeModel, Estimates
from triosim.compute.models import linear, roofline
from triosim.compute.models.auto import AutoComputeModel, best
from triosim.compute.models.linear import Linear
from triosim.compute.models.roofline import DEFAULTS, LAUNCH_SECONDS, Roofline
from triosim.trace import Operator, Tensor, Trace

H100 = gpus.find("H100")
A40 = gpus.find("A40")  # its power does not limit its tensor cores


def product(m: int, n: int, k: int, dtype: str = "float32", seconds: float = 0.0, number: int = 1) -> Operator:
    first, second, out = (
        Tensor(10 * number + i, shape, dtype) for i, shape in enumerate(((m, k), (k, n), (m, n)))
    )  # fmt: skip
    return Operator(number, "aten::mm", "forward", "fc", (first, second), (out,), seconds)


def addition(elements: int, number: int = 1, seconds: float = 0.0) -> Operator:
    first, out = (Tensor(10 * number + i, (elements,), "float32") for i in (0, 1))
    return Operator(number, "aten::relu", "forward", "act", (first,), (out,), seconds)


def seconds_of(model: ComputeModel, operator: Operator, gpu: str = "H100") -> float:
    return float(model.estimate([operator], gpu).seconds[0])


def test_a_transposing_copy_is_quicker_than_one_of_parts() -> None:
    """64 MiB that are read and written; rows that are moved whole reach more of the bandwidth than parts put together."""
    data = [Tensor(number, (1 << 25,), "float16") for number in (1, 2)]
    names = {"aten::clone": "transposition", "aten::cat": "copy"}
    for name, kind in names.items():
        copy = Operator(1, name, "forward", "a", (data[0],), (data[1],), 0.0)
        found = seconds_of(Roofline(), copy) - LAUNCH_SECONDS
        assert found == pytest.approx(2 * 2**26 / (H100.bandwidth * DEFAULTS[kind].memory))
    assert DEFAULTS["transposition"].memory > DEFAULTS["copy"].memory


def test_a_large_product_takes_its_flops_at_a_part_of_the_peak() -> None:
    expected = 2 * 8192**3 / (A40.flops["bfloat16"] * DEFAULTS["product"].compute)
    found = seconds_of(Roofline(), product(8192, 8192, 8192, "bfloat16"), "A40")
    assert found == pytest.approx(expected + DEFAULTS["product"].launch)


def test_an_elementwise_operator_takes_its_bytes_at_a_part_of_the_bandwidth() -> None:
    expected = 2 * 4 * 2**28 / (H100.bandwidth * DEFAULTS["elementwise"].memory)
    assert seconds_of(Roofline(), addition(2**28)) == pytest.approx(expected + LAUNCH_SECONDS)


def test_nothing_is_faster_than_its_launch() -> None:
    assert seconds_of(Roofline(), addition(8)) == pytest.approx(LAUNCH_SECONDS, rel=1e-4)
    assert seconds_of(Roofline(), addition(8)) > LAUNCH_SECONDS


def test_a_float32_convolution_runs_in_tf32_where_there_is_tf32_and_a_product_does_not() -> None:
    data, weight, out = Tensor(1, (64, 512, 56, 56)), Tensor(2, (512, 512, 3, 3)), Tensor(3, (64, 512, 56, 56))
    convolution = Operator(1, "aten::conv2d", "forward", "c", (data, weight), (out,), 0.0)
    flops = 2.0 * 64 * 512 * 56 * 56 * 512 * 9
    on_h100, on_v100 = (seconds_of(Roofline(), convolution, gpu) for gpu in ("H100", "V100"))
    assert flops / on_h100 > H100.flops["float32"]
    assert flops / on_v100 < gpus.find("V100").flops["float32"]
    assert 2 * 8192**3 / seconds_of(Roofline(), product(8192, 8192, 8192)) < H100.flops["float32"]


def test_a_fit_finds_the_efficiency_that_a_trace_was_made_with() -> None:
    sizes = [1024, 2048, 4096, 8192, 6144]
    made = tuple(
        product(n, n, n, "bfloat16", 2 * n**3 / (0.4 * A40.flops["bfloat16"]), number)
        for number, n in enumerate(sizes, 1)
    )
    model = Roofline()
    model.fit(Trace(made, 8, gpu="A40"))
    found = model.efficiencies["product", "forward", "bfloat16"]
    assert found.compute == pytest.approx(0.4, rel=0.05)
    assert found.error < 0.1  # as five points leave it open
    other = model.estimate(made, "A100").relative_error
    assert (other >= DEFAULTS["product"].error).all()  # on a GPU that it was not fitted on


def test_a_class_of_few_operators_keeps_the_error_of_its_defaults() -> None:
    model = Roofline()
    model.fit(Trace((product(4096, 4096, 4096, seconds=5e-3),), 8, gpu="H100"))
    assert model.estimate([product(4096, 4096, 4096)], "H100").relative_error[0] == DEFAULTS["product"].error
    assert seconds_of(model, product(4096, 4096, 4096)) == pytest.approx(5e-3)


def test_causal_attention_that_says_so_computes_half() -> None:
    tensors = [Tensor(number, (8, 16, 8192, 128), "bfloat16") for number in range(4)]
    whole, causal = (
        Operator(
            1, "aten::scaled_dot_product_attention", "forward", "a", tuple(tensors[:3]), tuple(tensors[3:]), 0.0,
            attributes={"is_causal": is_causal},
        )
        for is_causal in (False, True)
    )  # fmt: skip
    launch = DEFAULTS["attention"].launch
    assert seconds_of(Roofline(), causal) - launch == pytest.approx((seconds_of(Roofline(), whole) - launch) / 2)


def test_a_low_power_board_computes_what_its_power_allows_and_that_is_less_certain() -> None:
    """70 W at 17.5 pJ a FLOP is 4 TFLOP/s; the data sheet of the T4 says 8.1."""
    large = product(8192, 8192, 8192)
    found = Roofline().estimate([large], "T4")
    assert 2 * 8192**3 / found.seconds[0] == pytest.approx(70 / 17.5e-12, rel=1e-3)
    on_v100 = Roofline().estimate([large], "V100")
    assert 2 * 8192**3 / on_v100.seconds[0] == pytest.approx(0.75 * 15.7e12, rel=1e-3)
    assert found.relative_error[0] > on_v100.relative_error[0]


def test_short_operators_are_less_certain_than_long_ones() -> None:
    found = Roofline().estimate(
        [product(64, 64, 64, "bfloat16", number=1), product(8192, 8192, 8192, number=2)], "H100"
    )
    assert found.relative_error[0] > found.relative_error[1]


@pytest.mark.parametrize(("kind", "each"), [(Linear, linear.PER_E_FOLD), (Roofline, roofline.PER_E_FOLD)])
def test_the_further_from_the_sizes_of_the_trace_the_less_certain(
    kind: type[ComputeModel], each: tuple[float, float, float]
) -> None:
    several = tuple(product(n, n, n, seconds=2e-9 * n**3, number=n) for n in (512, 640, 768, 1024))
    model = kind()
    model.fit(Trace(several, 8, gpu="H100"))
    errors = []
    for times in (1, 2, 8):
        after = [product(n * times, n, n, seconds=2e-9 * n**3, number=n) for n in (512, 640, 768, 1024)]
        errors.append(float(model.ratios(several, after, "H100", "H100").relative_error[0]))
    assert errors == sorted(errors)
    assert errors[2] ** 2 - errors[0] ** 2 == pytest.approx((each[2] * math.log(8)) ** 2)  # all are longer than 200 us


def test_what_bounds_no_operator_of_a_trace_stays_as_it_was() -> None:
    """Large products say nothing of the bandwidth, however slow they are."""
    for count in (2, 6):
        made = tuple(
            product(n, n, n, "bfloat16", 2 * n**3 / (0.1 * A40.flops["bfloat16"]), n) for n in range(4096, 4096 + count)
        )
        model = Roofline()
        model.fit(Trace(made, 8, gpu="A40"))
        found = model.efficiencies["product", "forward", "bfloat16"]
        assert found.compute == pytest.approx(0.1, rel=0.1)
        assert found.memory == pytest.approx(DEFAULTS["product"].memory, rel=0.1)


def test_linear_says_nothing_of_another_gpu() -> None:
    trace = traces.mlp()
    model = Linear()
    model.fit(trace)
    assert np.isfinite(model.estimate(trace.operators, trace.gpu).seconds).all()
    assert np.isnan(model.estimate(trace.operators, "H100").seconds).all()


def test_linear_states_the_error_of_points_that_are_left_out() -> None:
    """Times of exactly 1 ns a FLOP are predicted to the least error; one size alone says nothing of another."""
    several = tuple(product(n, n, n, seconds=2e-9 * n**3, number=n) for n in (64, 96, 128, 256))
    model = Linear()
    model.fit(Trace(several, 8, gpu="H100"))
    assert model.estimate(several, "H100").relative_error.max() == pytest.approx(0.01)
    equal = tuple(product(64, 64, 64, seconds=1e-3, number=n) for n in (1, 2, 3))
    model.fit(Trace(equal, 8, gpu="H100"))
    assert np.isnan(model.estimate(equal, "H100").relative_error).all()


# ---- auto ------------------------------------------------------------------------------------------------------------


def says(seconds: list[float], errors: list[float], name: str) -> Estimates:
    return Estimates(np.array(seconds), np.array(errors), [name] * len(seconds))


def test_the_model_that_is_expected_to_err_least_is_taken_operator_by_operator() -> None:
    nan = float("nan")
    chosen = best(
        iter(
            (
                (says([1.0, nan, 1.0, 1.0], [0.03, nan, 0.5, nan], "forest"), 1.0),
                (says([2.0, 2.0, 2.0, 2.0], [0.10, 0.1, 0.1, 0.4], "linear"), 1.0),
                (says([3.0, 3.0, 3.0, 3.0], [0.30, 0.4, 0.4, 0.2], "roofline"), 1.0),
            )
        )
    )
    assert chosen.model == ["forest", "linear", "linear", "roofline"]
    assert list(chosen.seconds) == [1.0, 2.0, 2.0, 3.0]


def test_auto_names_what_it_used_and_knows_every_operator() -> None:
    trace = traces.transformer()
    model = AutoComputeModel()
    model.fit(trace)
    for gpu in (trace.gpu, "H100"):
        found = model.estimate(trace.operators, gpu)
        assert np.isfinite(found.seconds).all()
        assert {*found.model} <= {"forest", "elementwise", "reduction", "linear", "roofline"}


def test_a_tables_model_goes_before_the_trace_unless_that_is_twice_as_sure() -> None:
    surer = says([2.0, 2.0], [0.05, 0.03], "linear")
    chosen = best(((says([1.0, 1.0], [0.08, 0.08], "forest"), 1.0), (surer, 2.0)))
    assert chosen.model == ["forest", "linear"]
    assert list(chosen.relative_error) == [0.08, 0.03]


class Rising(ComputeModel):
    """A model that is sure of small operators only, so that the two sides of a ratio could come from two models."""

    def estimate(self, operators: Sequence[Operator], gpu: str) -> Estimates:
        size = np.array([operator.outputs[0].numel for operator in operators], dtype=float)
        return Estimates(size * 1e-9, np.where(size > 1e6, 9.0, 0.001), ["rising"] * len(operators))


def test_a_ratio_takes_both_its_estimates_from_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = AutoComputeModel()
    monkeypatch.setattr("triosim.compute.models.auto._STORED", (Rising(),))
    small, large = addition(2**10), addition(2**28)
    found = model.ratios([small], [large], "H100", "H100")
    asked = Roofline()
    assert found.seconds[0] == pytest.approx(seconds_of(asked, large) / seconds_of(asked, small))
    assert found.model == ["roofline"]
