"""The graphs of all ranks: ``stem.RANK.et`` beside each other, gzipped or not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from triosim.chakra.graph import RankGraph, rank_graph
from triosim.chakra.reading import EtReader
from triosim.errors import TraceError
from triosim.units import format_ranks

_NAME = re.compile(r"(.*)\.(\d+)\.et(\.gz)?")


def rank_files(prefix: Path) -> dict[int, Path]:
    """Return the file of each rank, of a folder or a ``folder/stem``. Raises ``TraceError`` where there is none."""
    folder, stem = (prefix, None) if prefix.is_dir() else (prefix.parent, prefix.name)
    found: dict[str, dict[int, Path]] = {}
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        match = _NAME.fullmatch(path.name)
        if match is None or stem not in (None, match[1]):
            continue
        other = found.setdefault(match[1], {}).setdefault(int(match[2]), path)
        if other != path:
            what = f"rank {int(match[2])} has two files, {other.name} and {path.name}"
            raise TraceError(what, where=str(prefix), fix="take one of them away")
    if not found:
        raise TraceError(
            "there is no RANK.et of it", where=str(prefix), fix="give a folder, or 'folder/stem' of stem.0.et"
        )
    if len(found) > 1:
        raise TraceError(f"it holds {' and '.join(sorted(found))}", where=str(prefix), fix="give one as 'folder/stem'")
    (files,) = found.values()
    return files


def is_prefix(text: str) -> bool:
    """Return whether a text names a folder or stem of execution traces."""
    path = Path(text)
    folder, stem = (path, None) if path.is_dir() else (path.parent, path.name)
    return folder.is_dir() and any(
        match is not None and stem in (None, match[1])
        for match in map(_NAME.fullmatch, (one.name for one in folder.iterdir()))
    )


def read_workload(
    prefix: Path, ranks: int | None = None, *, lenient: bool = False, control: bool = True
) -> list[RankGraph]:
    """Return the graph of every rank; see ``rank_graph`` for what is ``lenient``, and for ``control`` dependencies.

    ``ranks`` is how many the network has; ASTRA-sim leaves out the files of others, which is an error unless ``lenient``.
    Raises ``TraceError`` where a rank has none, or a graph cannot be run.
    """
    files = rank_files(prefix)
    ranks = max(files) + 1 if ranks is None else ranks
    missing = next((rank for rank in range(ranks) if rank not in files), None)
    if missing is not None:
        raise TraceError(
            f"rank {missing} of {ranks} has no file", where=str(prefix), fix=f"write {_beside(files, missing)}"
        )
    if max(files) >= ranks and not lenient:
        raise TraceError(
            f"there is a rank {max(files)}, on a network of {ranks}",
            where=str(prefix),
            fix="give a network of all ranks",
        )
    reader = EtReader()
    found = []
    for rank in range(ranks):
        nodes = reader.nodes(files[rank])
        graph = rank_graph(files[rank], nodes, lenient=lenient, control=control)
        found.append(replace(graph, metadata=reader.metadata))
    if max(files) >= ranks:
        left_out = f"{prefix}: ranks {format_ranks(files.keys() - range(ranks))} are not on the network, and left out"
        found[0] = replace(found[0], notes=(*found[0].notes, left_out))
    return found


def _beside(files: dict[int, Path], rank: int) -> str:
    example = next(iter(files.values()))
    match = _NAME.fullmatch(example.name)
    assert match is not None
    return f"{match[1]}.{rank}.et"
