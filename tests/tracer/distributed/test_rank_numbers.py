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


@pytest.mark.parametrize(
    ("sent", "rank", "expected", "unclear"),
    [
        ({0: 2**60 + 7, 1: 2**60 + 8}, 5, 2**60 + 12, False),  # seeds: more digits than a float has
        ({0: 0, 1: 1}, 300, 0, True),  # beyond what a byte holds
    ],
)
def test_whole_numbers_of_tensors_are_exact_or_unclear(
    sent: dict[int, int], rank: int, expected: int, unclear: bool
) -> None:
    numbers, dtype = RankNumbers(), torch.uint8 if unclear else torch.int64
    seen = {one: torch.tensor([value], dtype=dtype) for one, value in sent.items()}
    assert numbers.of_rank(rank, seen, seen[0]).tolist() == [expected]
    assert numbers.unclear is unclear


@pytest.mark.parametrize(
    "sent",
    [
        {0: {"loss": 0.5}, 1: {"loss": 1.0}},
        {0: [1], 1: [1, 2]},
        {0: None, 1: 3},
        {0: 3, 1: torch.tensor([1, 2])},
        {0: True, 1: False},
    ],
)
def test_what_differs_and_cannot_be_worked_out_is_said(sent: dict[int, Any]) -> None:
    assert differ(list(sent.values()))
    numbers = RankNumbers()
    assert numbers.of_rank(5, sent, sent[0]) is sent[0]
    assert numbers.unclear
