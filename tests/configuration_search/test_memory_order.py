"""Points that need no more memory than another: where they do not fit, neither does that one, and it is never planned."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest

from tests.search_spaces import GPT, LLAMA, MIXTURE, space
from triosim.configuration_search.evaluation import Weigh
from triosim.configuration_search.exact import Search
from triosim.configuration_search.memory_order import smaller_points, weighing_order
from triosim.configuration_search.objectives import Objectives
from triosim.configuration_search.outcome import Memory, Outcome
from triosim.configuration_search.point import Point
from triosim.configuration_search.spaces.rules import validity_of

EVERY = "recompute=full,selective,none data_parallel=ddp,zero1 sequence_parallel=no,yes"


@pytest.mark.parametrize(
    ("model", "varied"),
    [
        (GPT, f"tp=1,2,4 pp=1,2 micro_batches=1*pp,2*pp,4*pp virtual_stages=1,2 {EVERY}"),
        (LLAMA, f"tp=1,2 cp=1,2 pp=1,2 micro_batch_size=1,2,4 {EVERY}"),
        (LLAMA, f"pp=2,4 schedule=gpipe,zero-bubble,1f1b micro_batches=1*pp,2*pp {EVERY}"),
        (MIXTURE, f"tp=1,2 ep=1,2 pp=1,2 micro_batch_size=1,2 {EVERY}"),
    ],
)
def test_of_points_one_axis_apart_the_smaller_needs_no_more(model: str, varied: str) -> None:
    run = space(model, varied, global_batch_size=64)
    valid = {point.key: point for point in validity_of(run).valid}
    peaks: dict[str, float] = {}

    def peak(point: Point) -> float:
        if point.key not in peaks:
            memory = Weigh(run)(point).memory
            assert memory is not None
            peaks[point.key] = memory.peak_bytes
        return peaks[point.key]

    for point in random.Random(4).sample(list(valid.values()), 12):
        for smaller in smaller_points(run, point):
            assert smaller.key not in valid or peak(smaller) <= 1.001 * peak(point)  # roundings of the allocator


def test_a_step_of_few_micro_batches_may_need_less_than_one_of_more() -> None:
    """Of one micro-batch nothing is held when its gradients come; of two, the second one runs beside the first one's."""
    run = space("llama3-8b(layers=4)", "micro_batch_size=4,2,1 tp=8", seq=64, global_batch_size=4)
    peaks = [memory.peak_bytes for point in run.points() if (memory := Weigh(run)(point).memory)]
    assert peaks[0] < peaks[1]
    assert [len(list(smaller_points(run, point))) for point in run.points()] == [0, 1, 0]


def test_what_needs_less_is_weighed_first() -> None:
    run = space(GPT, "micro_batches=1*pp,4*pp recompute=none,full data_parallel=ddp,zero1", global_batch_size=32)
    order = weighing_order(run, run.points())
    assert str(order[0]) == "data_parallel=zero1 micro_batches=4*pp recompute=full"
    assert str(order[-1]) == "data_parallel=ddp micro_batches=1*pp recompute=none"
    for place, point in enumerate(order):
        assert {*smaller_points(run, point)} <= {*order[:place]}


def test_a_point_is_not_planned_where_one_that_needs_less_does_not_fit() -> None:
    run = space(GPT, "micro_batches=2*pp,4*pp recompute=none,full", global_batch_size=32)
    planned: list[str] = []

    def weigh(points: Iterable[Point]) -> Iterator[tuple[Point, Outcome]]:
        for point in points:
            planned.append(str(point))
            fits = point.get("recompute") == "full"
            memory = Memory(0.5 if fits else 2.0, 1.0)
            yield point, Outcome(point.key, "excluded" if fits else "out_of_memory", memory=memory)

    found = Search(run, validity_of(run), Objectives.read("step-time"), weigh, lambda points: iter(())).run()
    assert sorted(planned) == [
        "micro_batches=2*pp recompute=full",
        "micro_batches=4*pp recompute=full",
        "micro_batches=4*pp recompute=none",
    ]
    last = found.outcomes[Point.of({"micro_batches": "2*pp", "recompute": "none"}).key]
    assert last.state == "out_of_memory"
    assert last.reason == "needs as much as micro_batches=4*pp recompute=none, which does not fit, or more"
