"""DeepSpeed's hostfile, ``HOST slots=GPUS`` a line, and which of its GPUs a command takes (``launcher/runner.py``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from triosim.errors import OptionError
from triosim.input_files.reading import read_text

_ENTRY = re.compile(r"(\S+)\s+slots=(\d{1,6})\b")


def slots_of(path: Path) -> dict[str, int]:
    """Return the GPUs of each host. Raises ``OptionError`` for a line that says neither, and a host that is there twice."""
    found: dict[str, int] = {}
    for number, line in enumerate(read_text(path, OptionError).splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        entry, where = _ENTRY.match(line.strip()), f"{path}:{number}"
        if entry is None:
            raise OptionError(f"'{line.strip()}' is no host with its GPUs", where=where, fix="write node-1 slots=8")
        if entry[1] in found:
            raise OptionError(f"'{entry[1]}' is there twice", where=where, fix="leave one of the two out")
        found[entry[1]] = int(entry[2])
    if not found:
        raise OptionError("has no host", where=str(path), fix="write node-1 slots=8")
    return found


def gpus_of(
    slots: Mapping[str, int], include: str = "", exclude: str = "", nodes: int | None = None, each: int | None = None
) -> int | None:
    """Return how many GPUs a command takes of hosts with so many: those it includes, or all but those it excludes.

    Of these it takes the first ``nodes``, and ``each`` of their GPUs. None where ``slots`` does not know a host.
    """
    counts: dict[str, int | None] = dict(slots)
    if include:
        counts = {host: len(gpus) or slots.get(host) for host, gpus in _selected(include).items()}
    for host, gpus in _selected(exclude).items():
        counts[host] = max((counts.get(host) or 0) - len(gpus), 0) if gpus else 0
    taken = list(counts.values())[:nodes]
    found = [count if each is None else each for count in taken if count != 0]
    return None if None in found or not found else sum(count for count in found if count is not None)


def _selected(text: str) -> dict[str, set[int]]:
    """Return the GPUs of each host in ``worker-0@worker-1:0,2``; none stand for all of a host."""
    found: dict[str, set[int]] = {}
    for part in text.split("@") if text else ():
        host, _, gpus = part.partition(":")
        numbers = {int(number) for number in gpus.split(",") if number.strip().isdecimal()}
        found[host] = found.get(host, set()) | numbers
    return found
