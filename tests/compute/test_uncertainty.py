"""How far off an estimate may be beyond what its model was seen to be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from triosim import gpus
from triosim.compute import uncertainty
from triosim.compute.compute_model import ComputeModel, Estimates
from triosim.compute.families import FamilyCalls
from triosim.compute.learned import model_files
from triosim.compute.models.elementwise import Elementwise
from triosim.compute.models.forest import Forest
from triosim.trace import Operator, Tensor


def copy(elements: int, seconds: float) -> Operator:
    first, second = Tensor(1, (elements,)), Tensor(2, (elements,))
    return Operator(1, "aten::relu", "forward", "a", (first,), (second,), seconds)


def product(n: int) -> Operator:
    shape = (n, n)
    return Operator(1, "aten::mm", "forward", "a", (Tensor(1, shape), Tensor(2, shape)), (Tensor(3, shape),), 1e-3)


def test_two_samples_say_almost_nothing_and_a_hundred_almost_everything() -> None:
    """One degree of freedom: Student's 6.31 against 1.645, and the mean of two is itself uncertain by sqrt(3/2)."""
    assert uncertainty.small_sample_factor(2) == pytest.approx(6.31 / 1.645 * math.sqrt(1.5))
    assert uncertainty.small_sample_factor(100) == pytest.approx(1.0, abs=0.03)
    found = [uncertainty.small_sample_factor(samples) for samples in range(2, 60)]
    assert found == sorted(found, reverse=True)


def test_the_next_gpu_is_within_what_few_gpus_showed_nine_times_in_ten() -> None:
    """Drawn: five GPUs that are each off by a normal amount, and a sixth."""
    rng = np.random.default_rng(0)
    off = rng.normal(size=(20000, 6))
    width = 1.645 * off[:, :5].std(axis=1, ddof=1) * uncertainty.small_sample_factor(5)
    inside = np.abs(off[:, 5] - off[:, :5].mean(axis=1)) <= width
    assert inside.mean() == pytest.approx(0.9, abs=0.01)


PER_E_FOLD = (0.3, 0.2, 0.1)


@pytest.mark.parametrize(("seconds", "per_e_fold"), [(5e-6, 0.3), (100e-6, 0.2), (5e-3, 0.1)])
def test_a_larger_size_is_less_certain_by_its_logarithm(seconds: float, per_e_fold: float) -> None:
    before, after = [copy(1000, seconds)], [copy(4000, seconds)]
    found = uncertainty.resizing_error(np.array([0.03]), before, after, np.array([4.0]), PER_E_FOLD)
    assert found[0] == pytest.approx(math.hypot(0.03, per_e_fold * math.log(4)))
    assert uncertainty.resizing_error(np.array([0.03]), before, before, np.array([1.0]), PER_E_FOLD)[0] == 0.03


def test_a_smaller_size_counts_by_the_time_that_it_becomes() -> None:
    """40 us become 10 us: a short operator."""
    found = uncertainty.resizing_error(
        np.zeros(1), [copy(4000, 40e-6)], [copy(1000, 40e-6)], np.array([0.25]), PER_E_FOLD
    )
    assert found[0] == pytest.approx(0.3 * math.log(4))


def test_only_float32_on_boards_of_little_power_is_doubted() -> None:
    """The T4's 70 W at 17.5 pJ a FLOP are 4 of 0.85 x 8.1 TFLOP/s."""
    assert uncertainty.power_limit_factor(gpus.find("T4"), "float32") == pytest.approx(math.sqrt(0.85 * 8.1 / 4.0))
    assert uncertainty.power_limit_factor(gpus.find("T4"), "float16") == 1.0
    assert uncertainty.power_limit_factor(gpus.find("H100"), "float32") == 1.0


@pytest.mark.parametrize(("model", "operators"), [(Forest(), (product(2048), product(4096))),
                                                  (Elementwise(), (copy(2**24, 1e-3), copy(2**25, 1e-3)))])  # fmt: skip
def test_two_sizes_on_a_gpu_that_was_not_measured_are_off_alike(
    model: ComputeModel, operators: tuple[Operator, Operator]
) -> None:
    before, after = [operators[0]], [operators[1]]
    alone = model.estimate(after, "L40S").relative_error[0]
    assert model.ratios(before, after, "L40S", "L40S").relative_error[0] < alone


def test_a_ratio_of_two_estimates_is_off_by_both() -> None:
    class Sure(ComputeModel):
        def estimate(self, operators: object, gpu: str) -> Estimates:
            return Estimates(np.array([1.0]), np.array([0.03 if gpu == "A100" else 0.04]), ["sure"])

    found = Sure().ratios([product(64)], [product(64)], "A100", "H100")
    assert found.relative_error[0] == pytest.approx(0.05)


def test_trees_are_less_sure_of_sizes_beyond_those_that_were_measured() -> None:
    """Twice the largest k on an H100, twice the error; of a size far out, the roofline beneath still knows what it does."""
    model = model_files.find("product", "bfloat16", "H100-SXM")
    assert model is not None
    largest = max(model.sizes["k"])
    sizes = [largest, 2 * largest, 4 * largest, 8 * largest, 64 * largest]
    calls = FamilyCalls(
        "product", "bfloat16", {"b": np.ones(5), "m": np.full(5, 1001.0), "n": np.full(5, 4096.0), "k": np.array(sizes)}
    )
    errors = model.relative_error(calls, gpus.find("H100-SXM"), np.full(5, 1e-3))
    assert errors / errors[0] == pytest.approx([1.0, 2.0, 3.0, 4.0, 4.0])
