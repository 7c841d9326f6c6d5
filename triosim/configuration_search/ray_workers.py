"""Evaluates points on a Ray cluster: an actor for each processor, which keeps what points share, as a process does.

Outcomes come back to the process that searches, which alone writes the study. Where a node or an actor dies, its points that
are not answered are handed to others, and another actor is started in its place if there is room, or as soon as there is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic

from triosim.configuration_search.outcome import Outcome
from triosim.configuration_search.workers import Evaluate, One, Task, answer, runs
from triosim.errors import SimulationError, TriosimError

#: How often actors may die at a point, or in their start, before that is taken for their fault.
_MOST_DEATHS = 3
#: How many seconds nothing may start on the cluster.
_PATIENCE = 120


@contextmanager
def on_ray(*tasks: Task[One], jobs: int | None = None) -> Iterator[Sequence[Evaluate[One]]]:
    """Give what evaluates points by each task on the Ray cluster of this machine, or that ``RAY_ADDRESS`` names.

    ``jobs`` are how many points are worked on at once, by default one for each processor. Raises ``TriosimError`` where Ray is
    not installed, and ``SimulationError`` without a cluster.
    """
    ray = _connected()
    count = jobs or max(int(ray.cluster_resources().get("CPU", 1)), 1)
    pool: _Pool[One] = _Pool(ray, ray.put(tasks), count)
    try:
        yield [partial(pool.evaluate, number) for number in range(len(tasks))]
    finally:
        pool.end()


class _Actor:
    """Answers points one after the other."""

    def __init__(self, tasks: Sequence[Task[Any]]) -> None:
        self._tasks = tasks

    def ready(self) -> None:
        """Answer once it is started."""

    def answer(self, task: int, point: Any) -> object:
        return answer(self._tasks[task], point)


@dataclass(eq=False)
class _Member(Generic[One]):
    """An actor, what tells that it is started, and the points that it works on by their references, in their order."""

    actor: Any
    starting: Any
    points: dict[Any, One] = field(default_factory=dict)

    @property
    def is_free(self) -> bool:
        return self.starting is None and not self.points


@dataclass
class _Pool(Generic[One]):
    """So many actors, as far as the cluster has room for them."""

    ray: Any
    tasks: Any
    count: int
    _members: list[_Member[One]] = field(default_factory=list)
    _deaths: Counter[str] = field(default_factory=Counter)
    _failed_starts: int = 0

    def evaluate(
        self, task: int, points: Iterable[One], *, shared: Callable[[One], Hashable] | None = None
    ) -> Iterator[tuple[One, Outcome]]:
        """Yield each point with what the task finds. Raises what the task raises, and ``SimulationError``."""
        self._forget()
        todo = iter(([point] for point in points) if shared is None else runs(points, shared))
        returned: deque[list[One]] = deque()
        while True:
            self._fill()
            for member in self._members:
                if member.is_free and (drawn := returned.popleft() if returned else next(todo, None)):
                    member.points = {member.actor.answer.remote(task, point): point for point in drawn}
            if not returned and not any(member.points for member in self._members) and self._has_started():
                return
            for member, reference in self._waited():
                if member.starting is not None:
                    self._start_ended(member)
                    continue
                found = self._got(reference)
                if found is None:
                    returned.append(self._died(member))
                    break  # of what else is ready some may be of this actor
                point = member.points.pop(reference)
                if isinstance(found, BaseException):
                    raise found
                yield point, found

    def end(self) -> None:
        """End all actors."""
        for member in self._members:
            self.ray.kill(member.actor)
        self._members.clear()

    def _fill(self) -> None:
        while len(self._members) < self.count:
            kind = self.ray.remote(_Actor).options(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")
            actor = kind.remote(self.tasks)
            self._members.append(_Member(actor, actor.ready.remote()))

    def _has_started(self) -> bool:
        """Whether some actor is there, and so has found nothing to do."""
        return any(member.starting is None for member in self._members)

    def _waited(self) -> list[tuple[_Member[One], Any]]:
        """Return what is ready: actors that are started, or could not be, and answers."""
        waiting = {
            reference: member
            for member in self._members
            for reference in ([member.starting] if member.starting is not None else member.points)
        }
        ready, _ = self.ray.wait(list(waiting), num_returns=1, timeout=_PATIENCE)
        if not ready and not self._has_started():
            fix = "see 'ray status' for processors that are free; with --study, the search goes on where it ended"
            raise SimulationError(f"Ray has started no worker in {_PATIENCE} s", where="--executor ray", fix=fix)
        return [(waiting[reference], reference) for reference in ready]

    def _got(self, reference: Any) -> Any:
        """Return an answer; None where the actor died."""
        try:
            return self.ray.get(reference)
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError):
            return None

    def _start_ended(self, member: _Member[One]) -> None:
        try:
            self.ray.get(member.starting)
        except self.ray.exceptions.RayError as error:
            self._members.remove(member)
            self._failed_starts += 1
            if self._failed_starts >= _MOST_DEATHS:
                said = str(error).strip().splitlines()[-1]
                fix = "triosim must be installed on every node"
                raise SimulationError(f"workers cannot start: {said}", where="--executor ray", fix=fix) from None
            return
        member.starting = None
        self._failed_starts = 0

    def _died(self, member: _Member[One]) -> list[One]:
        """Return the points of an actor that died, which it has not answered."""
        self._members.remove(member)
        left = list(member.points.values())
        first = str(left[0])
        self._deaths[first] += 1
        if self._deaths[first] >= _MOST_DEATHS:
            fix = "give fewer --jobs if memory was short; with --study, the search goes on where it ended"
            what = f"{_MOST_DEATHS} workers died at it"
            raise SimulationError(what, where=first, fix=fix)
        return left

    def _forget(self) -> None:
        """Wait for what somebody asked for who does not want it any more."""
        for member in self._members:
            if member.points:
                self.ray.wait(list(member.points), num_returns=len(member.points))
                member.points = {}


def _connected() -> Any:
    try:
        import ray
    except ImportError:
        fix = "install it with: pip install 'triosim[ray]'"
        raise TriosimError("Ray is not installed", where="--executor ray", fix=fix) from None
    if not ray.is_initialized():
        try:
            ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            fix = "start one with 'ray start --head', or name it in RAY_ADDRESS"
            said = str(error).strip().splitlines()
            raise SimulationError(
                f"there is no Ray cluster: {said[0] if said else 'none answers'}", where="--executor ray", fix=fix
            ) from None
    return ray
