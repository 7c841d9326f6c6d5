"""Operators as columns: one kind for all that figures do not tell apart, and sums in the order of the run."""

from __future__ import annotations

import numpy as np

from triosim.results.operator_columns import OperatorColumns, added, in_order, sums
from triosim.trace import Operator


def operator(number: int, name: str, layer: str = "a", error: float | None = None) -> Operator:
    return Operator(number, name, "forward", layer, (), (), float(number), predicted_by="m", relative_error=error)


def test_operators_of_one_name_layer_phase_and_model_are_one_kind_in_all_classes() -> None:
    first, again, other = operator(1, "mm"), operator(2, "mm", error=0.5), operator(3, "mm", "b")
    columns = OperatorColumns([([0, 1], [((first, other), 2)]), ([2], [((again,), 1), ((other,), 3)])])
    assert [(kind.name, kind.layer) for kind in columns.kinds] == [("mm", "a"), ("mm", "b")]
    assert [one.kinds.tolist() for one in columns.classes] == [[0, 1], [0, 1]]
    assert [one.spent.tolist() for one in columns.classes] == [[2.0, 6.0], [2.0, 9.0]]
    assert np.isnan(columns.classes[1].errors).tolist() == [False, True]
    layers, layer_of = columns.groups(lambda kind: kind.layer)
    assert (layers, layer_of.tolist(), columns.world) == (["a", "b"], [0, 1], 3)


def test_sums_are_those_of_a_loop_to_the_last_bit() -> None:
    """1e16 + 1 is 1e16 in doubles: what is added last counts, what is added one by one to a large sum does not."""
    values = np.array([1e16, 1.0, 1.0, -1e16, 1.0])
    assert added(values) == 1.0
    assert added(values, begun=3.0) == 1.0 + 4.0  # doubles beyond 1e16 are even: 3 is rounded to 4
    assert sums(np.array([0, 0, 1, 0, 1]), values, 3).tolist() == [0.0, 2.0, 0.0]


def test_groups_are_named_in_the_order_in_which_they_occur() -> None:
    assert in_order(np.array([4, 2, 4, 0, 2])) == [4, 2, 0]
