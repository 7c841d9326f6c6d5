"""Chains: what a rank does one thing after the other, with none of the ranks that are simulated in between, is one task of its.

Computations, and collectives of which all other members are ranks that it stands for, take each the time that they take; nobody
else's comes between them. A chain runs them one by one, at the times at which they would run, without a handle for each, and
without asking what each of them waits for. This is exact, because of a rank's tasks

- all stand on the compute stream, or are issued by it: what comes behind a chain begins no earlier than the chain ends;
- none computes beside it, so that it never waits for compute units;
- those on the stream of a chain's collective, and those of its communicator, are each waited for before the next one comes, so
  that nothing is ahead of a collective when the chain comes to it; and the chain waits for its own itself;
- the host, which does not go on while 1,024 launches are open, has issued the chain: of those that are not on the compute
  stream, fewer are open then, and until the chain ends there will be no more. So none of its tasks would be issued too late.

Where one of these is not so, a rank has no chains, or its chains are shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import simpy

from triosim.networks.base import when
from triosim.tasks import COMPUTE_STREAM, Collective, Communicator, Compute, Handle, Iteration, Record, Task, Wait

if TYPE_CHECKING:
    from triosim.engine.rank import Rank
    from triosim.engine.recording import Recording
    from triosim.extrapolators.core.symmetry import Symmetry
    from triosim.networks.base import Network

#: The handles that a task names, as the places of their tasks in the stream: by the task's place, and by the field's name.
Named = Mapping[int, Mapping[str, tuple[int, ...]]]

#: What a chain does next: it computes, it begins a collective, or it waits for the one that is its step of this number.
Step = Compute | Collective | int


@dataclass(frozen=True, slots=True, eq=False)
class Chain(Task):
    """Tasks that run one after the other; ``length`` is how many a stream has in their stead."""

    steps: tuple[Step, ...]
    length: int
    launches: int
    stream: str = COMPUTE_STREAM


def chains(
    rank: int, tasks: Sequence[Task], named: Named, uses: Mapping[int, int], simulated: Container[int]
) -> dict[int, Chain]:
    """Return the chains of a rank, each by the place of its first task.

    ``uses`` says how often the handle of a task is named, ``simulated`` which ranks run their own tasks.
    """
    if not all(map(_on_compute_stream, tasks)):
        return {}
    crowded = _crowded(tasks, named)
    groups = {task.group for task in tasks if isinstance(task, Collective)}
    alone = {one for one in groups - crowded if [other for other in one.ranks if other in simulated] == [rank]}
    found: dict[int, Chain] = {}
    known: dict[tuple[int, ...], Chain] = {}  # what comes in each micro-batch is one object
    place = 0
    while place < len(tasks):
        steps: list[Step] = []
        opened: dict[int, int] = {}  # collectives that run, by place: which steps they are
        end, whole = place, 0
        for at in range(place, len(tasks)):
            task = tasks[at]
            if isinstance(task, Compute) and not task.after and at not in uses:
                steps.append(task)
            elif isinstance(task, Collective) and not task.after and uses.get(at) == 1:
                if task.group not in alone or task.stream in crowded or task.stream == COMPUTE_STREAM:
                    break
                opened[at] = len(steps)
                steps.append(task)
            elif isinstance(task, Wait) and not task.after and at not in uses:
                handles = named[at]["handles"]
                if not all(other in opened for other in handles):
                    break
                steps += [opened.pop(other) for other in handles]
            else:
                break
            if not opened:
                end, whole = at + 1, len(steps)
        if whole > 1:
            key = tuple(step if isinstance(step, int) else ~id(step) for step in steps[:whole])
            if key not in known:
                known[key] = Chain(tuple(steps[:whole]), end - place, sum(map(_launches, tasks[place:end])))
            found[place] = known[key]
        place = max(end, place + 1)
    return found


def _on_compute_stream(task: Task) -> bool:
    """Whether a task stands on the compute stream, or waits for what was at its tail."""
    if isinstance(task, (Compute, Record, Wait)):
        return task.stream == COMPUTE_STREAM
    return isinstance(task, Iteration) or getattr(task, "issuer", None) == COMPUTE_STREAM


def _launches(task: Task) -> int:
    return len(task.operators) if isinstance(task, Compute) else 1


def _crowded(tasks: Sequence[Task], named: Named) -> set[str | Communicator | None]:
    """The streams and communicators on which a task comes before the compute stream has waited for the one ahead of it."""
    waited: dict[int, int] = {}
    for place, names in named.items():
        if isinstance(tasks[place], Wait):
            for other in names.get("handles", ()):
                waited[other] = min(place, waited.get(other, place))
    crowded: set[str | Communicator | None] = set()
    last: dict[str | Communicator | None, int] = {}
    for place, task in enumerate(tasks):
        for key in _queues(task):
            if key in last and waited.get(last[key], place) >= place:
                crowded.add(key)
            last[key] = place
    return crowded


def _queues(task: Task) -> Iterator[str | Communicator | None]:
    """Where a task stands in line, beside the compute stream."""
    stream = getattr(task, "stream", COMPUTE_STREAM)
    if stream != COMPUTE_STREAM:
        yield stream
    if isinstance(task, Collective):
        yield task.group


class Chains:
    """Runs chains; ``finish`` is called for each that is through. ``alike`` is as in a rendezvous."""

    def __init__(
        self,
        network: Network,
        recording: Recording,
        finish: Callable[[Rank, Handle], None],
        alike: Symmetry | None,
    ) -> None:
        self.env = network.env
        self.network = network
        self.recording = recording
        self.finish = finish
        self.alike = alike

    def begin(self, rank: Rank, handle: Handle, chain: Chain) -> None:
        """A chain is ready, and runs."""
        handle.arrived = handle.started = self.env.now
        _Way(self, rank, handle, chain.steps).go_on()

    def collective(self, rank: Rank, task: Collective, done: Callable[[], None]) -> None:
        """Run a collective."""
        began, ranks = self.env.now, task.group.ranks

        def through(_: simpy.Event) -> None:
            now, alike = self.env.now, self.alike
            key = (task.kind, task.label or task.group.name, len(ranks), task.nbytes)
            self.recording.count(key, now - began, 1 if alike is None else alike.group_multiplicity(ranks))
            rank.record.communication.add(began, began, now, task.group.name, task.layers)
            done()

        when(self.network.collective(task.kind, ranks, task.nbytes, root=task.root, shares=task.shares), through)


class _Way:
    """How far a chain has come."""

    __slots__ = ("_began", "_chains", "_handle", "_next", "_rank", "_steps", "_through", "_waits")

    def __init__(self, chains: Chains, rank: Rank, handle: Handle, steps: tuple[Step, ...]) -> None:
        self._chains = chains
        self._rank = rank
        self._handle = handle
        self._steps = steps
        self._next = 0
        self._began = 0.0  # when it began to compute
        self._through: set[int] = set()  # collectives that are over
        self._waits: int | None = None  # for this one

    def go_on(self) -> None:
        """Take the steps up to the next that takes time, or end the chain."""
        chains, rank = self._chains, self._rank
        while self._next < len(self._steps):
            number, step = self._next, self._steps[self._next]
            self._next += 1
            if isinstance(step, Compute):
                if step.seconds:
                    self._began = chains.env.now
                    chains.env.timeout(step.seconds).callbacks.append(self._computed)
                    return
                chains.recording.ran(rank.index, step)
            elif isinstance(step, Collective):
                chains.collective(rank, step, partial(self._communicated, number))
            elif step not in self._through:
                self._waits = step
                return
        chains.finish(rank, self._handle)

    def _computed(self, _: simpy.Event) -> None:
        task, record = self._steps[self._next - 1], self._rank.record
        assert isinstance(task, Compute)
        record.compute.add(self._began, self._chains.env.now)
        record.compute_seconds += task.seconds
        self._chains.recording.ran(self._rank.index, task)
        self.go_on()

    def _communicated(self, number: int) -> None:
        self._through.add(number)
        if self._waits == number:
            self._waits = None
            self.go_on()
