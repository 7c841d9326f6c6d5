"""What operators read and write, by storage and by parameter."""

from __future__ import annotations

from triosim.operators.tensor_uses import StorageUse, TensorUses
from triosim.trace import Operator, Tensor

WEIGHT = Tensor(1, (4, 8), category="parameter", storage=10)
INPUT = Tensor(2, (2, 4), category="input", storage=20)
HALF = Tensor(3, (2, 4), storage=30)
WHOLE = Tensor(4, (2, 8), storage=30)
GRADIENT = Tensor(5, (4, 8), category="gradient", storage=50, parameter=1)


def operator(
    number: int, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], forward: int | None = None
) -> Operator:
    return Operator(number, "aten::mm", "forward", f"layer{number}", inputs, outputs, 1.0, forward=forward)


def test_a_storage_is_made_by_an_operator_that_does_not_read_it() -> None:
    uses = TensorUses.of([operator(7, (INPUT, WEIGHT), (HALF,)), operator(8, (HALF,), (WHOLE,))], updates=False)
    assert uses.made == {30}
    assert uses.first == {20: INPUT, 10: WEIGHT, 30: HALF}
    assert uses.storages[30] == StorageUse("layer7", WHOLE, ())
    assert uses.parameters == {1: 10}
    assert [use.operator for use in uses.uses] == [7]


def test_a_gradient_names_its_parameter_and_its_operator_the_forward_one() -> None:
    uses = TensorUses.of([operator(8, (HALF,), ()), operator(9, (INPUT,), (GRADIENT,), forward=7)], updates=False)
    assert uses.written == ((1, 9, 1),)
    assert uses.differentiated == ((1, 9, 7),)
    assert uses.storages[50] == StorageUse("layer9", GRADIENT, (1,))


def test_the_parameters_of_an_optimizer_are_no_states() -> None:
    state = Tensor(6, (4, 8), category="optimizer_state", storage=60, parameter=1)
    uses = TensorUses.of([operator(9, (WEIGHT, GRADIENT, state), (WEIGHT, state))], updates=True)
    assert [*uses.storages] == [50, 60]
    assert uses.made == frozenset()


def test_a_view_that_shows_a_parameter_several_times_repeats_it() -> None:
    token, tokens = Tensor(1, (1, 8), category="parameter"), Tensor(9, (4, 8), category="parameter", storage=-2)
    assert TensorUses.of([operator(7, (token,), (tokens,))], updates=False).repeated == {9}
