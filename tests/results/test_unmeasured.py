"""Which operators a prediction leans on that nobody measured, and what is to be run to measure them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from triosim.compute.fit import operator_table
from triosim.results.unmeasured import as_plan, unmeasured
from triosim.trace import Operator, Tensor

DATA, WEIGHT, OUT = Tensor(1, (8, 4)), Tensor(2, (4, 4)), Tensor(3, (8, 4))
PRODUCT = Operator(1, "aten::mm", "forward", "a", (DATA, WEIGHT), (OUT,), 2.0, predicted_by="m", relative_error=0.1)
NORM = Operator(2, "aten::native_layer_norm", "forward", "b", (OUT,), (OUT,), 1.0)
BACKWARD = Operator(
    3, "aten::native_layer_norm_backward", "backward", "b", (OUT, OUT, DATA), (OUT,), 1.0, predicted_by="r",
    relative_error=0.5, forward=2,
)  # fmt: skip


def test_equal_calls_are_one_row_and_those_of_the_largest_error_come_first() -> None:
    """Two of four ranks run the product three times in two steps: 1.5 runs of 2 s, 10% off; the norm was measured."""
    again = Operator(7, "aten::mm", "forward", "z", (DATA, WEIGHT), (OUT,), 2.0, predicted_by="m", relative_error=0.1)
    classes = [([0, 1], [((PRODUCT, again, NORM, BACKWARD), 3)]), ([2, 3], [((NORM,), 3)])]
    rows = unmeasured(classes, 2)
    assert [row.operator.name for row in rows] == ["aten::native_layer_norm_backward", "aten::mm"]
    assert [row.count for row in rows] == pytest.approx([0.75, 1.5])
    assert [row.seconds for row in rows] == pytest.approx([0.75, 3.0])
    assert [row.error_s for row in rows] == pytest.approx([0.375, 0.3])


def test_a_norm_is_measured_backward_by_differentiating_it() -> None:
    rows = as_plan(unmeasured([([0], [((PRODUCT, NORM, BACKWARD), 1)])], 1), "H100-SXM")
    assert [(row.operator.name, row.forward) for row in rows] == [
        ("aten::native_layer_norm_backward", "aten::native_layer_norm"),
        ("aten::mm", ""),
    ]
    assert [tensor.shape for tensor in rows[0].operator.inputs] == [
        (8, 4),
        (8, 4),
    ]  # the gradient, and what the norm read
    assert len({row.call for row in rows}) == 2
    assert all(row.operator.seconds == 0.0 for row in rows)


def test_a_plan_holds_what_its_table_can(tmp_path: Path) -> None:
    """A kernel may have an output without elements, and an optimizer a parameter of which this rank has no share."""
    empty = Tensor(4, (0,))
    kernel = replace(PRODUCT, outputs=(OUT, empty))
    other = replace(PRODUCT, id=9, inputs=(empty, WEIGHT))
    rows = as_plan(unmeasured([([0], [((kernel, other), 1)])], 1), "H100-SXM")
    operator_table.write(rows, tmp_path / "plan.csv")
    (read,) = operator_table.read(tmp_path / "plan.csv", timed=False)
    assert [tensor.shape for tensor in read.operator.outputs] == [OUT.shape]
    assert read.call == rows[0].call
