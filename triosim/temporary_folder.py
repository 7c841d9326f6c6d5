"""A temporary folder that is gone after its block, also where Ctrl-C comes while it is removed."""

from __future__ import annotations

import tempfile


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A folder for the files of a run; removing it begins anew where it is interrupted."""

    def __init__(self) -> None:
        super().__init__(prefix="triosim-")

    def cleanup(self) -> None:
        """Remove the folder."""
        try:
            super().cleanup()
        except KeyboardInterrupt:
            super().cleanup()
            raise
