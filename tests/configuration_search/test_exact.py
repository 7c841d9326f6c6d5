"""Exact search: no bound is above its simulated time, and the best of all points is found by simulating a few."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import product

import pytest

from tests.search_spaces import GPT, LLAMA, MIXTURE, space
from triosim.configuration_search.answer.report import as_dict, as_json, likelihood_of_first
from triosim.configuration_search.answer.terminal import render
from triosim.configuration_search.evaluation import Simulate, Weigh
from triosim.configuration_search.exact import Search, Searched, Tell
from triosim.configuration_search.objectives import Objectives
from triosim.configuration_search.outcome import Figures, Memory, Outcome
from triosim.configuration_search.point import Point
from triosim.configuration_search.spaces.rules import validity_of
from triosim.configuration_search.spaces.space import Space
from triosim.configuration_search.workers import processes
from triosim.errors import OptionError
from triosim.reports.terminal.tables import plain_text


def searched(run: Space, objective: str = "step-time", within: float = 0.0, top: int = 1) -> Searched:
    with processes(Weigh(run), Simulate(run)) as tasks:
        return Search(run, validity_of(run), Objectives.read(objective, within), *tasks, top).run()


EVERY_KIND = (
    (GPT, "tp=1,2,4 pp=1,2 micro_batches=1*pp,2*pp recompute=none,full data_parallel=ddp,zero1,zero2,fsdp,dp", {}),
    (GPT, "pp=2,4 virtual_stages=1,2 schedule=gpipe,1f1b,interleaved,zero-bubble micro_batches=2*pp,4*pp", {}),
    (GPT, "pp=2,4 schedule=dualpipe micro_batches=2*pp", {}),
    (GPT, "tp=2,4 tp_style=gather,megatron sequence_parallel=no,yes network=packet,analytical", {}),
    (GPT, "tp=1,2 collective=ring,tree,auto collective_form=steps,pipelined", {"stack": "eager"}),
    (GPT, "pp=1,2 tp=1,2", {"conditions": {"slow_gpus": {1: 1.5}}}),
    (GPT, "pp=1,2 tp=1,2 recompute=none,selective", {"training": False}),
    (LLAMA, "tp=1,2 cp=1,2,4 pp=1,2 data_parallel=ddp,fsdp recompute=none,selective", {}),
    (LLAMA, "tp=1,2 cp=2,4 pp=1,2 data_parallel=fsdp,zero1", {"options": {"cp": "all-gather"}}),
    (GPT, "tp=1,2,4 pp=1,2 data_parallel=ddp,fsdp network=photonic", {}),
    (MIXTURE, "tp=1,2 ep=1,2,4 pp=1,2 data_parallel=ddp,zero1,fsdp", {}),
    (MIXTURE, "ep=2,4 pp=1,2", {"options": {"load": "zipf"}}),
)


def worst_ratio(points: Iterable[tuple[Space, Point]]) -> Iterator[tuple[float, str]]:
    """Yield the bound of each point over its simulated time."""
    for run, point in points:
        weighed, simulated = Weigh(run)(point), Simulate(run)(point)
        if simulated.figures is None:
            assert weighed.state == "refused", weighed
        elif weighed.at_bound is not None:
            yield weighed.at_bound.step_time_s / simulated.figures.step_time_s, f"{run.subject.name} {point}"


def points_of_all_kinds(most: int, **system: object) -> Iterator[tuple[Space, Point]]:
    drawn = random.Random(17)
    for model, varied, base in EVERY_KIND:
        run = space(model, varied, **system, **base)
        valid = validity_of(run).valid
        yield from ((run, point) for point in drawn.sample(valid, min(most, len(valid))))


def test_no_bound_is_above_its_simulated_time() -> None:
    ratios = list(worst_ratio(points_of_all_kinds(most=12)))
    assert max(ratios) <= (1.0, "~")
    assert sum(ratio for ratio, _ in ratios) / len(ratios) > 0.8  # and they are worth something


@pytest.mark.slow
@pytest.mark.parametrize(
    "topology", ["dgx-h100", "dgx-a100", "dgx-1-v100", "h100-pcie", "dgx-h100(gpus=16)", "ring(8, bandwidth=50 GB/s)"]
)
def test_no_bound_of_thousands_is_above_its_simulated_time(topology: str) -> None:
    for batch, sequence in product((32, 64, 128), (128, 256, 512)):
        points = points_of_all_kinds(4, topology=topology, global_batch_size=batch, seq=sequence, dtype="float16")
        assert max(worst_ratio(points)) <= (1.0, "~")


def test_the_best_of_all_points_is_found() -> None:
    run = space(GPT, "tp=1,2,4 pp=1,2 micro_batches=1*pp,2*pp recompute=none,full data_parallel=ddp,zero1")
    found, every = searched(run), [Simulate(run)(point) for point in validity_of(run).valid]
    fastest = min(one.figures.step_time_s for one in every if one.figures)
    assert found.best is not None
    assert found.best.figures is not None
    assert found.best.figures.step_time_s == fastest
    assert found.gap == 0.0
    assert found.is_complete
    assert found.count("simulated") < len(every) / 2


def test_those_within_a_share_of_the_best_and_the_best_few_are_all_simulated() -> None:
    run = space(GPT, "tp=1,2,4 pp=1,2 micro_batches=1*pp,2*pp recompute=none,full")
    every = sorted(
        one.figures.step_time_s for one in map(Simulate(run), validity_of(run).valid) if one.figures is not None
    )
    close = searched(run, within=0.2)
    assert [one.figures.step_time_s for one in close.ranked if one.figures][: _count(every, 1.2)] == every[
        : _count(every, 1.2)
    ]
    few = searched(run, top=5)
    assert [one.figures.step_time_s for one in few.ranked if one.figures][:5] == every[:5]


def _count(every: list[float], share: float) -> int:
    return sum(seconds <= every[0] * share for seconds in every)


def test_a_point_that_does_not_fit_is_never_timed() -> None:
    """A model of 8 billion parameters needs 12 bytes of each, with its moments in bf16: more than 80 GB on one GPU."""
    run = space("llama3-8b(layers=64)", "data_parallel=ddp,fsdp tp=1,8", seq=2048)
    found = searched(run)
    states = {key: one.state for key, one in found.outcomes.items()}
    assert states[Point.of({"data_parallel": "ddp", "tp": 1}).key] == "out_of_memory"
    assert found.best is not None
    assert all(one.memory is not None and one.memory.fits(0.01) for one in found.ranked)


def hand_made(
    seconds: dict[int, tuple[float, ...]],
    objective: str = "step-time",
    within: float = 0.0,
    screened: bool = False,
    said: Tell | None = None,
) -> Searched:
    """Return a search over points of which tp says what they take: the bound, the simulated time, that of the screen."""
    run = space(GPT, f"tp={','.join(map(str, seconds))}", topology="switch(8, bandwidth=100 GB/s)")

    def figures(step: float, tp: object) -> Figures:
        return Figures(step, 8, 1.0 / step, 0.0, 0.0, 0.0, 0.0, cost=float(str(tp)) * step)

    def weigh(points: Iterable[Point]) -> Iterator[tuple[Point, Outcome]]:
        for point in points:
            tp = int(str(point.get("tp")))
            memory = Memory(float(tp), 64.0)
            yield point, Outcome(point.key, "excluded", at_bound=figures(seconds[tp][0], tp), memory=memory)

    def simulate(points: Iterable[Point], network: int = 1) -> Iterator[tuple[Point, Outcome]]:
        for point in points:
            tp = int(str(point.get("tp")))
            if seconds[tp][network] < 0:
                raise KeyboardInterrupt
            yield point, Outcome(point.key, "simulated", figures=figures(seconds[tp][network], tp))

    screen = partial(simulate, network=2) if screened else None
    tell = said or (lambda *_: None)
    return Search(run, validity_of(run), Objectives.read(objective, within), weigh, simulate, 1, tell, screen).run()


def test_simulation_ends_where_the_next_bound_is_above_the_best() -> None:
    found = hand_made({1: (1.0, 5.0), 2: (2.0, 3.0), 4: (3.0, 3.5), 8: (3.1, 3.2)})
    states = [found.outcomes[Point.of({"tp": tp}).key].state for tp in (1, 2, 4, 8)]
    assert states == ["simulated", "simulated", "simulated", "excluded"]  # 3.0 may still be as good as 3.0
    assert found.gap == 0.0
    wider = hand_made({1: (1.0, 5.0), 2: (2.0, 3.0), 4: (3.0, 3.5), 8: (3.1, 3.2)}, within=0.05)
    assert wider.count("simulated") == 4


def test_the_best_so_far_is_told() -> None:
    best: list[float | None] = []

    def told(phase: str, done: int, most: int, front: Sequence[Outcome]) -> None:
        best.append(front[0].figures.step_time_s if front and front[0].figures else None)

    hand_made({1: (1.0, 5.0), 2: (2.0, 3.0), 4: (2.5, 3.5)}, said=told)
    assert best == [None, None, None, 5.0, 3.0, 3.0]


def test_the_points_that_none_is_better_than_in_all_objectives_so_far_are_told() -> None:
    """A point of tp GPUs costs tp a second: 2 GPUs for 3 s cost more than one for 5.5 s, 4 GPUs for 1 s less than both."""
    fronts: list[list[float]] = []

    def told(phase: str, done: int, most: int, front: Sequence[Outcome]) -> None:
        fronts.append([one.figures.step_time_s for one in front if one.figures])

    hand_made({1: (1.0, 5.5), 2: (1.0, 3.0), 4: (1.0, 1.0)}, "step-time,cost", said=told)
    assert fronts == [[], [], [], [5.5], [3.0, 5.5], [1.0]]


def test_an_interrupted_search_has_a_gap_and_proves_nothing() -> None:
    found = hand_made({1: (1.0, 4.0), 2: (3.0, -1.0), 4: (3.5, 3.6)})
    assert found.interrupted
    assert found.count("simulated") == 1
    assert found.gap == pytest.approx((4.0 - 3.0) / 4.0)
    assert (found.left, found.excluded_by_bound) == (2, 0)
    assert not found.is_complete


def test_a_search_that_ends_before_its_first_simulation_says_what_would_come_first() -> None:
    found = hand_made({1: (1.0, -1.0), 2: (0.5, -1.0), 4: (3.5, 3.6)})
    assert (found.interrupted, found.best, found.left) == (True, None, 3)
    assert found.next is not None
    assert Point.read(found.next.key).get("tp") == 2
    assert "which would be ddp=4,tp=2: its step takes 500 ms or more" in " ".join(
        plain_text(render(found), width=80).split()
    )


@pytest.mark.parametrize(
    ("objective", "said"),
    [("step-time", "faster"), ("cost", "cheaper"), ("p90-step-time", "faster"), ("memory-headroom", None)],
)
def test_the_first_point_is_likely_to_be_better_by_what_is_asked_for(objective: str, said: str | None) -> None:
    found = hand_made({1: (1.0, 4.0), 2: (2.0, 3.0)}, objective=objective)
    likelihood = likelihood_of_first(found)
    assert (likelihood and likelihood.better) == said
    assert likelihood is None or likelihood.chance == 1.0  # what is measured is certain


def test_a_neighbour_that_does_not_reach_what_is_asked_for_is_no_number_of_times_as_good() -> None:
    """Eight samples in 4 s reach two a second, in 8 s they do not: JSON has no infinite numbers."""
    found = hand_made({1: (4.0, 4.0), 2: (4.5, 8.0)}, objective="fewest-gpus=0.2")
    (neighbour,) = as_dict(found)["neighbours"]
    assert (neighbour["value"], neighbour["change"], neighbour["objective"]) == (2, 1.0, None)
    assert json.loads(as_json(found))["best"]["settings"] == {"tp": 1}


def test_a_screen_chooses_what_is_simulated() -> None:
    """By the screen tp=2 takes 2.1 s; tp=1, which it does not choose, may take 2.0 s, and takes 2.2 s."""
    found = hand_made({1: (2.0, 2.2, 2.3), 2: (2.05, 2.5, 2.1), 4: (2.6, 2.7, 2.6)}, screened=True)
    states = [found.outcomes[Point.of({"tp": tp}).key].state for tp in (1, 2, 4)]
    assert states == ["excluded", "simulated", "excluded"]
    assert found.gap == pytest.approx((2.5 - 2.0) / 2.5)
    assert (found.left, found.excluded_by_bound) == (1, 1)


def test_an_objective_that_no_simulation_finds_out_is_refused_before_any() -> None:
    with pytest.raises(OptionError, match="no tokens"):
        hand_made({1: (1.0, -1.0)}, objective="tokens-per-second")


def test_of_two_objectives_only_dominated_bounds_fall() -> None:
    """tp=2 is slower than tp=1 and dearer; tp=4 is faster, and dearer: it stays."""
    found = hand_made({1: (2.0, 2.0), 2: (2.5, 2.6), 4: (1.0, 1.5)}, objective="step-time,memory-headroom")
    assert {Point.read(one.key).get("tp") for one in found.objectives.front(found.outcomes.values())} == {1, 4}
    assert found.outcomes[Point.of({"tp": 2}).key].state == "excluded"
