"""The search that a monitor shows: how many points are done, and the best ones so far; it can be paused."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

MOST_SHOWN = 10
#: The columns and the rows of a table of the best points: a point and its step first.
Table = tuple[Sequence[str], Sequence[Sequence[str]]]


class WatchedSearch:
    """What a search has told of itself; ``stop`` ends it as Ctrl-C does, with the table so far.

    A search that is paused takes no more points from its processes, which go on with those that they were handed.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._began = time.monotonic()
        self._phase, self._done, self._total = "reading", 0, 0
        self._best: list[tuple[str, str]] = []  # the last one first
        self._front: Table = ((), ())

    def told(self, phase: str, done: int, total: int, front: Callable[[], Table]) -> None:
        """Take notice of the phase, the points that are done in it, and the best ones; return when it may go on."""
        self._phase, self._done, self._total = phase, done, total
        self._front = front()
        rows = self._front[1]
        if rows and (rows[0][0], rows[0][1]) not in self._best:
            self._best = [(rows[0][0], rows[0][1]), *self._best][:MOST_SHOWN]
        self._goes_on.wait()

    def pause(self) -> None:
        """Take no more points until it goes on."""
        self._goes_on.clear()

    def go_on(self) -> None:
        """Go on after a pause."""
        self._goes_on.set()

    def stop(self) -> None:
        """End the search."""
        self.stopped = True
        _thread.interrupt_main()
        self._goes_on.set()

    def state(self) -> dict[str, Any]:
        """Return what the page shows."""
        wall = time.monotonic() - self._began
        return {
            "phase": self._phase,
            "wall_s": wall,
            "paused": not self._goes_on.is_set(),
            "stopped": self.stopped,
            "counts": {
                "points done": f"{self._done:,} of {self._total:,}",
                "points a second": f"{self._done / wall:.1f}",
            },
            "best": [{"label": label, "step": step} for label, step in self._best],
            "front": {"columns": self._front[0], "rows": self._front[1][:MOST_SHOWN]},
        }

    @property
    def actions(self) -> dict[str, Callable[[], None]]:
        """What the page's buttons do."""
        return {"pause": self.pause, "go-on": self.go_on, "stop": self.stop}
