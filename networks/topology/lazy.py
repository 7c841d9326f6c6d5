"""Regular topologies whose nodes and links come into being when somebody looks at them.

Closed forms need no more than the dimensions of a system; the 400,000 links of 65,536 GPUs take seconds to make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from triosim.networks.topology.topology import Dimension, Topology


class UnbuiltTopology(Topology):
    """A topology of ``gpus`` GPUs in which no link differs from what its dimensions say; ``make`` builds all of it."""

    def __init__(self, name: str, gpus: int, dimensions: Sequence[Dimension], make: Callable[[], Topology]) -> None:
        self.name = name
        self.dimensions = tuple(dimensions)
        self.uniform = True
        self._blocks = {}
        self._gpus = gpus
        self._make = make

    def __getattr__(self, name: str) -> Any:
        """Build the graph when something of it is asked for that is not there."""
        if name.startswith("__") or "nodes" in self.__dict__ or "_make" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        self._build()
        return getattr(self, name)

    def __repr__(self) -> str:
        return f"<Topology {self.name}: {self._gpus} GPUs, {len(self.dimensions)} dimensions>"

    @cached_property
    def gpus(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the GPUs."""
        return tuple([f"gpu{rank}" for rank in range(self._gpus)])

    def _build(self) -> None:
        for name, value in vars(self._make()).items():
            self.__dict__.setdefault(name, value)
