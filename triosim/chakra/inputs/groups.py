"""ASTRA-sim's ``comm_group.json``: the ranks of each communicator group, in the order of their ring."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from triosim.errors import TopologyError
from triosim.input_files.reading import read_object

Groups = Mapping[int, tuple[int, ...]]


def read_groups(path: Path, ranks: int) -> Groups:
    """Return the groups of a file by their number. Raises ``TopologyError`` for one that cannot be of so many ranks."""
    return dict(_group(str(path), name, members, ranks) for name, members in read_object(path, TopologyError).items())


def _group(where: str, name: str, members: object, ranks: int) -> tuple[int, tuple[int, ...]]:
    if not name.isdecimal() or int(name) == 0:
        raise TopologyError(f"the group '{name}'", where=where, fix="number groups from 1")
    if not isinstance(members, list) or not members or any(type(one) is not int for one in members):
        raise TopologyError(f"group {name} is {members!r}", where=where, fix="give a list of ranks")
    outside = next((one for one in members if not 0 <= one < ranks), None)
    if outside is not None:
        raise TopologyError(
            f"group {name} has rank {outside} of {ranks}", where=where, fix=f"ranks are 0 to {ranks - 1}"
        )
    if len(set(members)) < len(members):
        raise TopologyError(f"group {name} has a rank twice", where=where, fix="give each rank once")
    return int(name), tuple(members)
