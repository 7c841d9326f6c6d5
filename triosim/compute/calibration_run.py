"""From measured operators to files of fitted models: what ``triosim calibrate compute`` does.

Measured operators come in three forms: tables of one operator (``triosim.compute.tables``), tables of any operators
(``triosim.compute.operator_table``) and traces. Families of operators of which there are enough rows get models of their
own (``triosim.compute.calibration``); all other rows become laws by kind of operator (``triosim.compute.kind_fitting``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from triosim import gpus, trace_formats
from triosim.compute import (
    calibration,
    elementwise,
    evaluation,
    kind_fitting,
    operator_rows,
    operator_table,
    stored,
    tables,
)
from triosim.compute import shapes as families
from triosim.compute.calibration import Rows
from triosim.compute.elementwise import Segments, memory_seconds
from triosim.compute.operator_rows import OperatorRows
from triosim.compute.tables import Table
from triosim.errors import OptionError, TriosimError
from triosim.output import check_outputs, writing_text
from triosim.trace_formats.files import head

EVERY = "all"
#: So many different shapes of a family, measured on one GPU among other operators, are worth a model of the family.
ENOUGH_FOR_FAMILY = 200
#: How the tables that ship fitted are named, and whose they are.
_OF_FILE = ("a100", "h100", "h200")
SOURCES = {
    "bfloat16": "NVIDIA ai-dynamo/aiconfigurator performance database, Apache-2.0",
    "float32": "sitar-lab/NeuSight, MIT",
}
_OPERATORS_FILE = "operators.npz"


@dataclass(frozen=True)
class Measured:
    """What files hold: ``tables`` of one family of operators, each with the GPU's name unless it names its own, and rows of
    any ``operators``, one entry a GPU and file.
    """

    tables: list[tuple[Table, str | None]]
    operators: list[OperatorRows]

    def gpus(self) -> list[str]:
        """Return the names of the GPUs that were measured."""
        named = [name for table, one in self.tables for name in ([one] if one else table.gpus())]
        known = [gpus.find(name).name for name in named]
        return sorted({*known, *(rows.gpu.name for rows in self.operators)})


def is_folder(path: str) -> bool:
    """Whether fitted models go into a folder, a file for each, instead of one file."""
    return not path.endswith(".npz")


def run(
    data: Sequence[str],
    gpu: str | None,
    path: str | None = None,
    operator: str | None = None,
    progress: Callable[[str], None] = print,
    cache: str | None = None,
) -> str:
    """Read tables and traces, fit, cross-validate and write; return where to. ``gpu`` is a name, ``all`` for every row of the
    tables, or None: each file then says what it is about.
    """
    measured = measurements(data, gpu, operator, cache)
    named = measured.gpus()
    path = path or f"{named[0] if len(named) == 1 else 'models'}.npz"
    folder = is_folder(path)
    if folder:
        os.makedirs(path, exist_ok=True)
    else:
        check_outputs(path, reading=data)
        measured = _elementwise_as_operators(measured)
    measured = _with_families(measured)
    models = []
    for rows in calibration.collect([table for table, _ in measured.tables], [name for _, name in measured.tables]):
        source = SOURCES.get(rows.shapes.dtype, "") if gpu == EVERY else ""
        if rows.shapes.family == "elementwise":
            with writing_text(Path(path) / "elementwise.json") as file:
                file.write(segments(rows, source) + "\n")
            continue
        model = calibration.calibrate(rows, progress, source=source)
        models.append(model)
        for name, errors in model.errors["random"].items():
            if errors:
                progress(
                    f"{rows.shapes.family} in {rows.shapes.dtype} on {name}: {100 * errors['all']:.1f}% off, held out"
                )
        if folder:
            stored.save([model], Path(path) / stored.file_name(model))
    laws = [law for rows in operator_rows.by_gpu(measured.operators) for law in kind_fitting.fit(rows, progress)]
    if not folder:
        stored.save(models, path, laws)
    elif laws:
        stored.save([], Path(path) / _OPERATORS_FILE, laws)
    return path


def measurements(
    data: Sequence[str], gpu: str | None, operator: str | None = None, cache: str | None = None
) -> Measured:
    """Read files of all three forms."""
    found = Measured([], [])
    for path in data:
        if not Path(path).exists():
            raise TriosimError("there is no such file or directory", where=path)
        if is_trace(path):
            trace = trace_formats.read(path)
            found.operators.append(operator_rows.of_trace(trace, gpus.find(gpu) if gpu not in (None, EVERY) else None))
        elif operator_table.recognises(path):
            found.operators.extend(_operators(path, gpu, cache))
        else:
            found.tables.append(_table(path, gpu, operator))
    return found


def single_gpu(measured: Measured, where: str) -> gpus.Gpu:
    """Return the GPU that everything was measured on. Raises ``OptionError`` where there are several."""
    names = measured.gpus()
    if len(names) != 1:
        raise OptionError(f"has rows of {', '.join(names)}", where=where, fix="add --gpu NAME, with one of them")
    return gpus.find(names[0])


def is_trace(path: str) -> bool:
    """Whether a path is that of a trace and not of a table: a folder, or a file of JSON."""
    place = Path(path)
    return place.is_dir() or head(place, 4096).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


def read(data: Sequence[str], gpu: str, operator: str | None = None) -> list[Rows]:
    """Read tables as the rows of one GPU, or of all."""
    found = [_table(path, gpu, operator) for path in data]
    return calibration.collect([table for table, _ in found], [name for _, name in found])


def _table(path: str, gpu: str | None, operator: str | None) -> tuple[Table, str | None]:
    table = tables.read(path, operator)
    if gpu not in (None, EVERY):
        target = evaluation.gpu_in(table, str(gpu))
        return evaluation.rows_of(table, target), target.name
    stem = Path(path).name.lower()
    name = next((one for one in _OF_FILE if one in stem), None) if gpu == EVERY else None
    if table.devices is None and name is None:
        raise OptionError("does not say which GPU it is about", where=path, fix="add --gpu NAME")
    return table, name


def _operators(path: str, gpu: str | None, cache: str | None) -> list[OperatorRows]:
    rows = operator_table.read(path)
    devices = sorted({row.device for row in rows})
    if gpu in (None, EVERY):
        targets = list({found.name: found for found in (gpus.find(name) for name in devices)}.values())
    else:
        targets = [evaluation.gpu_among(devices, str(gpu), path)]
    found = []
    for target in targets:
        own = [row for row in rows if (one := gpus.get(row.device)) is not None and one.name == target.name]
        made = operator_table.operators(own, target, path, cache)
        if made is None:
            raise TriosimError(f"has no rows of {target.name}", where=path, fix=f"it has rows of {', '.join(devices)}")
        found.append(made)
    return found


def _elementwise_as_operators(measured: Measured) -> Measured:
    """Turn tables of element-wise operators into rows of operators, whose laws one file holds with everything else."""
    kept, operators = [], list(measured.operators)
    for table, name in measured.tables:
        if table.shapes.family != "elementwise":
            kept.append((table, name))
            continue
        for known in sorted({gpus.find(device).name for device in ([name] if name is not None else table.gpus())}):
            gpu = gpus.find(known)
            operators.append(operator_rows.of_table(evaluation.rows_of(table, gpu), gpu))
    return Measured(kept, operators)


def _with_families(measured: Measured) -> Measured:
    """Turn rows of operators into tables of a family, where there are enough of them."""
    made, rest = list(measured.tables), []
    for rows in operator_rows.by_gpu(measured.operators):
        taken = np.zeros(len(rows), dtype=bool)
        for places, shapes in families.of(rows.rows()):
            different = np.unique(np.stack(list(shapes.columns.values())), axis=1).shape[1]
            if shapes.family != "elementwise" and different >= ENOUGH_FOR_FAMILY:
                made.append((Table(shapes, rows.seconds[places], None, rows.source), rows.gpu.name))
                taken[places] = True
        if not taken.all():
            rest.append(replace(rows, measured=rows.measured[~taken]))
    return Measured(made, rest)


def segments(rows: Rows, source: str = "") -> str:
    """Fit the segments of each GPU, and of any other, with errors from five folds and from GPUs left out."""
    fitted: dict[str, Segments] = {}
    apart: dict[str, float] = {}
    memory = {gpu.name: memory_seconds(rows.shapes.select(mask), gpu) for gpu, mask in rows.each()}
    for gpu, mask in rows.each():
        kinds = None if rows.shapes.kinds is None else rows.shapes.kinds[mask]
        seconds, bytes_time = rows.seconds[mask], memory[gpu.name]
        fold = np.random.default_rng(0).permutation(len(seconds)) % calibration.FOLDS
        off = []
        for number in range(calibration.FOLDS):
            seen, held = fold != number, fold == number
            one = elementwise.fit(bytes_time[seen], seconds[seen], None if kinds is None else kinds[seen])
            off.append(
                np.abs(one.seconds(bytes_time[held], None if kinds is None else kinds[held]) / seconds[held] - 1)
            )
        whole = elementwise.fit(bytes_time, seconds, kinds)
        fitted[gpu.name] = _with_error(whole, float(np.concatenate(off).mean()))
    for gpu, mask in rows.each() if len(fitted) > 1 else []:
        others = elementwise.of_others(fitted, gpu)
        kinds = None if rows.shapes.kinds is None else rows.shapes.kinds[mask]
        apart[gpu.name] = float(np.abs(others.seconds(memory[gpu.name], kinds) / rows.seconds[mask] - 1).mean())
    fitted[""] = _with_error(next(iter(fitted.values())), float(np.mean(list(apart.values()))) if apart else 0.25)
    about = {
        "files": list(rows.sources),
        "rows": {gpu.name: int(mask.sum()) for gpu, mask in rows.each()},
        "left out": {name: round(value, 4) for name, value in apart.items()},
        "source": source,
    }
    return elementwise.dump(fitted, about)


def _with_error(one: Segments, error: float) -> Segments:
    return Segments(one.share, one.first, one.second, one.floor, one.kinds, round(error, 4))
