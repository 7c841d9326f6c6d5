"""What ranks send each other where not all of them run."""

from __future__ import annotations

from pathlib import Path

import pytest

from triosim.tracer.distributed.rank_messages import RankMessages


def test_a_rank_gets_of_one_that_does_not_run_what_that_ones_equal_sends_to_its_own_partner(tmp_path: Path) -> None:
    """Two stages of two ranks: 1 follows 0, 2 follows 3."""
    like = (0, 0, 3, 3)
    first, last = (RankMessages(tmp_path, rank, like=like) for rank in (0, 3))
    for value in (5, 6):
        first.send(2, "shapes", value)
    last.send(1, "gradients", 7)
    assert [last.receive(1, "shapes") for _ in range(2)] == [5, 6]
    assert first.receive(2, "gradients") == 7


@pytest.mark.parametrize(("like", "comes"), [((0, 0, 3, 3), True), ((0, 1, 3, 3), True), ((0, 0, 2, 3), False)])
def test_nothing_comes_of_a_rank_that_does_not_run_where_its_equal_has_another_partner(
    tmp_path: Path, like: tuple[int, ...], comes: bool
) -> None:
    assert RankMessages(tmp_path, 3, like=like).comes_from(1) is comes
