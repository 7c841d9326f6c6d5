"""A temporary folder that is gone after its block, also where Ctrl-C comes while it is removed."""

from __future__ import annotations

import tempfile
import time

#: How often removing a folder begins anew, where processes that a script started are still writing into it as they end.
_TRIES = 20
_WAIT_S = 0.1


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A folder for the files of a run; removing it begins anew where it is interrupted."""

    def __init__(self) -> None:
        super().__init__(prefix="triosim-")

    def cleanup(self) -> None:
        """Remove the folder. Raises ``OSError`` where something goes on writing into it."""
        try:
            self._remove()
        except KeyboardInterrupt:
            self._remove()
            raise

    def _remove(self) -> None:
        for left in reversed(range(_TRIES)):
            try:
                return super().cleanup()
            except OSError:
                if not left:
                    raise
                time.sleep(_WAIT_S)
