"""The output of running ranks: on the terminal, in the order of the simulated time, and in a file for each rank."""

from __future__ import annotations

import sys
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from triosim.errors import OutputError
from triosim.live.items import Said


class RankOutput(ExitStack):
    """Writes what ranks print. ``shown`` are the ranks that the terminal shows, None all; ``folder`` gets ``rank-N.log``."""

    def __init__(self, shown: Collection[int] | None = None, folder: str | None = None) -> None:
        super().__init__()
        self._shown = shown
        self._folder = None if folder is None else Path(folder)
        self._files: dict[int, BinaryIO] = {}
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                what = error.strerror or str(error)
                raise OutputError(what, where=f"--ranks-output {folder}", fix="name a folder") from None

    def __call__(self, rank: int, said: Said) -> None:
        """Write what a rank printed."""
        if self._folder is not None:
            if rank not in self._files:
                self._files[rank] = self.enter_context((self._folder / f"rank-{rank}.log").open("wb"))
            self._files[rank].write(said.text)
        if self._shown is None or rank in self._shown:
            stream = sys.stdout if said.stream == "out" else sys.stderr
            stream.write(said.text.decode("utf-8", errors="replace"))
            stream.flush()
