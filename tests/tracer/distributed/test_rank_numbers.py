"""Of numbers that grow with the rank, those of ranks that do not run are worked out; others are those of the rank followed."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from triosim.tracer.distributed.rank_numbers import RankNumbers, differ  # noqa: E402


@pytest.mark.parametrize(
    ("first", "last", "third"),
    [
        (0, 7, 3),  # the rank
        (100, 86, 94),  # a number that shrinks by two
        (5, 5, 5),
        ({"rank": 0, "data": [0, 70]}, {"rank": 7, "data": [7, 77]}, {"rank": 3, "data": [3, 73]}),
        ({"host": "a", "rank": 0}, {"host": "b", "rank": 7}, {"host": "a", "rank": 3}),
        ([True, 1.5], [False, 2.5], [True, 1.5]),
    ],
)
def test_what_grows_with_the_rank_is_worked_out(first: Any, last: Any, third: Any) -> None:
    numbers = RankNumbers()
    assert numbers.of_rank(3, {0: first, 7: last}, first) == third
    assert not numbers.unclear


@pytest.mark.parametrize("values", [{0: 13, 7: 12}, {0: 0, 3: 3, 7: 8}])
def test_other_numbers_are_those_of_the_rank_that_is_followed(values: dict[int, int]) -> None:
    numbers = RankNumbers()
    assert numbers.of_rank(2, values, values[0]) == values[0]
    assert numbers.unclear


def test_each_element_of_a_tensor_is_a_number() -> None:
    numbers = RankNumbers()
    seen = {0: torch.tensor([0, 5, 13]), 7: torch.tensor([14, 5, 12])}
    assert numbers.of_rank(3, seen, seen[0]).tolist() == [6, 5, 13]
    assert numbers.unclear


def test_what_is_equal_stays_the_same_object() -> None:
    one = [torch.arange(3), torch.ones(2)]
    assert RankNumbers().of_rank(1, {0: one, 7: [torch.arange(3), torch.ones(2)]}, one) is one
    assert not differ([one, [torch.arange(3), torch.ones(2)]])
    assert differ([one, [torch.arange(3), torch.zeros(2)]])
