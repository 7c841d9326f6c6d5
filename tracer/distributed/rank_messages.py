"""What ranks that are captured at the same time, each in a process of its own, tell each other: letters in a folder.

A letter is JSON, is written whole, and may be read by whoever waits for it.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triosim.errors import CaptureError

_EVERY_SECONDS = 0.01
_PATIENCE_SECONDS = 300.0


class Mailbox:
    """The letters of one rank. ``waits(other)`` is called once each time that it waits for another rank."""

    def __init__(self, folder: str | os.PathLike[str], rank: int, waits: Callable[[int], None] | None = None) -> None:
        self.folder = Path(folder)
        self.rank = rank
        self._waits = waits
        self._counts: Counter[str] = Counter()  # by sender, receiver and subject

    def put(self, receiver: int, subject: str, value: Any) -> None:
        """Write a letter to another rank."""
        place = self._next(self.rank, receiver, subject)
        unfinished = place.with_suffix(".part")
        unfinished.write_text(json.dumps(value), encoding="utf-8")
        unfinished.rename(place)

    def take(self, sender: int, subject: str) -> Any:
        """Return the next letter from another rank; wait for it. Raises ``CaptureError`` when none comes."""
        place = self._next(sender, self.rank, subject)
        if not place.exists() and self._waits is not None:
            self._waits(sender)
        end = time.monotonic() + _PATIENCE_SECONDS
        while not place.exists():
            if time.monotonic() > end:
                raise CaptureError(f"rank {self.rank} waits for rank {sender} ({subject}), which does not answer")
            time.sleep(_EVERY_SECONDS)
        return json.loads(place.read_text(encoding="utf-8"))

    def _next(self, sender: int, receiver: int, subject: str) -> Path:
        name = f"{sender}-{receiver}-{subject}"
        self._counts[name] += 1
        return self.folder / f"{name}-{self._counts[name]}.json"
