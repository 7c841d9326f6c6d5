"""Progress on standard error, shown after two seconds: on a terminal, and elsewhere as a single line if at all."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from triosim.errors import printable
from triosim.units import format_time

if TYPE_CHECKING:
    import rich.progress

PATIENCE = 2.0  # seconds that a person waits without asking


class Progress:
    """Within its block, a line with the simulation's progress appears after two seconds, and is erased at the end.

    It is called with the simulated time and the number of finished tasks. A timer shows the line, so that it also
    appears where those calls are rare. Where standard error is no terminal, the line ``redirected`` is written instead, once.
    """

    def __init__(self, *, shown: bool = True, redirected: str = "") -> None:
        self.label = ""
        self._text = "reading"
        self._redirected = "" if sys.stderr.isatty() else redirected
        self._shown = shown and (sys.stderr.isatty() or bool(redirected))
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._over = False
        self._line: rich.progress.Progress | None = None

    def __call__(self, seconds: float, tasks: int) -> None:
        """Update the line with the simulated time and the number of finished tasks."""
        self.said(f"{format_time(seconds)} simulated, {tasks:,} tasks")

    def said(self, text: str) -> None:
        """Update the line with a text."""
        self._text = text
        if self._line is not None:
            self._line.update(self._line.task_ids[0], description=self.label + self._text)

    def labelled(self, label: str) -> None:
        """Name the simulation that begins, of several."""
        self.label = f"{label}: "

    def __enter__(self) -> Progress:
        if self._shown:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._line is not None:
                self._line.stop()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._over:
                return
            if self._redirected:
                print(printable(self._redirected), file=sys.stderr, flush=True)
                return
            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            line = Progress(*columns, console=Console(stderr=True), transient=True)
            line.add_task(printable(self.label + self._text), total=None)
            line.tasks[0].start_time = line.get_time() - PATIENCE
            line.start()
            self._line = line
