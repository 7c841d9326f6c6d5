"""Reads measured operators from files of any kind, for the GPU that a user names or for all.

The files are tables of one family (``family_tables``, ``convolution_tables``, ``deepbench``), tables of any operators
(``operator_table``) and traces.
Where a table's columns do not name the GPU, its file's name does (``table_names``), or else the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from triosim import gpus
from triosim.compute.fit import convolution_tables, deepbench, family_tables, operator_rows, operator_table, table_names
from triosim.compute.fit.family_tables import FamilyTable
from triosim.compute.fit.operator_rows import OperatorRows
from triosim.errors import OptionError, TriosimError
from triosim.gpus import Gpu
from triosim.input_files.pipes import STANDARD_INPUT
from triosim.input_files.reading import head
from triosim.operators import features
from triosim.trace import Trace
from triosim.trace import formats as trace_formats

#: The name that stands for the GPUs of all rows.
ALL_GPUS = "all"


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """Rows that nothing is predicted for: the GPU that they name, their operator and dtype, how many they are, and why."""

    gpu: str
    operator: str
    dtype: str
    rows: int
    reason: str


@dataclass(frozen=True)
class MeasuredFiles:
    """The measured operators of files: tables of one family, which name their GPUs as the catalogue does, rows of any
    operators, one entry for each GPU and file, and rows on GPUs that the catalogue does not have.
    """

    tables: list[FamilyTable] = field(default_factory=list)
    operators: list[OperatorRows] = field(default_factory=list)
    refused: list[RefusedRows] = field(default_factory=list)

    def gpus(self) -> list[str]:
        """Return the names of the GPUs that were measured."""
        return sorted(
            {name for table in self.tables for name in table.gpus()} | {one.gpu.name for one in self.operators}
        )

    def by_gpu(self) -> list[OperatorRows]:
        """Return everything that was measured as rows of operators, one entry a GPU."""
        parts = ((table.select(rows), gpu) for table in self.tables for gpu, rows in table.by_gpu())
        tables = (operator_rows.of_table(part, gpu) for part, gpu in parts)
        return operator_rows.by_gpu([*self.operators, *tables])


def read(
    data: Sequence[str],
    gpu: str | None,
    operator: str | None = None,
    cache: str | None = None,
    dtype: str | None = None,
    *,
    unknown: bool = False,
) -> MeasuredFiles:
    """Read files. ``gpu`` is a name, ``all`` for every row of the tables, or None: each file then says what it is about.

    ``operator`` and ``dtype`` are those of tables that do not say them; ``cache`` chooses warm or cold rows. Some of a table's
    rows may be on ``unknown`` GPUs; a table with no others is an error.
    """
    found = MeasuredFiles()
    asked = None if gpu == ALL_GPUS else gpu
    for path in data:
        if path != STANDARD_INPUT and not Path(path).exists():
            raise TriosimError("there is no such file or directory", where=path)
        if _is_trace(path):
            trace = trace_formats.read(path)
            if not isinstance(trace, Trace):
                raise TriosimError("holds task streams of several ranks", where=path, fix="give a trace of one GPU")
            found.operators.append(operator_rows.of_trace(trace, gpus.find(asked) if asked else None))
        elif operator_table.recognises(path):
            found.operators.extend(_operators(path, asked, cache))
        else:
            tables = _tables(path, operator, dtype)
            tables = _on_known_gpus(tables, found.refused) if unknown and asked is None else tables
            found.tables.extend(_with_gpus(tables, asked, path))
    return found


def unknown_names(several: Sequence[OperatorRows]) -> list[str]:
    """Return a note on the names of unknown operators, if there are any."""
    names = sorted({name for rows in several for name in features.unknown(rows.rows())})
    if not names:
        return []
    return [f"unknown operators: {', '.join(names)}; their times are predicted from the bytes of their tensors"]


def _is_trace(path: str) -> bool:
    """Whether a path is that of a trace and not of a table: a folder, or a file of JSON."""
    target = Path(path)
    return target.is_dir() or head(target, 4096).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


def _tables(path: str, operator: str | None, dtype: str | None) -> list[FamilyTable]:
    """Return the rows of a table of one family: a part for each dtype."""
    if convolution_tables.recognises(path):
        return convolution_tables.read(path)
    if deepbench.recognises(path):
        return deepbench.read(path)
    return family_tables.read(path, operator, dtype)


def _on_known_gpus(tables: Sequence[FamilyTable], refused: list[RefusedRows]) -> list[FamilyTable]:
    """Return the rows on GPUs of the catalogue, if there are any, and add the others to ``refused``."""
    names = {name for table in tables for name in table.gpus()}
    strange = sorted(name for name in names if name and gpus.get(name) is None)
    if not strange or len(strange) == len(names):
        return list(tables)
    for table, name in ((table, name) for table in tables for name in strange):
        if rows := len(table.on([name])):
            reason = f"'{name}' is not in the GPU catalogue"
            refused.append(RefusedRows(name, table.shapes.family, table.shapes.dtype, rows, reason))
    known = (table.on(sorted(names - set(strange))) for table in tables)
    return [table for table in known if len(table)]


def _with_gpus(tables: Sequence[FamilyTable], gpu: str | None, path: str) -> list[FamilyTable]:
    """Return a file's rows, of one GPU where a user names it, with names of GPUs as in the catalogue.

    Raises ``OptionError`` where nothing says the GPU, and ``TriosimError`` where the file has no rows of it.
    """
    names = sorted({name for table in tables for name in table.gpus()})
    said = gpu or (None if names else table_names.gpu_of(path))
    if said is not None:
        target = gpu_among(names, said, path)
        if names:
            chosen = _names_of(names, target, path)
            tables = [part for table in tables if len(part := table.on(chosen))]
        return [replace(table, devices=np.full(len(table), target.name)) for table in tables]
    if not names:
        raise OptionError("does not say which GPU it is about", where=path, fix="add --gpu NAME")
    for table in tables:
        _check_devices(table.first_lines(), path)
    known = {name: gpus.find(name).name for name in names}
    return [table.renamed(known) for table in tables]


def _operators(path: str, gpu: str | None, cache: str | None) -> list[OperatorRows]:
    rows = operator_table.read(path)
    lines = {row.device: row.line for row in reversed(rows)}
    devices = sorted(lines)
    gpu = gpu or (table_names.gpu_of(path) if devices == [""] else None)
    if gpu is None:
        if devices == [""]:
            raise OptionError("does not say which GPU it is about", where=path, fix="add --gpu NAME")
        _check_devices(lines, path)
        targets = list({found.name: found for found in (gpus.find(name) for name in devices)}.values())
    else:
        targets = [gpu_among(devices, gpu, path)]
    found = []
    for target in targets:
        names = _names_of(devices, target, path)
        made = operator_table.operators([row for row in rows if row.device in names], target, path, cache)
        if made is None:
            raise TriosimError(f"has no {cache} rows of {target.name}", where=path, fix="leave out --cache")
        found.append(made)
    return found


def _names_of(devices: Sequence[str], gpu: Gpu, source: str) -> list[str]:
    """Return the names in a table that stand for the GPU that a user named. Raises ``TriosimError`` if there are none.

    An empty name stands for any GPU; the only name of a table stands for it where neither is in the catalogue.
    """
    found = [one for one in devices if not one or ((known := gpus.get(one)) is not None and known.name == gpu.name)]
    if found:
        return found
    unknown = [one for one in devices if gpus.get(one) is None]
    if len(devices) == len(unknown) == 1 and gpu not in gpus.catalogue():
        return unknown
    fix = f"it has rows of {', '.join(devices)}"
    if unknown:
        fix += f"; describe '{unknown[0]}' in a file of your own: --gpu my_gpu.yaml"
    raise TriosimError(f"has no rows of {gpu.name}", where=source, fix=fix)


def _check_devices(lines: Mapping[str, int], source: str) -> None:
    """Raise ``TriosimError`` where a table names an unknown GPU, or none; ``lines`` gives the line of each name."""
    for name, line in sorted(lines.items(), key=lambda item: item[1]):
        if not name:
            raise TriosimError("device: empty", where=f"{source}:{line}", fix="name the GPU there, or add --gpu NAME")
        if gpus.get(name) is None:
            raise TriosimError(
                f"device: '{name}' is not in the GPU catalogue",
                where=f"{source}:{line}",
                fix="'triosim gpus' lists it; or describe the GPU in a file of your own: --gpu my_gpu.yaml",
            )


def gpu_among(devices: Sequence[str], name: str, source: str) -> Gpu:
    """Return the GPU that a user means by a name that leaves its board open: the measured one of that family, if there is one.

    In a table of an A100 on PCIe alone, ``A100`` is that GPU; elsewhere it is the catalogue's first A100.
    """
    gpu = gpus.find(name)
    known = [found for one in devices if (found := gpus.get(one)) is not None]
    if not known or any(one.name == gpu.name for one in known):
        return gpu
    family = gpu.name.partition("-")[0]
    same_family = [one for one in known if one.name.partition("-")[0] == family]
    if len(same_family) > 1:
        fix = f"write --gpu {' or '.join(one.name for one in same_family)}"
        raise TriosimError(f"has no rows of {gpu.name}", where=source, fix=fix)
    return same_family[0] if same_family else gpu
