"""Reads measured collectives: tables of comma-separated values, and the output of nccl-tests.

A table has the columns ``gpus`` (or ``num_gpus``), ``bytes`` and one of ``latency_ns``, ``latency_us``, ``time_us``,
``latency_ms``, ``seconds``; if it is about several, ``collective``, ``system`` (or ``gpu``) and ``nodes``; and, of what was
measured beside products, ``compute_slowdown`` and ``collective_slowdown``; others are for people. Without ``collective``, the
file's name says which one it was.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path

from triosim import gpus as catalogue
from triosim.errors import TriosimError, nearest
from triosim.input_files.reading import read_text
from triosim.networks.calibration.fit import nccl_tests
from triosim.networks.calibration.fit.fitting import MeasuredCollective
from triosim.networks.calibration.stored import KINDS

TIMES = {"latency_ns": 1e-9, "latency_us": 1e-6, "time_us": 1e-6, "latency_ms": 1e-3, "time_ms": 1e-3, "seconds": 1.0}
#: A collective takes longer than any memory or link needs to answer, in seconds, and less than a day.
SHORTEST, LONGEST = 1e-7, 1e5
#: The bytes per second that no GPU sends, by two orders of magnitude.
FASTEST = 1e14
_LARGEST = 1e18  # bytes, or nanoseconds: a billion seconds
COUNTS = ("gpus", "num_gpus")  # the columns that may say how many GPUs a group has
SYSTEMS = ("system", "gpu")  # those that may say where a row was measured
SLOWDOWNS = ("compute_slowdown", "collective_slowdown")  # those of a row that was measured beside products
_PLAIN = {kind.replace("_", ""): kind for kind in KINDS}
COLLECTIVE_FIX = "add a column 'collective', or give one, such as --collective all_reduce"


def read(
    path: str | os.PathLike[str], *, collective: str | None = None, gpu: str | None = None, system: str = ""
) -> list[MeasuredCollective]:
    """Return the rows of a file. ``collective`` says which one it is, where the file does not.

    Of a table about several GPUs they are the rows of ``gpu``, or of the GPU in the name of the topology ``system``
    (dgx-a100). Raises ``TriosimError`` with file, line and what would be right.
    """
    place = os.fspath(path)
    text = text_of(place)
    wanted = None if collective is None else kind_of(collective, "--collective")
    if nccl_tests.is_output(text):
        return _from_nccl_tests(text, place, wanted)
    return _from_table(text, place, wanted, gpu, system)


def kind_of(word: str, where: str) -> str:
    """Return the collective of a name, as nccl-tests, MPI and PyTorch write it."""
    plain = re.sub(r"[^a-z]", "", word.lower()).removesuffix("perf")
    if plain not in _PLAIN:
        raise TriosimError(f"unknown collective '{word}'", where=where, fix=nearest(word, KINDS))
    return _PLAIN[plain]


def collective_in_name(place: str) -> str | None:
    """Return the collective that the name of a file has in it, or None."""
    plain = re.sub(r"[^a-z]", "", Path(place).name.lower())
    return next((_PLAIN[word] for word in sorted(_PLAIN, key=len, reverse=True) if word in plain), None)


def text_of(place: str) -> str:
    """Return the text of a file, which may be compressed. Raises ``TriosimError`` where it has none."""
    return read_text(Path(place), TriosimError)


def _from_nccl_tests(text: str, place: str, wanted: str | None) -> list[MeasuredCollective]:
    rows: list[MeasuredCollective] = []
    for run in nccl_tests.parse(text):
        if run.cut:
            fix = "give the whole output, or take that line out"
            raise TriosimError("is a row without times", where=f"{place}:{run.cut[0]}", fix=fix)
        if run.wrong:
            fix = "measure again: something of that system is broken"
            raise TriosimError("says that results were wrong", where=f"{place}:{run.wrong[0]}", fix=fix)
        first = f"{place}:{run.lines[0].number}"
        kind = run.collective() or wanted or collective_in_name(place)
        if kind is None:
            fix = "give one, such as --collective all_gather"
            raise TriosimError("does not say which collective it is", where=first, fix=fix)
        if run.gpus < 2:
            fix = "build nccl-tests with MPI=1, or give -g, so that the GPUs work together"
            raise TriosimError("is a run of one GPU", where=first, fix=fix)
        rows.extend(
            MeasuredCollective(kind, run.gpus, float(line.nbytes), line.seconds, run.nodes) for line in run.lines
        )
    if not rows:
        raise TriosimError("holds no rows of nccl-tests", where=place, fix="give the whole output of a run")
    return rows


def _from_table(text: str, place: str, wanted: str | None, gpu: str | None, system: str) -> list[MeasuredCollective]:
    names, lines = columns_and_lines(text, place)
    time = time_column(names, place)
    kind = wanted or collective_in_name(place)
    if "collective" not in names and kind is None:
        raise TriosimError("does not say which collective it is", where=place, fix=COLLECTIVE_FIX)
    column = next((name for name in SYSTEMS if name in names), None)
    if column is not None:
        lines = _of_gpu(lines, column, place, gpu, system)
    counts = next(name for name in COUNTS if name in names)
    rows: list[MeasuredCollective] = []
    for number, line in lines:
        where = f"{place}:{number}"
        if "" in line:
            raise TriosimError(f"has more than {len(names)} cells", where=where)
        nodes = _whole(line["nodes"], "nodes", where) if "nodes" in names else 1
        gpus = _whole(line[counts], counts, where)
        if gpus < 2 or gpus < nodes:
            raise TriosimError(f"{gpus} GPUs on {nodes} nodes", where=where, fix="a collective has 2 GPUs or more")
        of_row = kind_of(line["collective"], where) if "collective" in names else str(kind)
        nbytes, seconds = _whole(line["bytes"], "bytes", where), positive(line[time], time, where) * TIMES[time]
        check_rate(float(nbytes), seconds, where)
        slowed = [positive(line[name], name, where) if line.get(name) else None for name in SLOWDOWNS]
        rows.append(MeasuredCollective(of_row, gpus, float(nbytes), seconds, nodes, *slowed))
    if not rows:
        raise TriosimError("holds no rows", where=place, fix="give at least one row under the header")
    return rows


def check_rate(nbytes: float, seconds: float, where: str) -> None:
    """Raise ``TriosimError`` for a time that no collective takes, and for more bytes in it than any GPU sends."""
    if not SHORTEST <= seconds <= LONGEST:
        fix = f"times are from {SHORTEST * 1e9:g} ns to {LONGEST:g} s; is the unit right?"
        raise TriosimError(f"{seconds:.3g} s are what no collective takes", where or None, fix)
    if nbytes > FASTEST * seconds:
        fix = f"no GPU sends more than {FASTEST:.0e} bytes per second; is the unit right?"
        raise TriosimError(f"{nbytes:.3g} bytes in {seconds:.3g} s are what no collective carries", where or None, fix)


def columns_and_lines(text: str, place: str) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the names of a table's columns, and its lines with their numbers; a cell that a line lacks is empty.

    Raises ``TriosimError`` where the text is no table.
    """
    reader = csv.DictReader(text.splitlines(), restkey="", restval="")
    try:
        names = [name.strip() for name in reader.fieldnames or []]
        reader.fieldnames = names
        return names, [(reader.line_num, line) for line in reader]
    except csv.Error as error:
        fix = "is a quotation mark left open?"
        raise TriosimError(f"is no table of comma-separated values: {error}", where=place, fix=fix) from None


def time_column(names: Sequence[str], place: str) -> str:
    """Return the column of times of a table of collectives, having checked that it has the others that are needed."""
    times = [name for name in names if name in TIMES]
    if len(times) > 1:
        raise TriosimError(f"has {' and '.join(times)}", where=place, fix="keep one of them")
    for several in (COUNTS, ("bytes",), tuple(TIMES)):
        if not {*several} & {*names}:
            fix = f"its header is '{','.join(names):.80}'"
            raise TriosimError(f"has no column {' or '.join(several)}", where=place, fix=fix)
    if len(set(names)) < len(names):
        raise TriosimError("has two columns of one name", where=place)
    return times[0]


def _of_gpu(
    lines: list[tuple[int, dict[str, str]]], column: str, place: str, gpu: str | None, system: str
) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of one GPU: of the one that is asked for, of the only one, or of the one that a system is named for."""
    names = sorted({line[column] for _, line in lines})
    if gpu is not None:
        wanted = [name for name in names if same_gpu(name, gpu)]
        if not wanted:
            raise TriosimError(f"has no rows of {gpu}", where=place, fix=nearest(gpu, names))
    elif len(names) == 1:
        return lines
    else:
        gpus = {word for word in _words(system) if not word.isalpha() and not word.isdecimal()}
        wanted = [name for name in names if _words(name) & gpus]
        if not wanted:
            what, fix = f"has rows of {' and '.join(names)}", f"choose one, such as --gpu {names[0]}"
            raise TriosimError(what, where=place, fix=fix)
    return [(number, line) for number, line in lines if line[column] in wanted]


def _words(text: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", text.lower()))


def same_gpu(one: str, other: str) -> bool:
    """Return whether two names are of one GPU, or of its kind in several builds (A100, A100-SXM4-80GB)."""
    found = gpu_of(one), gpu_of(other)
    if found[0] is not None and found[1] is not None:
        return found[0].name.partition("-")[0] == found[1].name.partition("-")[0]
    return one.lower() == other.lower()


def gpu_of(name: str) -> catalogue.Gpu | None:
    """Return the GPU of the catalogue that a table names; what is in brackets after the name is a remark: 'L40S (PCIe)'."""
    return catalogue.get(name.partition("(")[0])


def _whole(text: str, name: str, where: str) -> int:
    number = positive(text, name, where)
    if number != int(number):
        raise TriosimError(f"{name}: '{text}' is not a whole number", where=where)
    return int(number)


def positive(text: str, name: str, where: str) -> float:
    """Return a number above zero, of bytes or of time. Raises ``TriosimError`` for anything else, or beyond any machine."""
    number = not_negative(text, name, where)
    if not number:
        raise TriosimError(f"{name}: '{text.strip():.40}' is not a number above zero", where=where)
    return number


def not_negative(text: str, name: str, where: str) -> float:
    """Return zero, or a number above it, of bytes or of time. Raises ``TriosimError`` as ``positive`` does."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 <= number < math.inf:
        raise TriosimError(f"{name}: '{text.strip():.40}' is not a number above zero", where=where)
    if number > _LARGEST:
        raise TriosimError(f"{name}: '{text.strip():.40}' is more than {_LARGEST:.0e}", where=where)
    return number
