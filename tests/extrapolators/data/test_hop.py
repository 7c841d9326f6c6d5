"""Hop, by hand: each step computes for 18 ms and updates for 3 ms, and parameters take 10 ms over a link.

The links are the edges of the communication graph, without latency unless a test says so.
"""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import pytest
import traces

import triosim
from triosim.conditions import Stragglers
from triosim.conditions.heterogeneity import with_slow_links
from triosim.errors import OptionError, TraceError
from triosim.extrapolators.data.hop_graph import load
from triosim.networks.topology import Topology

MLP = traces.mlp()
NBYTES = 4560.0
TEN_MS = "456 kB/s"


def system(size: int, slow: dict[tuple[int, int], str] | None = None, latency: str = "0 s") -> dict[str, Any]:
    """All GPUs joined to all; parameters take 10 ms over a link, unless it is one of the slow ones."""
    links = [
        {"from": f"gpu{a}", "to": f"gpu{b}", "bandwidth": (slow or {}).get((a, b), TEN_MS), "latency": latency}
        for a, b in itertools.combinations(range(size), 2)
    ]
    return {"nodes": [f"gpu{rank}" for rank in range(size)], "links": links}


def run(
    size: int,
    iterations: int,
    slow_gpus: dict[int, float] | None = None,
    topology: dict[str, Any] | None = None,
    trace: triosim.Trace = MLP,
    **options: Any,
) -> triosim.Result:
    return triosim.simulate(
        trace,
        "hop",
        gpus=size,
        topology=topology or system(size),
        iterations=iterations,
        conditions={"slow_gpus": slow_gpus} if slow_gpus else None,
        options={name: str(value) for name, value in {"graph": "complete", **options}.items()},
    )


def ends(result: triosim.Result, rank: int) -> list[float]:
    """When each iteration of a rank ended, in ms."""
    assert result.recording is not None
    return [pytest.approx(1e3 * end, rel=1e-9) for end in result.recording.ranks[rank].iterations]


def test_parameters_travel_beside_the_computation() -> None:
    assert ends(run(2, 3), 0) == [21, 42, 63]


def test_parameters_that_take_longer_than_the_computation_are_waited_for() -> None:
    slow = system(2, {(0, 1): "228 kB/s"})  # 20 ms, and then the update
    assert ends(run(2, 3, topology=slow), 0) == [23, 46, 69]


def test_in_serial_order_updated_parameters_are_exchanged_after_the_computation() -> None:
    assert ends(run(2, 3, order="serial"), 0) == [31, 62, 93]


def test_without_tolerance_the_slowest_worker_sets_the_pace() -> None:
    result = run(3, 3, {2: 3})
    # The fast ones have the slow one's parameters of iteration k 10 ms after it ended k - 1.
    assert ends(result, 0) == [21, 63 + 10 + 3, 126 + 10 + 3]
    assert ends(result, 2) == [63, 126, 189]


def test_with_a_backup_worker_the_others_leave_the_slow_one_behind() -> None:
    result = run(3, 4, {2: 3}, backup=1)
    assert ends(result, 0) == [21, 42, 63, 84]
    assert ends(result, 2) == [63, 126, 189, 252]


@pytest.mark.parametrize(
    ("max_gap", "expected"),
    [
        (1, [21, 42, 63 + 21, 126 + 21, 189 + 21]),  # iteration 2 begins when the slow worker is in 1, at 63 ms
        (2, [21, 42, 63, 84, 126 + 21]),
        (3, [21, 42, 63, 84, 105]),
    ],
)
def test_tokens_bound_the_gap(max_gap: int, expected: list[float]) -> None:
    assert ends(run(3, 5, {2: 3}, backup=1, max_gap=max_gap), 0) == expected


def test_a_token_takes_the_latency_of_its_route() -> None:
    late = system(3, latency="1 ms")
    assert ends(run(3, 3, {2: 3}, late, backup=1, max_gap=1), 0) == [21, 42, 64 + 21]


def test_stale_updates_are_taken_so_many_iterations_later() -> None:
    # Iteration k needs the slow worker's parameters of k - 1 (or k - 2), which leave it after so many times 63 ms.
    assert ends(run(2, 4, {1: 3}, staleness=1), 0) == [21, 42, 63 + 10 + 3, 126 + 10 + 3]
    assert ends(run(2, 5, {1: 3}, staleness=2), 0) == [21, 42, 63, 84, 126 + 10 + 3]


def test_a_worker_that_is_behind_skips_to_where_its_neighbours_are() -> None:
    result = run(3, 7, {2: 2.4}, backup=1, skip=2)
    # It needs 50.4 ms: after iteration 0 the others are in 2, after 2 in 4, after 4 they have ended all, and 6 is the last.
    assert ends(result, 2) == [50.4, 50.4, 100.8, 100.8, 151.2, 151.2, 201.6]
    assert ends(result, 0) == [21, 42, 63, 84, 105, 126, 147]
    assert result.recording is not None
    assert result.recording.ranks[2].compute_seconds == pytest.approx(4 * 50.4e-3)
    assert any("skips" in note for note in result.notes)


def test_a_worker_skips_no_more_at_once_than_it_may() -> None:
    once = run(3, 5, {2: 4.9}, backup=1, skip=1)  # after 102.9 ms the others are in the last iteration, 4
    assert ends(once, 2) == [102.9, 102.9, 205.8, 205.8, 308.7]


def test_with_staleness_a_skipped_iteration_is_no_update() -> None:
    result = run(2, 5, {1: 4}, staleness=2, skip=3)
    # Worker 0 waits in iteration 3 for parameters of 1 or later. At 84 ms worker 1 goes from 0 to 3 and sends those of 3.
    assert ends(result, 0) == [21, 42, 63, 84 + 10 + 3, 84 + 10 + 3 + 21]
    assert ends(result, 1) == [84, 84, 84, 168, 252]


def test_an_update_that_comes_too_late_is_not_sent() -> None:
    result = run(3, 6, topology=system(3, {(0, 2): "45.6 kB/s"}), backup=1, max_gap=9)
    assert ends(result, 0) == [21, 42, 63, 84, 105, 126]
    # Iteration 0's takes until 100 ms. Then its receiver is in 4, of which the parameters go next; later ones are of no use.
    links = {link.name: 6 * link.bytes for link in result.data.links}
    slow = [nbytes for nbytes in links.values() if nbytes != pytest.approx(6 * NBYTES)]
    assert slow == [pytest.approx(2 * NBYTES), pytest.approx(2 * NBYTES)]
    assert result.recording is not None
    assert result.recording.end == pytest.approx(0.2)


@pytest.mark.parametrize("graph", ["ring", "ring-based", "double-ring"])
@pytest.mark.parametrize(
    "options", [{}, {"backup": 1}, {"staleness": 2, "backup": 1}, {"backup": 1, "skip": 3, "max_gap": 2}]
)
def test_neighbours_are_never_further_apart_than_the_tokens_allow(graph: str, options: dict[str, int]) -> None:
    result = triosim.simulate(
        MLP,
        "hop",
        gpus=8,
        topology="switch(8, bandwidth=1 MB/s, latency=10 us)",
        iterations=6,
        conditions={
            "slow_links": {"distribution": "uniform", "spread": 9, "seed": 3},
            "stragglers": {"distribution": "exponential", "spread": 1, "seed": 3, "every": "iteration"},
        },
        options={"graph": graph, **{name: str(value) for name, value in options.items()}},
    )
    assert result.recording is not None
    marks = [record.iterations for record in result.recording.ranks]
    gap = options.get("max_gap", 4)
    assert all(len(times) == 6 for times in marks)
    for worker, others in load(graph, 8).destinations.items():
        for other, iteration in itertools.product(others, range(gap + 1, 6)):
            assert marks[worker][iteration] >= marks[other][iteration - gap - 1]
    if not options:
        messages = sum(len(others) for others in load(graph, 8).destinations.values())
        assert sum(one.count for one in result.data.collectives if one.bytes == NBYTES) == messages


def test_waiting_for_a_slow_neighbour_is_idle_time_not_communication() -> None:
    result = run(2, 1, {1: 3})
    fast = result.data.ranks[0]
    assert fast.compute_s == pytest.approx(21e-3)
    assert fast.communication_s == pytest.approx(10e-3)
    assert fast.idle_s == pytest.approx(42e-3)


def test_one_worker_has_no_neighbours() -> None:
    result = triosim.simulate(MLP, "hop", gpus=1, iterations=2)
    assert result.step_time_s == pytest.approx(21e-3)


def test_the_graphs_of_the_study() -> None:
    ring_based, double_ring = load("ring-based", 8), load("double-ring", 8)
    assert ring_based.destinations[0] == ring_based.sources[0] == (1, 4, 7)
    assert ring_based.destinations[5] == (1, 4, 6)
    assert double_ring.destinations[0] == (1, 2, 3, 4)  # the ring of 0 to 3, its most distant one, and its twin
    assert double_ring.destinations[6] == (2, 4, 5, 7)
    assert load("ring", 5).destinations[0] == (1, 4)
    assert load("complete", 4).destinations[2] == (0, 1, 3)


def test_a_graph_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "graph.txt"
    file.write_text("# three in a circle, and back from 2\n0 -> 1\n\n1 - 2  # both ways\n2 -> 0\n")
    graph = load(str(file), 3)
    assert graph.destinations == {0: (1,), 1: (2,), 2: (0, 1)}
    assert graph.sources == {0: (2,), 1: (0, 2), 2: (1,)}
    assert ends(run(3, 2, graph=file), 1) == [21, 42]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 -> 1\n1 => 2\n", "txt:2: '1 => 2' is not an edge"),
        ("0 - 1\n1 - 3\n", "txt:2: there is no worker 3"),
        ("0 - 1\n", "no path leads from worker 0 to worker 2"),
        ("0 -> 1\n1 -> 2\n", "no path leads to worker 0 from worker 1"),
        ("", "no path leads from worker 0 to worker 1"),
    ],
)
def test_a_file_that_is_no_graph_of_all_workers_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "graph.txt"
    file.write_text(text)
    with pytest.raises(OptionError, match=message):
        load(str(file), 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graph": "ringbased"}, "did you mean 'ring-based'"),
        ({"graph": "double-ring"}, "do not form two equal rings"),
        ({"backup": "2"}, "has 2 neighbours and would wait for none of them"),
        ({"backup": "-1"}, "-1 is less than 0"),
        ({"max_gap": "0"}, "0 is less than 1; give 1 or more"),
        ({"skip": "2"}, "give backup or staleness too"),
        ({"order": "serail"}, "did you mean 'serial'"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        run(3, 1, **options)


def test_what_exchanges_no_parameters_is_refused() -> None:
    with pytest.raises(OptionError, match="leave out --inference"):
        triosim.simulate(MLP, "hop", gpus=2, topology=system(2), training=False)
    forward = triosim.Trace(tuple(one for one in MLP.operators if one.phase == "forward"), MLP.batch_size)
    with pytest.raises(TraceError, match="no backward pass"):
        run(2, 1, trace=forward)


@pytest.fixture(scope="module")
def study() -> Any:
    path = Path(__file__).resolve().parents[3] / "examples" / "hop_backup_workers.py"
    spec = importlib.util.spec_from_file_location("hop_backup_workers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("graph", ["ring-based", "double-ring"])
def test_in_the_study_the_slowest_link_sets_the_pace_unless_a_backup_worker_stands_in(study: Any, graph: str) -> None:
    chance = Stragglers(distribution="uniform", spread=9, seed=1)
    links = with_slow_links(Topology.from_dict(study.system(graph, TEN_MS)), chance).links.values()
    into = [
        sorted(NBYTES / link.bandwidth + link.latency for link in links if link.destination == f"gpu{gpu}")
        for gpu in range(8)
    ]
    slowest, second = max(times[-1] for times in into), max(times[-2] for times in into)
    assert slowest > second > 21e-3
    assert study.seconds(MLP, graph, 1, 0, bandwidth=TEN_MS) == pytest.approx(20 * (slowest + 3e-3))
    assert second < study.seconds(MLP, graph, 1, 1, bandwidth=TEN_MS) / 20 < second + 3e-3
