"""Three segments: flat, a transition, slope one; what is fitted to such times is found again."""

from __future__ import annotations

import numpy as np
import pytest

from triosim.compute.models import elementwise
from triosim.compute.models.elementwise import Elementwise, Segments
from triosim.trace import Operator, Tensor


def call(name: str, tensors: int, numel: int, dtype: str = "float32") -> Operator:
    made = tuple(Tensor(number, (numel // 64, 64), dtype) for number in range(tensors))
    return Operator(0, f"aten::{name}", "forward", "", made, (Tensor(9, (numel // 64, 64), dtype),), 0.0)


def test_small_work_takes_a_launch_and_large_work_its_bandwidth() -> None:
    one = Segments(share=0.8, first=1e-6, second=1e-4, floor=3e-6)
    times = one.seconds(np.array([1e-9, 1e-6, 1e-4, 2e-4]))
    np.testing.assert_allclose(times, [3e-6, 3e-6, 1.25e-4, 2.5e-4])


def test_times_never_fall_with_the_bytes() -> None:
    one = Segments(share=0.8, first=1e-6, second=1e-4)
    assert (np.diff(one.seconds(np.geomspace(1e-8, 1.0, 200))) >= 0).all()


def test_what_was_put_in_is_found() -> None:
    memory = np.geomspace(1e-8, 1e-2, 300)
    truth = Segments(share=0.85, first=1e-6, second=4e-5, floor=2.2e-6)
    kinds = np.array(["add", "tanh"] * 150)
    seconds = truth.seconds(memory) * np.where(kinds == "tanh", 1.1, 1.0)
    found = elementwise.fit(memory, seconds, kinds)
    assert np.abs(found.seconds(memory, kinds) / seconds - 1).mean() < 0.03
    assert found.kinds is not None
    assert found.kinds["tanh"] / found.kinds["add"] == pytest.approx(1.1, rel=0.02)


def test_stored_segments_are_the_same() -> None:
    fitted = {"T4": Segments(0.7, 1e-6, 1e-4, 2e-6, {"add": 1.0}, 0.02), "": Segments(0.8, 1e-6, 1e-4)}
    assert elementwise.parse(elementwise.dump(fitted, {})) == fitted


def test_two_tensors_move_half_as_many_bytes_again_as_one() -> None:
    numel = 1 << 26
    add, add_number, relu = (
        Elementwise().estimate([call(name, tensors, numel)], "A100-PCIe-80GB").seconds[0]
        for name, tensors in (("add", 2), ("add", 1), ("relu", 1))
    )
    assert add / add_number == pytest.approx(1.5, rel=0.1)
    assert relu == pytest.approx(add_number, rel=0.05)


def test_bytes_count_and_not_elements() -> None:
    half, full = (
        Elementwise().estimate([call("relu", 1, 1 << 26, t)], "H100").seconds[0] for t in ("bfloat16", "float32")
    )
    assert full / half == pytest.approx(2.0, rel=0.05)
