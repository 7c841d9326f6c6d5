"""The search that a monitor shows: how many points are done, and the best ones so far."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from typing import Any

from triosim.units import format_time

MOST_SHOWN = 10


class WatchedSearch:
    """What a search has told of itself; ``stop`` ends it as Ctrl-C does, with the table so far."""

    def __init__(self) -> None:
        self.stopped = False
        self._began = time.monotonic()
        self._phase, self._done, self._total = "reading", 0, 0
        self._best: list[tuple[str, float]] = []

    def told(self, phase: str, done: int, total: int, best: tuple[str, float] | None) -> None:
        """Take notice of the phase, the points that are done in it, and the best point with its step in seconds."""
        self._phase, self._done, self._total = phase, done, total
        if best is not None and best not in self._best:
            self._best = [best, *self._best][:MOST_SHOWN]

    def stop(self) -> None:
        """End the search."""
        self.stopped = True
        _thread.interrupt_main()

    def state(self) -> dict[str, Any]:
        """Return what the page shows."""
        wall = time.monotonic() - self._began
        return {
            "phase": self._phase,
            "wall_s": wall,
            "paused": False,
            "stopped": self.stopped,
            "counts": {
                "points done": f"{self._done:,} of {self._total:,}",
                "points a second": f"{self._done / wall:.1f}",
            },
            "best": [{"label": label, "step": format_time(seconds)} for label, seconds in self._best],
        }

    @property
    def actions(self) -> dict[str, Callable[[], None]]:
        """What the page's buttons do."""
        return {"stop": self.stop}
