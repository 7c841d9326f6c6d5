"""The output of running ranks: on the terminal, in the order of the simulated time, and in a file for each rank."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import TextIO

from triosim.errors import OutputError
from triosim.live.items import Said

#: Of so many writes of a rank to its standard error, which the terminal does not show, those before a failure are shown.
_HELD_WRITES = 400


class RankOutput(ExitStack):
    """Writes what ranks print. ``shown`` are the ranks that the terminal shows, None all; ``folder`` gets ``rank-N.log``."""

    def __init__(self, shown: Collection[int] | None = None, folder: str | None = None) -> None:
        super().__init__()
        self._shown = shown
        self._folder = None if folder is None else Path(folder)
        self._files: dict[int, FileIO] = {}
        self._said: set[bytes] = set()  # of ours
        self._held: dict[int, deque[bytes]] = {}  # standard error of ranks that are not shown
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                what = error.strerror or str(error)
                raise OutputError(what, where=f"--ranks-output {folder}", fix="name a folder") from None

    def __call__(self, rank: int, said: Said) -> None:
        """Write what a rank printed."""
        if self._folder is not None:
            self._log(rank, self._folder / f"rank-{rank}.log", said.text)
        ours = said.stream in ("note", "error")
        if ours and said.text in self._said:
            return
        if self._shown is None or rank in self._shown or said.stream == "error":
            if ours:
                self._said.add(said.text)
            _write(sys.stdout if said.stream == "out" else sys.stderr, said.text)
        elif said.stream == "err":
            self._held.setdefault(rank, deque(maxlen=_HELD_WRITES)).append(said.text)

    def _log(self, rank: int, path: Path, text: bytes) -> None:
        """Write to a rank's file at once. Raises ``OutputError`` where its disk is full."""
        try:
            if rank not in self._files:
                self._files[rank] = self.enter_context(path.open("wb", buffering=0))
            while text:
                text = text[self._files[rank].write(text) :]
        except OSError as error:
            raise OutputError(f"could not be written: {error.strerror}", where=str(path)) from None

    def failed(self, rank: int, status: int) -> None:
        """Say that a rank failed, and show what it wrote to its standard error, whichever ranks are shown."""
        _write(sys.stderr, b"".join(self._held.pop(rank, ())))
        print(f"triosim: rank {rank} ended with status {status}: the others are ended", file=sys.stderr)


def _write(stream: TextIO, text: bytes) -> None:
    stream.write(text.decode("utf-8", errors="replace"))
    stream.flush()
