"""Where the simulator itself spends its time and how much memory it takes, sampled while somebody looks."""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

_EVERY = 0.1  # seconds; more often would slow the run by more than it may cost
_LOOKED = 3.0  # seconds since the last look, in which samples are taken
_SHOWN = 12
_PAGE = resource.getpagesize()


class SelfProfile:
    """Samples the stack of a thread; ``look`` returns the functions that were running, and goes on sampling for a while."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._counts: Counter[str] = Counter()
        self._looked = 0.0
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    def look(self) -> dict[str, Any]:
        """Return the memory in bytes, and the shares of samples in functions of the simulator."""
        self._looked = time.monotonic()
        total = self._counts.total()
        shown = [{"where": where, "share": count / total} for where, count in self._counts.most_common(_SHOWN)]
        return {"memory_bytes": _memory(), "profile": shown}

    def close(self) -> None:
        """End the sampling."""
        self._over.set()

    def _sample(self) -> None:
        while not self._over.wait(_EVERY):
            if time.monotonic() - self._looked < _LOOKED:
                frame = sys._current_frames().get(self._thread)
                while frame is not None and not str(frame.f_globals.get("__name__", "")).startswith("triosim"):
                    frame = frame.f_back
                if frame is not None:
                    name = str(frame.f_globals["__name__"]).removeprefix("triosim.")
                    self._counts[f"{name}:{frame.f_code.co_name}"] += 1


def _memory() -> int:
    """Return the bytes of memory that the process has now, or the most that it had, where that is not known."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
