"""Messages between ranks that are captured at the same time, each in a process of its own: JSON files in a folder.

A message is written whole before it can be seen, and stays, so that any process may read it.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from triosim.errors import CaptureError

_POLL_SECONDS = 0.01
_TIMEOUT_SECONDS = 300.0


def same_exchange(like: Sequence[int], alike: Sequence[int], sender: int, receiver: int) -> tuple[int, int] | None:
    """Return the exchange of a running rank that is the same as one of a ``sender`` that follows it by ``like``.

    Ranks that do the same have partners at the same distance: where rank 1 follows rank 0 and sends to rank 3, rank 0 sends the
    same to rank 2. None where that one does something else than the ``receiver``.
    """
    source = like[sender]
    other = receiver + source - sender
    return (source, other) if 0 <= other < len(like) and alike[other] == alike[receiver] else None


class RankMessages:
    """The messages that one rank sends and receives. ``waits(other)`` is called each time that it needs one of another rank.

    It waits for ``patience`` seconds at most. ``like`` says, of each rank, which one stands for it, where all these run at the
    same time; those for which ``alike`` has the same number run the same. Without it every rank is taken to run.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        rank: int,
        waits: Callable[[int], None] | None = None,
        patience: float = _TIMEOUT_SECONDS,
        like: Sequence[int] | None = None,
        alike: Sequence[int] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.like = like
        self.alike = like if alike is None else alike
        self.rank = rank
        self._waits = waits
        self._patience = patience
        self._counts: Counter[str] = Counter()  # by sender, receiver and subject

    def send(self, receiver: int, subject: str, value: Any) -> None:
        """Send a message to another rank."""
        self.deliver(self._next(self.rank, receiver, subject), value)

    def receive(self, sender: int, subject: str) -> Any:
        """Return the next message from another rank; wait for it. Raises ``CaptureError`` when none comes."""
        return self.expect(sender, subject)()

    def comes_from(self, sender: int) -> bool:
        """Whether messages from another rank come: it runs, or a running rank that it equals sends the same."""
        return self._sent_as(sender) is not None

    def expect(self, sender: int, subject: str) -> Callable[[], Any]:
        """Return a function that waits for the next message from another rank, and returns it."""
        source, receiver = self._sent_as(sender) or (sender, self.rank)
        return partial(self.collect, self._next(source, receiver, subject), source)

    def _sent_as(self, sender: int) -> tuple[int, int] | None:
        """Return the running rank that sends what ``sender`` sends to this one, and to whom; None where nobody does."""
        if self.like is None or self.like[sender] == sender:
            return sender, self.rank
        return same_exchange(self.like, self.alike or self.like, sender, self.rank)

    def announce(self, subject: str, value: Any) -> None:
        """Send a message to all ranks."""
        self.deliver(self._next(self.rank, "all", subject), value)

    def hear(self, sender: int, subject: str) -> Any:
        """Return what another rank announces next; wait for it. Raises ``CaptureError`` when it does not."""
        return self.collect(self._next(sender, "all", subject), sender)

    def skip(self, sender: int, subject: str) -> None:
        """Leave out what another rank announces next."""
        self._next(sender, "all", subject)

    def deliver(self, path: Path, value: Any) -> None:
        """Write a message to its file."""
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(value), encoding="utf-8")
        unfinished.rename(path)

    def collect(self, path: Path, sender: int) -> Any:
        """Wait for the file of a message, and return the message. Raises ``CaptureError`` when none comes."""
        if self._waits is not None:
            self._waits(sender)
        end = time.monotonic() + self._patience
        while not path.exists():
            if time.monotonic() > end:
                raise CaptureError(f"rank {self.rank} waits for rank {sender} ({path.stem}), which does not answer")
            time.sleep(_POLL_SECONDS)
        return json.loads(path.read_text(encoding="utf-8"))

    def _next(self, sender: int, receiver: int | str, subject: str) -> Path:
        name = f"{sender}-{receiver}-{subject}"
        self._counts[name] += 1
        return self.folder / f"{name}-{self._counts[name]}.json"
