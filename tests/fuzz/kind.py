"""A kind of input: what it is made of, how it is changed, and the small trace that many commands read beside it."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import mutations
from triosim import cli
from triosim.errors import TriosimError

Mutation = Callable[[bytes, random.Random], bytes]


def as_json(data: bytes, draw: random.Random) -> bytes:
    """Change a value, a key or the text of JSON."""
    return mutations.of_json(data.decode(), draw).encode("utf-8", "surrogatepass")


def as_text(data: bytes, draw: random.Random) -> bytes:
    """Change a text."""
    return mutations.of_text(data.decode(), draw).encode("utf-8", "surrogatepass")


def packed(data: bytes, draw: random.Random) -> bytes:
    """Change JSON, and compress it, or damage the archive."""
    return mutations.compressed(as_json(data, draw), draw)


def inside(data: bytes, draw: random.Random) -> bytes:
    """Change what is in an archive, or its bytes."""
    return (
        mutations.of_bytes(data, draw) if draw.random() < 0.2 else gzip.compress(as_json(gzip.decompress(data), draw))
    )


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of input: ``make`` writes a sound example into a folder, of which one of the ``files`` is changed.

    ``commands`` read it; one is drawn.
    """

    name: str
    make: Callable[[Path], None]
    files: Mapping[str, Mutation]
    commands: tuple[str, ...]


def triosim(folder: Path, *arguments: str) -> None:
    """Run a command that makes an example; ``@`` is its folder, ``S`` is simulate."""
    status = cli.run(["simulate" if word == "S" else word.replace("@", f"{folder}/") for word in arguments])
    if status:
        raise TriosimError(f"the fuzzer's example failed: triosim {' '.join(arguments)}")


def write_trace(folder: Path, name: str = "trace.json") -> None:
    """Write the trace of a small model."""
    triosim(folder, "describe", "gpt2(vocab=512)", "--layers", "1", "--seq", "16", "-q", "-o", f"@{name}")


def with_text(name: str, text: str) -> Callable[[Path], None]:
    """Return what writes a text beside a trace."""
    return lambda folder: (write_trace(folder), (folder / name).write_text(text))[0]
