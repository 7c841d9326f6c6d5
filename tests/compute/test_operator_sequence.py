"""Equal operators are asked about once, and every answer is as if each had been asked about alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from triosim.compute.models.auto import AutoComputeModel
from triosim.compute.operator_sequence import OperatorSequence
from triosim.trace import Operator, Tensor, Trace
from triosim.trace import formats as trace_formats

TRACES = sorted((Path(__file__).parents[2] / "examples" / "traces").glob("gpt2*.json.gz"))


def product(id: int, rows: int = 64, **changes: object) -> Operator:
    inputs = (Tensor(10 * id, (rows, 32)), Tensor(10 * id + 1, (32, 16), category="parameter"))
    made = Operator(id, "aten::mm", "forward", f"layer{id}", inputs, (Tensor(10 * id + 2, (rows, 16)),), 1e-5)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_layers_ids_and_times_make_no_difference_but_sizes_and_attributes_do() -> None:
    alike = [product(1), product(2), product(3, seconds=2e-5)]
    others = [product(4, rows=65), product(5, attributes={"alpha": 2}), product(6, name="aten::matmul")]
    different, places = OperatorSequence([*alike, *others]).distinct
    assert places.tolist() == [0, 0, 0, 1, 2, 3]
    assert [operator.id for operator in different] == [1, 4, 5, 6]


def test_a_backward_operator_is_like_another_only_if_their_forward_operators_are() -> None:
    backward = {"name": "MmBackward0", "phase": "backward"}
    forward = [product(1), product(2), product(3, rows=65)]
    of = [product(10 + one.id, forward=one.id, **backward) for one in forward]
    different, places = OperatorSequence([*forward, *of]).distinct
    assert places.tolist() == [0, 0, 1, 2, 2, 3]
    assert [one.id if one else None for one in different.forwards] == [None, None, 1, 3]


@pytest.mark.parametrize("target", ["", "H100"])
def test_a_step_many_times_over_is_estimated_as_one(target: str) -> None:
    trace = trace_formats.read(TRACES[0])
    assert isinstance(trace, Trace)
    auto, gpu = AutoComputeModel(), target or trace.gpu
    auto.fit(trace)
    largest = 1 + max(operator.id for operator in trace.operators)
    second = [
        replace(one, id=one.id + largest, forward=None if one.forward is None else one.forward + largest)
        for one in trace.operators
    ]
    # Nothing is alike where each has an attribute of its own, which no feature reads.
    unlike = [
        replace(one, attributes={**one.attributes, "number": row})
        for row, one in enumerate([*trace.operators, *second])
    ]
    assert (
        len(OperatorSequence(unlike).distinct[0])
        == len(unlike)
        > 3 * len(OperatorSequence(trace.operators).distinct[0])
    )
    once, each = auto.estimate([*trace.operators, *second], gpu), auto.estimate(unlike, gpu)
    np.testing.assert_array_equal(once.seconds, each.seconds)
    np.testing.assert_array_equal(once.relative_error, each.relative_error)
    assert once.model == each.model
