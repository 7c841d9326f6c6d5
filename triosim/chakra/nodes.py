"""What a Chakra execution trace is made of: nodes, their types, and the collectives that they name.

The schema is MLCommons' ``et_def.proto`` (package ChakraProtoMsg, version 0.0.4 and later).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, TypeAlias

Value: TypeAlias = bool | int | float | str | bytes | tuple["Value", ...]


class NodeType(IntEnum):
    """What a node does."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class CollectiveType(IntEnum):
    """The attribute ``comm_type`` of a collective."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


class Node(NamedTuple):
    """One node of a rank's graph, with microseconds as the file has them."""

    id: int
    name: str
    type: int
    ctrl_deps: tuple[int, ...]
    data_deps: tuple[int, ...]
    start_us: int
    duration_us: int
    attributes: Mapping[str, Value | None]
    input_values: str = ""

    @property
    def parents(self) -> tuple[int, ...]:
        """The nodes that it waits for; each once."""
        if not self.ctrl_deps and len(self.data_deps) < 2:
            return self.data_deps
        return tuple(dict.fromkeys(self.data_deps + self.ctrl_deps))

    def __str__(self) -> str:
        return f"node {self.id} '{self.name}'" if self.name else f"node {self.id}"
