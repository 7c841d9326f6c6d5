"""Products in half precision whose rows are not on 16-byte boundaries."""

from __future__ import annotations

import pytest

from triosim import gpus
from triosim.compute.models import alignment
from triosim.compute.models.auto import AutoComputeModel
from triosim.trace import Operator, Tensor

ONE, BATCH = 3.3, 16.0


def slowdown(operator: Operator, forward: Operator | None, gpu: str = "A100-SXM-80GB") -> float:
    return alignment.slowdown(operator, forward, gpus.find(gpu)).factor


def product(*shapes: tuple[int, ...], dtype: str = "float16", name: str = "aten::mm", number: int = 0) -> Operator:
    tensors = tuple(Tensor(100 * number + place, shape, dtype) for place, shape in enumerate(shapes))
    phase = "forward" if number == 0 else "backward"
    return Operator(number, name, phase, "l", tensors[:-1], tensors[-1:], 0.0, forward=0 if number else None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("words", "factor"), [(50257, ONE), (50256, 1.0), (12564, ONE), (50304, 1.0)])
def test_rows_of_logits_of_half_precision_need_a_multiple_of_eight_words(words: int, factor: float) -> None:
    """50,257 words over four GPUs are 12,564, whose rows are on every other boundary of 8 bytes."""
    assert slowdown(product((512, 1024), (1024, words), (512, words)), None) == factor


def test_a_number_of_tokens_is_the_length_of_no_row() -> None:
    assert slowdown(product((511, 1024), (1024, 4096), (511, 4096)), None) == 1.0


def test_single_precision_has_no_such_kernels() -> None:
    assert slowdown(product((512, 1024), (1024, 50257), (512, 50257), dtype="float32"), None) == 1.0


def test_a_gradient_has_the_rows_of_its_product() -> None:
    forward = product((512, 1024), (1024, 50257), (512, 50257))
    backward = product((50257, 512), (512, 1024), (50257, 1024), number=1)
    assert slowdown(backward, forward) == ONE
    assert slowdown(backward, product((512, 1024), (1024, 50304), (512, 50304))) == 1.0


@pytest.mark.parametrize(("features", "factor"), [(108, BATCH), (150, BATCH), (104, 1.0)])
def test_scores_of_heads_off_the_boundaries_are_another_kernel(features: int, factor: float) -> None:
    scores = product((16, 2048, features), (16, features, 2048), (16, 2048, 2048), name="aten::bmm")
    assert slowdown(scores, None) == factor


def test_tensor_cores_that_do_more_in_a_clock_wait_longer_for_narrow_loads() -> None:
    """FLOPs a clock of a multiprocessor: A100 312e12 / 108 / 1.41e9 = 2,049, H100 989.4e12 / 132 / 1.98e9 = 3,786, L40S 1,024:
    its multiprocessors also load half as much."""
    odd = product((512, 1024), (1024, 50257), (512, 50257))
    assert slowdown(odd, None, "H100-SXM") == pytest.approx(ONE * 3786 / 2049, rel=0.01)
    assert slowdown(odd, None, "L40S") == ONE


def test_a_batch_off_the_boundaries_runs_on_ordinary_cores() -> None:
    """Half precision over single: 312 / 19.5 = 16 on an A100, 989.4 / 66.9 = 14.8 on an H100, 125 / 15.7 = 8 on a V100."""
    scores = product((16, 2048, 108), (16, 108, 2048), (16, 2048, 2048), name="aten::bmm")
    for gpu, ratio in (("A100-SXM-80GB", 16.0), ("H100-SXM", 14.8), ("V100-SXM2-32GB", 7.96)):
        assert slowdown(scores, None, gpu) == pytest.approx(BATCH * ratio / 16, rel=0.01)


def test_the_times_of_products_have_the_factor() -> None:
    odd, even = (product((512, 1024), (1024, words), (512, words)) for words in (50257, 50256))
    took = AutoComputeModel().estimate([odd, even], "A100-SXM-80GB").seconds
    assert took[0] / took[1] == pytest.approx(ONE, rel=0.05)


def test_a_factor_that_nobody_measured_on_a_gpu_is_in_doubt_by_how_far_it_is_from_the_measured_one() -> None:
    """On an H100 a product off the boundaries is taken to be slowed 6.1 times; as on an A100, it would take half as long."""
    odd = product((512, 1024), (1024, 50257), (512, 50257))
    here, there = (
        alignment.slowdown(odd, None, gpus.find(gpu)).relative_error for gpu in ("A100-SXM-80GB", "H100-SXM")
    )
    assert 0.1 < here < 0.2
    assert there - here == pytest.approx(1.0 - 2049 / 3786, rel=0.01)
    took = AutoComputeModel().estimate([odd, product((512, 1024), (1024, 50256), (512, 50256))], "H100-SXM")
    assert took.relative_error[0] - took.relative_error[1] == pytest.approx(there, abs=0.02)
