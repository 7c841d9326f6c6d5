"""One GPU: the step as it was traced, or at another batch size."""

from __future__ import annotations

from triosim.config import RunConfig
from triosim.errors import OptionError
from triosim.extrapolators.core.extrapolator import Extrapolator
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Program


class Single(Extrapolator):
    """Changes nothing."""

    axis = "single"
    identical_ranks = True
    default_size = 1

    def __init__(self, size: int, config: RunConfig, name: str = "") -> None:
        if size != 1:
            raise OptionError(f"'single' is one GPU, not {size}", fix="use dp or ddp for data parallelism on more")
        super().__init__(size, config, name)

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program as it is."""
        return program
