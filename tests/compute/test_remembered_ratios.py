"""Pairs of operators are asked about once, and the answers are those of a model that remembers nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from triosim.compute.compute_model import Estimates
from triosim.compute.models.auto import AutoComputeModel
from triosim.compute.operator_sequence import OperatorSequence
from triosim.compute.remembered_ratios import RememberedRatios
from triosim.trace import Operator, Tensor


def product(id: int, rows: int, seconds: float = 1e-4) -> Operator:
    inputs = (Tensor(10 * id, (rows, 1024), "bfloat16"), Tensor(10 * id + 1, (1024, 4096), "bfloat16"))
    return Operator(id, "aten::mm", "forward", "", inputs, (Tensor(10 * id + 2, (rows, 4096), "bfloat16"),), seconds)


def backward(of: Operator) -> Operator:
    """An operator that reads nothing of its own that tells how long it takes."""
    gradient = Tensor(10 * of.id + 3, (64, 64), "bfloat16", "gradient")
    return Operator(of.id + 100, "MmBackward0", "backward", "", (gradient,), (gradient,), 2e-4, forward=of.id)


def sequence(*operators: Operator) -> OperatorSequence:
    return OperatorSequence(operators)


def test_an_equal_pair_is_asked_about_once_unless_its_time_or_forward_operator_differs() -> None:
    asked: list[list[int]] = []

    def ask(before: OperatorSequence, after: OperatorSequence) -> Estimates:
        asked.append([operator.id for operator in after])
        found = [new.inputs[0].shape[0] / old.inputs[0].shape[0] for old, new in zip(before, after, strict=True)]
        return Estimates(np.array(found), np.full(len(found), 0.1), ["rows"] * len(found))

    known = RememberedRatios()
    first = known.of(sequence(product(1, 64), product(2, 64)), sequence(product(1, 128), product(2, 192)), ask)
    assert first.seconds.tolist() == [2.0, 3.0]
    again = known.of(
        sequence(*(product(n, 64) for n in (3, 4, 5))), sequence(*(product(n, 192) for n in (3, 4, 5))), ask
    )
    assert again.seconds.tolist() == [3.0, 3.0, 3.0]
    slower = product(6, 64, seconds=1e-3)
    known.of(sequence(slower), sequence(replace(product(6, 192), seconds=1e-3)), ask)
    for number, rows in ((7, 192), (8, 256)):
        one, other = product(number, 64), product(number, rows)
        known.of(sequence(one, backward(one)), sequence(other, backward(other)), ask)
    # Of the two steps the products are known but for the last; each backward operator comes with what it differentiates.
    assert asked == [[1, 2], [6], [7, 107], [8, 108]]


def test_auto_answers_the_same_whatever_it_was_asked_before() -> None:
    before = [product(1, 4096), product(2, 4096)]
    before += [backward(one) for one in before]
    used = AutoComputeModel()
    for rows in (1000, 2000, 3000):
        after = [product(1, rows), product(2, 5000 - rows)]
        after += [backward(one) for one in after]
        fresh = AutoComputeModel().ratios(before, after, "H100", "H100")
        found = used.ratios(before, after, "H100", "H100")
        assert found.seconds.tolist() == fresh.seconds.tolist()
        assert found.relative_error.tolist() == fresh.relative_error.tolist()
        assert found.model == fresh.model
