"""The run that a monitor shows: what its engine does now, and pausing and stopping it.

Nothing is kept while nobody looks: the page's thread reads the state of the engine when it is asked.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import networkx

from triosim.engine import Engine, Progress
from triosim.engine.doing import Doing
from triosim.engine.engine import Observer
from triosim.networks.extensions import LinkCounter
from triosim.units import format_ranks

MOST_ROWS = 200
MOST_LINKS = 24
_NUMBER = re.compile(r"\d+(?:[, -]+\d+)*")  # or several
_TRIES = 5  # to read what the engine is changing


class WatchedRun(Observer):
    """Tells ``progress`` what it is told, waits while the run is paused, and describes the engine when asked."""

    def __init__(self, progress: Progress) -> None:
        self.stopped = False
        self._progress = progress
        self._engine: Engine | None = None
        self._expected: int | None = None  # tasks of a rank
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._began = time.monotonic()
        self._last: tuple[float, int, float, dict[str, float]] = (self._began, 0, 0.0, {})

    def __call__(self, seconds: float, tasks: int) -> None:
        """Take notice of the simulated time and of the number of finished tasks; wait while the run is paused."""
        self._progress(seconds, tasks)
        self._goes_on.wait()

    def began(self, engine: Engine) -> None:
        """Take notice of the engine; of a run that was stopped, no other one begins."""
        if self.stopped:
            raise KeyboardInterrupt
        self._engine = engine

    def expects(self, tasks: int | None) -> None:
        """Take notice of about how many tasks each rank has."""
        self._expected = tasks

    def pause(self) -> None:
        """Let the run wait."""
        self._goes_on.clear()

    def go_on(self) -> None:
        """Let the run go on."""
        self._goes_on.set()

    def stop(self) -> None:
        """Let the run end with what it has recorded."""
        self.stopped = True
        if self._engine is not None:
            self._engine.stop()
        self._goes_on.set()

    @property
    def actions(self) -> dict[str, Callable[[], None]]:
        """What the page's buttons do."""
        return {"pause": self.pause, "go-on": self.go_on, "stop": self.stop}

    def state(self) -> dict[str, Any]:
        """Return what the page shows."""
        engine = self._engine
        found = {
            "wall_s": time.monotonic() - self._began,
            "paused": not self._goes_on.is_set(),
            "stopped": self.stopped,
        }
        if engine is None:
            return {**found, "phase": "reading and planning"}
        ranks = _settled(engine.doing)
        open_tasks = sum(len(rank.unfinished) for rank in list(engine.ranks.values()))
        return {
            **found,
            "phase": "simulating" if open_tasks else "adding up",
            "seconds": engine.env.now,
            "tasks": engine.finished_tasks,
            "open_tasks": open_tasks,
            "tasks_left": self._left(engine),
            "ranks": rows_of(ranks, engine.env.now, (represented := engine.represented())),
            "represented": _represented(represented),
            "cycle": cycle_of(ranks),
            **self._since_last(engine),
        }

    def _left(self, engine: Engine) -> int | None:
        if self._expected is None:
            return None
        return max(0, self._expected * len(engine.ranks) - engine.finished_tasks)

    def _since_last(self, engine: Engine) -> dict[str, Any]:
        """Return the tasks a second, and how much of the links was taken, since the page asked last."""
        network = engine.network
        now, tasks, seconds = time.monotonic(), engine.finished_tasks, engine.env.now
        carried = _settled(network.bytes_by_link) if isinstance(network, LinkCounter) else {}
        then, tasks_then, seconds_then, carried_then = self._last
        self._last = now, tasks, seconds, carried
        links, lasts = network.topology.links, seconds - seconds_then
        loads = {
            name: (amount - carried_then.get(name, 0.0)) / lasts / links[name].bandwidth
            for name, amount in carried.items()
            if lasts > 0 and name in links
        }
        busiest = sorted(loads.items(), key=lambda pair: -pair[1])[:MOST_LINKS]
        return {
            "flows": _settled(network.flows_under_way, None) if isinstance(network, LinkCounter) else None,
            "tasks_per_s": max(0.0, (tasks - tasks_then) / max(1e-9, now - then)),
            "links": [{"name": name, "load": min(1.0, load)} for name, load in busiest if load > 0],
        }


def _settled(read: Any, otherwise: Any = MappingProxyType({})) -> Any:
    """Return what a function reads from dicts that another thread may be changing; ``otherwise`` where it keeps changing."""
    for _ in range(_TRIES):
        try:
            return read()
        except RuntimeError:  # changed size during iteration
            continue
    return otherwise


def _represented(stand_for: Mapping[int, Sequence[int]]) -> str:
    """Return a sentence that says which ranks are simulated for others; an empty one where each is for itself."""
    several = {one: ranks for one, ranks in stand_for.items() if len(ranks) > 1}
    if not several:
        return ""
    rank, ranks = next(iter(several.items()))
    total, few = sum(map(len, stand_for.values())), len(stand_for)
    simulated = f"{few} of {total} ranks {'is' if few == 1 else 'are'} simulated, each for those that do the same"
    others = ", and so on" if len(several) > 1 else ""
    return f"{simulated}: rank {rank} stands for ranks {format_ranks(ranks)}{others}."


def rows_of(
    ranks: dict[int, Doing], now: float, stand_for: Mapping[int, Sequence[int]] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Return a row for the ranks that do the same but for the numbers in it, those that wait longest first.

    A rank that is simulated stands for others, which do the same.
    """
    same: dict[tuple[str, str], list[int]] = {}
    for index, one in ranks.items():
        same.setdefault((one.state, _NUMBER.sub("#", one.text)), []).append(index)
    rows = []
    for (state, _), found in same.items():
        texts = {ranks[index].text for index in found}
        text = ranks[found[0]].text if len(texts) == 1 else f"{ranks[found[0]].text} (rank {found[0]}; others alike)"
        begun = [one.since for one in map(ranks.__getitem__, found) if one.since is not None]
        since = max(0.0, now - min(begun)) if begun else 0.0
        shown = sorted(rank for index in found for rank in stand_for.get(index, (index,)))
        row = {"ranks": format_ranks(shown), "state": state, "text": text, "since_s": since if begun else None}
        rows.append((state != "waiting", -since, row))
    return [row for *_, row in sorted(rows, key=lambda one: one[:2])[:MOST_ROWS]]


def cycle_of(ranks: dict[int, Doing]) -> list[int]:
    """Return ranks that wait for each other in a circle, where none of all ranks does anything else."""
    if any(one.state != "waiting" for one in ranks.values()):
        return []  # a rank may wait in one stream and go on in another, or for a partner that goes on
    waits: Any = networkx.DiGraph()
    waits.add_edges_from(
        (index, partner) for index, one in ranks.items() for partner in one.partners if partner in ranks
    )
    try:
        return [source for source, _ in networkx.find_cycle(waits)]
    except networkx.NetworkXNoCycle:
        return []
