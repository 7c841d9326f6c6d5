"""ASTRA-sim's files of a study: those that are given, or else those of the usual names that lie beside the graphs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from triosim.chakra.inputs.network_file import is_network

_NETWORK, _SYSTEM, _MEMORY, _GROUPS = "network.yml", "system.json", "remote_memory.json", "comm_group.json"


@dataclass(frozen=True, slots=True)
class InputFiles:
    """The files that are read beside graphs, each None where there is none; ``notes`` say which were not given."""

    network: Path | None = None
    system: Path | None = None
    memory: Path | None = None
    groups: Path | None = None
    notes: tuple[str, ...] = ()


def input_files(
    prefix: Path,
    *,
    network: str | Path | None = None,
    system: str | Path | None = None,
    memory: str | Path | None = None,
    groups: str | Path | None = None,
    has_topology: bool = False,
) -> InputFiles:
    """Return the files of a prefix of graphs. A run that ``has_topology`` needs no network."""
    folder = prefix if prefix.is_dir() else prefix.parent
    taken: list[str] = []
    notes: list[str] = []

    def found(given: str | Path | None, name: str) -> Path | None:
        if given is not None:
            return Path(given)
        beside = folder / name
        if not beside.is_file() or (name == _NETWORK and has_topology):
            return None
        if name == _NETWORK and not is_network(beside):
            notes.append(f"{name} beside the graphs is not one of ASTRA-sim's, and is not read")
            return None
        taken.append(name)
        return beside

    files = found(network, _NETWORK), found(system, _SYSTEM), found(memory, _MEMORY), found(groups, _GROUPS)
    if taken:
        notes.append(f"read beside the graphs: {', '.join(taken)}")
    return InputFiles(*files, tuple(notes))
