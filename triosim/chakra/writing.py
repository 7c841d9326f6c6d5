"""Writes ``.et`` files, the same bytes for the same nodes."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path

from triosim.chakra.attributes import write_attribute
from triosim.chakra.nodes import Node, Value
from triosim.chakra.wire import field, to_varint
from triosim.output_files import writing_bytes

_VERSION = "0.0.4"
_NOTHING: Mapping[str, Value] = {}


def write_et(path: Path, nodes: Iterable[Node], metadata: Mapping[str, Value] = _NOTHING) -> None:
    """Write the nodes of one rank, compressed where the name ends in ``.gz``; ``metadata`` are attributes of the file."""
    first = field(1, _VERSION.encode()) + b"".join(field(2, write_attribute(*one)) for one in metadata.items())
    data = b"".join(to_varint(len(message)) + message for message in (first, *map(_message, nodes)))
    with writing_bytes(path) as file:
        file.write(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _message(node: Node) -> bytes:
    """Return a node as a message; what is 0 or empty is left out, as proto3 has it."""
    parts = [field(number, value) for number, value in ((1, node.id), (2, node.name.encode()), (3, node.type)) if value]
    for number, parents in ((4, node.ctrl_deps), (5, node.data_deps)):
        if parents:
            parts.append(field(number, b"".join(map(to_varint, parents))))
    parts += [field(number, value) for number, value in ((6, node.start_us), (7, node.duration_us)) if value]
    if node.input_values:
        parts.append(field(8, field(1, node.input_values.encode())))
    parts += [field(10, write_attribute(name, value)) for name, value in node.attributes.items() if value is not None]
    return b"".join(parts)
