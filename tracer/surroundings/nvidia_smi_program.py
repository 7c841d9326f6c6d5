"""Answers as ``nvidia-smi`` would: a program of its own, which needs nothing but Python and starts quickly.

Its first argument are the GPUs as JSON, a list of what ``--query-gpu`` may ask of each; the others are those of ``nvidia-smi``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

_UNITS = {"memory": "MiB", "utilization": "%", "power": "W", "clocks": "MHz"}
_OTHER_NAMES = {"gpu_name": "name", "gpu_uuid": "uuid"}
Gpus = Sequence[Mapping[str, str]]


def answer(arguments: Sequence[str], gpus: Gpus) -> str:
    """Return what to print: the queried fields, the list of GPUs, and for anything else the table."""
    given = _options(arguments)
    chosen = given.get("--id", given.get("-i"))
    gpus = [gpu for gpu in gpus if chosen is None or gpu["index"] in chosen.split(",")]
    if "--query-gpu" in given:
        return _csv(given["--query-gpu"].split(","), given.get("--format", "csv").split(","), gpus)
    if "-L" in given or "--list-gpus" in given:
        return "\n".join(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})" for gpu in gpus)
    return _table(gpus)


def _options(arguments: Sequence[str]) -> dict[str, str]:
    """Return the options with their values, which follow after ``=`` or as the next argument."""
    found, last = {}, ""
    for argument in arguments:
        if argument.startswith("-"):
            last, _, found[last] = argument.partition("=")
        elif last:
            found[last] = argument
    return found


def _csv(fields: Sequence[str], form: Sequence[str], gpus: Gpus) -> str:
    names = [field.strip() for field in fields]
    units = {name: "" if "nounits" in form else _UNITS.get(name.split(".")[0], "") for name in names}
    lines = [[f"{name} [{units[name]}]" if units[name] else name for name in names]]
    for gpu in gpus:
        values = {name: gpu.get(_OTHER_NAMES.get(name, name)) for name in names}
        lines.append(
            ["[N/A]" if (value := values[name]) is None else f"{value} {units[name]}".rstrip() for name in names]
        )
    return "\n".join(", ".join(line) for line in lines["noheader" in form :])


def _table(gpus: Gpus) -> str:
    rule = f"+{'-' * 78}+"
    rows = [f"| {'GPU':<4}{'Name':<44}{'Memory-Usage':>28} |", rule]
    for gpu in gpus:
        memory = f"{gpu['memory.used']}MiB / {gpu['memory.total']}MiB"
        rows.append(f"| {gpu['index']:<4}{gpu['name']:<44}{memory:>28} |")
    return "\n".join((rule, f"| {'NVIDIA-SMI (simulated by triosim)':<76} |", rule, *rows, rule))


if __name__ == "__main__":
    print(answer(sys.argv[2:], json.loads(sys.argv[1])))
