"""Conditions that name a rank between the first and the last one single it out."""

from __future__ import annotations

import pytest

from triosim.tracer.distributed.singled_out import singled_out


@pytest.mark.parametrize(
    ("source", "ranks"),
    [
        ("if rank == 5:\n    pass", [(5,)]),
        ("if dist.get_rank() in (3, 4): pass", [(3, 4)]),
        ("BAD = 6\nif int(os.environ['RANK']) == BAD: pass", [(6,)]),
        ("r = int(os.environ['RANK'])\nif r == 3: pass", [(3,)]),
        ("me, n = dist.get_rank(), dist.get_world_size()\nif me == n - 3: pass", [(13,)]),
        ("r = dist.get_rank()\nlast = r == 7\nif last: pass", [(7,)]),
        ("r = rank\nr = 3\nif r == 3: pass", []),
        ("r = r + 1\nif r == 3: pass", []),
        ("if self.rank % 3 == 1: pass", [(1, 4, 7, 10, 13)]),
        ("x = 1 if rank // 4 == 2 else 0", [(8, 9, 10, 11)]),
        ("if not done and 0 < rank < world_size - 1: pass", [tuple(range(1, 15))]),
        ("if rank == 0 or rank == world - 1: pass", [tuple(range(1, 15))]),
        ("if local_rank == 3: pass", [(3, 11)]),
        ("if rank == 0: pass", []),  # the first and the last rank are compared in any case
        ("if rank == world - 1: pass", []),
        ("if local_rank == 0: pass", []),
        ("if step == 5: pass", []),
        ("if rank == chosen: pass", []),
        ("if tp_rank == 1: pass", []),
        ("if rank: pass", []),
        ("no Python: rank == 5", []),
    ],
)
def test_which_ranks_a_condition_singles_out(source: str, ranks: list[tuple[int, ...]]) -> None:
    assert list(singled_out(iter([source]), 16, 8)) == ranks
