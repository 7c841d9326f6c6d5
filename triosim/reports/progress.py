"""Progress on standard error, for a person who waits: nothing before two seconds, nothing where nobody looks."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from triosim.units import format_time

if TYPE_CHECKING:
    from rich.status import Status

PATIENCE = 2.0  # seconds that a person waits without asking


class Progress:
    """Called with the simulated time and the number of finished tasks; shows a line that is wiped at the end."""

    def __init__(self, *, shown: bool = True, label: str = "") -> None:
        self.label = label
        self._shown = shown and sys.stderr.isatty()
        self._started = time.monotonic()
        self._status: Status | None = None

    def __call__(self, seconds: float, tasks: int) -> None:
        """Tell how far a simulation is."""
        if not self._shown:
            return
        elapsed = time.monotonic() - self._started
        if elapsed < PATIENCE:
            return
        text = f"{self.label}{format_time(seconds)} simulated, {tasks:,} tasks, {elapsed:.0f} s"
        if self._status is None:
            from rich.console import Console
            from rich.status import Status

            self._status = Status(text, console=Console(stderr=True))
            self._status.start()
        else:
            self._status.update(text)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
