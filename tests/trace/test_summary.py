"""A trace at a glance."""

from __future__ import annotations

import pytest

from triosim.trace import Operator, Tensor, Trace
from triosim.trace import summary as trace_summary

X = Tensor(1, (2, 4), "float32", "input", 1)
W = Tensor(2, (3, 4), "float16", "parameter", 2)
WT = Tensor(3, (4, 3), "float16", "parameter", 2)
Y = Tensor(4, (2, 3), "float32", "activation", 4)
G = Tensor(5, (3, 4), "float16", "gradient", 5, 2)

TRACE = Trace(
    (
        Operator(1, "aten::linear", "forward", "fc", (X, W), (Y,), 3e-3, 2e-3),
        Operator(2, "aten::relu_", "forward", "act", (Y,), (Y,), 1e-3, 1e-3),
        Operator(3, "MmBackward0", "backward", "fc", (Y, WT), (G,), 5e-3, 4e-3, forward=1),
        Operator(4, "aten::relu_", "forward", "act", (Y,), (Y,), 1e-3, 1e-3),
    ),
    2,
)


def test_operators_are_counted_by_name_the_slowest_first() -> None:
    found = [(group.name, group.count, group.seconds) for group in trace_summary.by_name(TRACE)]
    assert found == [("MmBackward0", 1, 5e-3), ("aten::linear", 1, 3e-3), ("aten::relu_", 2, pytest.approx(2e-3))]


def test_every_phase_is_there_also_an_empty_one() -> None:
    found = trace_summary.by_phase(TRACE)
    assert list(found) == ["forward", "backward", "optimizer"]
    assert [group.count for group in found.values()] == [3, 1, 0]
    assert found["forward"].seconds == pytest.approx(5e-3)


def test_layers_stand_in_their_order() -> None:
    assert [(group.name, group.count) for group in trace_summary.by_layer(TRACE)] == [("fc", 2), ("act", 2)]


def test_a_view_s_bytes_count_once() -> None:
    found = trace_summary.bytes_by_category(TRACE)
    assert {category: size for category, size in found.items() if size} == {
        "input": 2 * 4 * 4,
        "parameter": 3 * 4 * 2,
        "activation": 2 * 3 * 4,
        "gradient": 3 * 4 * 2,
    }
    assert trace_summary.parameter_elements(TRACE) == 12


def test_busy_time_is_known_where_every_operator_s_is() -> None:
    assert trace_summary.busy_seconds(TRACE) == pytest.approx(8e-3)
    unmeasured = Trace((*TRACE.operators, Operator(9, "aten::relu", "forward", "act", (), (), 1e-3)), 2)
    assert trace_summary.busy_seconds(unmeasured) is None
