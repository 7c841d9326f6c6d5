"""Chains: what a rank does one thing after the other is one task, and everything happens when it would have happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import OneBytePerSecond

from triosim.conditions import Conditions, Interference
from triosim.engine.engine import Engine
from triosim.engine.recording import Recording
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.folding.chains import Chain
from triosim.folding.dry_run import foresee
from triosim.tasks import AllReduce, Communicator, Compute, Handle, Record, Recv, Send, TaskStream, Wait
from triosim.trace import Operator

#: What a rank does: a letter, and seconds of computing or bytes to send.
#: c computes, t reduces together and waits, b begins to reduce beside what follows, w waits for the first of those, s sends,
#: r receives and waits for it, o reduces with others that are simulated too.
Actions = Sequence[tuple[str, float]]

OTHERS = Communicator((0, 1), "dp")
TENSOR = {rank: Communicator((rank, rank + 2), "tp") for rank in (0, 1)}  # the other ones are not simulated


def written(rank: int, actions: Actions, operators: int = 1) -> TaskStream:
    begun: list[Handle] = []
    for letter, amount in actions:
        if letter == "c":
            one = Operator(0, "aten::mm", "forward", "", (), (), amount / operators)
            yield Compute((one,) * operators)
        elif letter in "to":
            yield Wait(((yield AllReduce(amount, TENSOR[rank] if letter == "t" else OTHERS, stream=letter)),))
        elif letter == "b":
            begun.append((yield AllReduce(amount, TENSOR[rank], stream="t")))
        elif letter == "w" and begun:
            yield Wait((begun.pop(0),))
        elif letter == "s":
            yield Send(1, amount, stream="s")
        elif letter == "r":
            yield Wait(((yield Recv(0, stream="r")),))
    yield Record()


def tasks_of(stream: TaskStream) -> list[Any]:
    found = [next(stream)]
    try:
        while True:
            found.append(stream.send(Handle(0, found[-1])))
    except StopIteration:
        return found


def drawn(*actions: Actions, joined: bool, operators: int = 1) -> dict[int, TaskStream]:
    tapes = foresee({rank: written(rank, mine, operators) for rank, mine in enumerate(actions)}).tapes
    if joined:
        for rank, tape in tapes.items():
            tape.join(rank, range(len(actions)))
    return {rank: tape.stream() for rank, tape in tapes.items()}


def ran(*actions: Actions, joined: bool, operators: int = 1) -> Recording:
    env = simpy.Environment()
    alike = Symmetry(Mesh.of(pp=2, tp=2, dp=3), ("tp", "dp"))
    engine = Engine(env, OneBytePerSecond(env), alike=alike)  # type: ignore[arg-type]
    assert engine.joins
    return engine.run(drawn(*actions, joined=joined, operators=operators))


def figures(recording: Recording) -> Any:
    return [
        recording.end,
        [
            (
                one.compute.merged(),
                sorted(one.communication.spans, key=lambda span: span[:4]),
                (one.compute_seconds, one.waiting_seconds, one.finished),
            )
            for one in recording.ranks
        ],
        sorted(tuple(runs.items()) for _, runs in recording.computed.values()),
        {key: count.count for key, count in recording.transfers.items()},
    ]


def test_a_rank_that_waits_for_each_collective_does_one_thing_after_the_other() -> None:
    actions = [("c", 2.0), ("t", 3.0), ("c", 4.0), ("t", 5.0)]
    chain, record = tasks_of(drawn(actions, joined=True)[0])
    assert isinstance(chain, Chain)
    assert isinstance(record, Record)
    assert chain.length == 6
    recording = ran(actions, joined=True)
    assert recording.end == 14.0
    assert recording.ranks[0].compute.merged() == [(0.0, 2.0), (5.0, 9.0)]
    assert [span[:3] for span in recording.ranks[0].communication.spans] == [(2.0, 2.0, 5.0), (9.0, 9.0, 14.0)]
    assert {key: (count.count, count.seconds) for key, count in recording.transfers.items()} == {
        ("all_reduce", "tp", 2, 3.0): (3, 9.0),
        ("all_reduce", "tp", 2, 5.0): (3, 15.0),
    }


@pytest.mark.parametrize(("seconds", "end"), [(1.0, 2.0 + 3.0 + 7.0), (6.0, 2.0 + 6.0 + 7.0)])
def test_what_runs_beside_a_collective_ends_when_both_are_over(seconds: float, end: float) -> None:
    actions = [("c", 2.0), ("b", 3.0), ("c", seconds), ("w", 0.0), ("c", 7.0)]
    assert len(tasks_of(drawn(actions, joined=True)[0])) == 2
    assert ran(actions, joined=True).end == end


def test_a_micro_batch_that_comes_again_is_the_same_chain() -> None:
    computed = Compute.of("aten::mm", 1.0)
    summed = AllReduce(8.0, TENSOR[0], stream="t")

    def stream() -> TaskStream:
        for _ in range(3):
            yield computed
            yield Wait(((yield summed),))
            yield Send(1, 1.0, stream="s")

    tape = foresee({0: stream(), 1: written(1, [("r", 0.0)] * 3)}).tapes[0]
    tape.join(0, (0, 1))
    tasks = tasks_of(tape.stream())
    assert [type(task) for task in tasks] == [Chain, Send] * 3
    assert tasks[0] is tasks[2] is tasks[4]


@pytest.mark.parametrize(
    ("actions", "found"),
    [
        ([("c", 1.0), ("o", 1.0), ("c", 1.0)], 0),  # the others come when they come
        (
            [("c", 1.0), ("b", 1.0), ("c", 1.0), ("b", 1.0), ("w", 0.0), ("w", 0.0)],
            0,
        ),  # the second stands behind the first
        ([("c", 1.0), ("t", 1.0), ("s", 1.0), ("c", 1.0), ("t", 1.0)], 2),
        ([("c", 1.0), ("c", 1.0), ("b", 1.0), ("s", 1.0), ("w", 0.0)], 1),  # ends ahead of what is not yet waited for
    ],
)
def test_a_chain_ends_where_something_else_comes_in_between(actions: Actions, found: int) -> None:
    tapes = foresee({0: written(0, actions), 1: written(1, [("o", 1.0), ("r", 0.0)])}).tapes
    tapes[0].join(0, (0, 1))
    assert sum(isinstance(task, Chain) for task in tasks_of(tapes[0].stream())) == found


def test_a_rank_that_computes_on_two_streams_has_no_chains() -> None:
    def stream() -> TaskStream:
        yield Compute.of("aten::mm", 1.0, stream="compute 2")
        yield from written(0, [("c", 1.0), ("t", 1.0)])

    tape = foresee({0: stream()}).tapes[0]
    tape.join(0, (0,))
    assert not any(isinstance(task, Chain) for task in tasks_of(tape.stream()))


@pytest.mark.parametrize(
    "options",
    [{"host_overhead": 1e-6}, {"timeline": True}, {"conditions": Conditions(Interference({"all_reduce": 1.2}))}],
)
def test_tasks_that_are_launched_slowed_or_shown_by_themselves_are_not_joined(options: dict[str, Any]) -> None:
    env = simpy.Environment()
    assert not Engine(env, OneBytePerSecond(env), **options).joins  # type: ignore[arg-type]


AMOUNTS = st.sampled_from([0.0, 0.1, 0.3, 1.0, 2.5])


def some(letters: str) -> st.SearchStrategy[Actions]:
    return st.lists(st.tuples(st.sampled_from(letters), AMOUNTS), max_size=14)


@settings(max_examples=300, deadline=None)
@given(
    first=some("ccttbbwws"),
    second=some("ccttbbww"),
    mixed=st.randoms(use_true_random=False),
    operators=st.sampled_from([1, 400, 1500]),
)
def test_everything_happens_when_it_would_have_happened(
    first: Actions, second: Actions, mixed: Any, operators: int
) -> None:
    """Also where the host may not launch any more: 1,024 operators are not three computations of 400."""
    received = [*second, *(("r", 0.0) for letter, _ in first if letter == "s")]
    mixed.shuffle(received)
    plain, joined = (ran(first, received, joined=how, operators=operators) for how in (False, True))
    assert figures(joined) == figures(plain)
