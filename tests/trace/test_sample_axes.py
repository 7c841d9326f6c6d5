"""Samples of a step are counted once: where gradients are reduced, and where ranks have parts of a sample."""

from __future__ import annotations

import pytest

from triosim.trace.sample_axes import SampleAxes

AXES = {
    "world": (tuple(range(8)),),
    "dp": ((0, 2, 4, 6), (1, 3, 5, 7)),
    "cp": ((0, 1), (2, 3), (4, 5), (6, 7)),
    "replicate": ((0, 4), (1, 5), (2, 6), (3, 7)),
    "shard": ((0, 1, 2, 3), (4, 5, 6, 7)),
}


@pytest.mark.parametrize(
    ("data_parallel", "context_parallel", "replicas", "parts"),
    [
        ((), (), 1, 1),
        (("world",), (), 8, 1),
        (("world",), ("cp",), 4, 2),
        (("dp",), ("cp",), 4, 2),
        ((), ("cp",), 1, 2),
        (("replicate", "shard"), (), 8, 1),
        (("replicate", "shard"), ("cp",), 4, 2),
        (("world",), ("shard",), 2, 4),
        (("absent",), ("absent",), 1, 1),
    ],
)
def test_ranks_that_have_parts_of_a_sample_are_one(
    data_parallel: tuple[str, ...], context_parallel: tuple[str, ...], replicas: int, parts: int
) -> None:
    found = SampleAxes(frozenset(data_parallel), frozenset(context_parallel))
    assert (found.replicas(AXES), found.parts(AXES)) == (replicas, parts)
