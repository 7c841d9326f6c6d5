"""The work of ``triosim calibrate compute``: from measured operators to files of fitted models.

Measured operators come as tables of one family (``family_tables``), as tables of any operators (``operator_table``) and as
traces. All rows are fitted by regressions, one for each kind of operator (``kind_fitting``). Families with enough rows also
get a model each (``family_fitting``), and ``auto`` takes whichever of the two states the smaller error. The models that ship
are fitted to families alone, of all GPUs together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from triosim import gpus
from triosim.compute import families
from triosim.compute.fit import evaluation, family_fitting, family_tables, kind_fitting, operator_rows, operator_table
from triosim.compute.fit.boosting import regressor
from triosim.compute.fit.family_fitting import FamilyRows
from triosim.compute.fit.family_tables import FamilyTable
from triosim.compute.fit.operator_rows import OperatorRows
from triosim.compute.learned import model_files
from triosim.compute.learned.family_model import FamilyModel
from triosim.compute.models import elementwise
from triosim.compute.models.elementwise import Segments, memory_seconds
from triosim.errors import OptionError, OutputError, TriosimError
from triosim.operators import features
from triosim.output_files import check_outputs, writing_text
from triosim.trace import Trace
from triosim.trace import formats as trace_formats
from triosim.trace.formats.files import head

EVERY = "all"
#: So many different shapes of a family, measured on one GPU among other operators, are worth a model of the family.
ENOUGH_FOR_FAMILY = 200
#: The GPUs that the names of tables stand for, and the sources by dtype, of the tables that the shipped models are fitted to.
_OF_FILE = ("a100", "h100", "h200")
_SOURCES = {
    "bfloat16": "NVIDIA ai-dynamo/aiconfigurator performance database, Apache-2.0",
    "float32": "sitar-lab/NeuSight, MIT",
}
_OPERATORS_FILE = "operators.npz"


@dataclass(frozen=True)
class MeasuredFiles:
    """The measured operators of files: tables of one family, each with the GPU's name unless it names its own, and rows of any
    operators, one entry for each GPU and file.
    """

    tables: list[tuple[FamilyTable, str | None]]
    operators: list[OperatorRows]

    def gpus(self) -> list[str]:
        """Return the names of the GPUs that were measured."""
        named = [name for table, one in self.tables for name in ([one] if one else table.gpus())]
        known = [gpus.find(name).name for name in named]
        return sorted({*known, *(rows.gpu.name for rows in self.operators)})


def is_folder(path: str) -> bool:
    """Whether fitted models go into a folder, a file for each, instead of one file. Raises ``OutputError`` for other files."""
    target = Path(path)
    if target.suffix == ".npz" and not target.is_dir():
        return False
    if target.is_file() or (target.suffix and not target.is_dir()):
        raise OutputError("cannot hold fitted models", where=path, fix="name a file that ends in .npz, or a folder")
    return True


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
    if path is not None and not is_folder(path):
        check_outputs(path, reading=data)
    measured = measurements(data, gpu, operator, cache)
    named = measured.gpus()
    path = path or f"{named[0] if len(named) == 1 else 'models'}.npz"
    folder = is_folder(path)
    together = folder and gpu == EVERY
    rows = measured.operators if together else as_operators(measured)
    for line in unknown(rows):
        progress(line)
    tables_of_families = measured.tables if together else _families(rows)
    models, elementwise_json = _fit_families(tables_of_families, progress, together)
    regressions = [found for one in rows for found in kind_fitting.fit(one, progress)]
    if not folder:
        model_files.save(models, path, regressions)
        return path
    target = Path(path)
    target.mkdir(parents=True, exist_ok=True)
    for model in models:
        model_files.save([model], target / model_files.file_name(model.family, model.dtype))
    if elementwise_json:
        with writing_text(target / "elementwise.json") as file:
            file.write(elementwise_json + "\n")
    if regressions:
        model_files.save([], target / _OPERATORS_FILE, regressions)
    return path


def _fit_families(
    several: Sequence[tuple[FamilyTable, str | None]], progress: Callable[[str], None], together: bool
) -> tuple[list[FamilyModel], str]:
    """Return models of families, and the JSON text of the element-wise segments where these were fitted."""
    models, text = [], ""
    if several:
        regressor()  # says what is missing before anything takes long
    for rows in family_fitting.collect([table for table, _ in several], [name for _, name in several]):
        source = _SOURCES.get(rows.shapes.dtype, "") if together else ""
        if rows.shapes.family == "elementwise":
            text = segments(rows, source)
            continue
        if sum(_different(rows.shapes.select(mask)) for _, mask in rows.each()) < ENOUGH_FOR_FAMILY:
            what = f"{len(rows)} rows of {rows.shapes.family} in {rows.shapes.dtype} are too few for all GPUs together"
            raise TriosimError(what, where=", ".join(rows.sources), fix=f"leave out --gpu {EVERY}")
        model = family_fitting.calibrate(rows, progress, source=source)
        models.append(model)
        for name, errors in model.errors["random"].items():
            progress(f"{rows.shapes.family} in {rows.shapes.dtype} on {name}: {100 * errors['all']:.1f}% off, held out")
    return models, text


def measurements(
    data: Sequence[str], gpu: str | None, operator: str | None = None, cache: str | None = None
) -> MeasuredFiles:
    """Read files of all three forms."""
    found = MeasuredFiles([], [])
    for path in data:
        if not Path(path).exists():
            raise TriosimError("there is no such file or directory", where=path)
        if is_trace(path):
            trace = trace_formats.read(path)
            if not isinstance(trace, Trace):
                raise TriosimError("holds task streams of several ranks", where=path, fix="give a trace of one GPU")
            found.operators.append(operator_rows.of_trace(trace, gpus.find(gpu) if gpu not in (None, EVERY) else None))
        elif operator_table.recognises(path):
            found.operators.extend(_operators(path, gpu, cache))
        else:
            found.tables.append(_table(path, gpu, operator))
    return found


def single_gpu(measured: MeasuredFiles, where: str) -> gpus.Gpu:
    """Return the GPU that everything was measured on. Raises ``OptionError`` where there are several."""
    names = measured.gpus()
    if len(names) != 1:
        raise OptionError(f"has rows of {', '.join(names)}", where=where, fix="add --gpu NAME, with one of them")
    return gpus.find(names[0])


def is_trace(path: str) -> bool:
    """Whether a path is that of a trace and not of a table: a folder, or a file of JSON."""
    target = Path(path)
    return target.is_dir() or head(target, 4096).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


def read(data: Sequence[str], gpu: str, operator: str | None = None) -> list[FamilyRows]:
    """Read tables as the rows of one GPU, or of all."""
    found = [_table(path, gpu, operator) for path in data]
    return family_fitting.collect([table for table, _ in found], [name for _, name in found])


def _table(path: str, gpu: str | None, operator: str | None) -> tuple[FamilyTable, str | None]:
    table = family_tables.read(path, operator)
    if gpu not in (None, EVERY):
        target = evaluation.gpu_among(table.gpus(), str(gpu), path)
        return evaluation.rows_of(table, target), target.name
    stem = Path(path).name.lower()
    name = next((one for one in _OF_FILE if one in stem), None) if gpu == EVERY else None
    if table.devices is None and name is None:
        raise OptionError("does not say which GPU it is about", where=path, fix="add --gpu NAME")
    evaluation.check_devices(table.first_lines, path)
    return table, name


def _operators(path: str, gpu: str | None, cache: str | None) -> list[OperatorRows]:
    rows = operator_table.read(path)
    lines = {row.device: row.line for row in reversed(rows)}
    devices = sorted(lines)
    if gpu in (None, EVERY):
        if devices == [""]:
            raise OptionError("does not say which GPU it is about", where=path, fix="add --gpu NAME")
        evaluation.check_devices(lines, path)
        targets = list({found.name: found for found in (gpus.find(name) for name in devices)}.values())
    else:
        targets = [evaluation.gpu_among(devices, str(gpu), path)]
    found = []
    for target in targets:
        names = evaluation.names_of(devices, target, path)
        made = operator_table.operators([row for row in rows if row.device in names], target, path, cache)
        if made is None:
            raise TriosimError(f"has no {cache} rows of {target.name}", where=path, fix="leave out --cache")
        found.append(made)
    return found


def as_operators(measured: MeasuredFiles) -> list[OperatorRows]:
    """Return everything that was measured as rows of operators, one entry a GPU."""
    operators = list(measured.operators)
    for table, name in measured.tables:
        for known in sorted({gpus.find(device).name for device in ([name] if name is not None else table.gpus())}):
            gpu = gpus.find(known)
            operators.append(operator_rows.of_table(table if name else evaluation.rows_of(table, gpu), gpu))
    return operator_rows.by_gpu(operators)


def unknown(several: Sequence[OperatorRows]) -> list[str]:
    """Return a note on the names of unknown operators, if there are any."""
    names = sorted({name for rows in several for name in features.unknown(rows.rows())})
    if not names:
        return []
    return [f"nothing is known of {', '.join(names)}: their times are predicted from the bytes of their tensors alone"]


def _families(several: Sequence[OperatorRows]) -> list[tuple[FamilyTable, str | None]]:
    """Return rows as tables of a family, where there are enough of them on one GPU."""
    made: list[tuple[FamilyTable, str | None]] = []
    for rows in several:
        for rows_of_family, shapes in families.calls_of(rows.rows()):
            if shapes.family != "elementwise" and _different(shapes) >= ENOUGH_FOR_FAMILY:
                made.append((FamilyTable(shapes, rows.seconds[rows_of_family], None, rows.source), rows.gpu.name))
    return made


def _different(shapes: families.FamilyCalls) -> int:
    return int(np.unique(np.stack(list(shapes.columns.values())), axis=1).shape[1])


def segments(rows: FamilyRows, source: str = "") -> str:
    """Return the JSON text of each GPU's segments, and any other's, with errors from five folds and from GPUs left out."""
    fitted: dict[str, Segments] = {}
    left_out: dict[str, float] = {}
    every_kind = rows.shapes.kinds
    memory = {gpu.name: memory_seconds(rows.shapes.select(mask), gpu) for gpu, mask in rows.each()}
    for gpu, mask in rows.each():
        kinds = None if every_kind is None else every_kind[mask]
        seconds, bytes_time = rows.seconds[mask], memory[gpu.name]
        fold = np.random.default_rng(0).permutation(len(seconds)) % family_fitting.FOLDS
        off = []
        for number in range(family_fitting.FOLDS):
            seen, held = fold != number, fold == number
            one = elementwise.fit(bytes_time[seen], seconds[seen], None if kinds is None else kinds[seen])
            predicted = one.seconds(bytes_time[held], None if kinds is None else kinds[held])
            off.append(np.abs(predicted / seconds[held] - 1))
        error = float(np.concatenate(off).mean())
        fitted[gpu.name] = replace(elementwise.fit(bytes_time, seconds, kinds), error=round(error, 4))
    for gpu, mask in rows.each() if len(fitted) > 1 else []:
        predicted = elementwise.of_others(fitted, gpu).seconds(
            memory[gpu.name], None if every_kind is None else every_kind[mask]
        )
        left_out[gpu.name] = float(np.abs(predicted / rows.seconds[mask] - 1).mean())
    unknown = float(np.mean(list(left_out.values()))) if left_out else 0.25
    fitted[""] = replace(next(iter(fitted.values())), error=round(unknown, 4))
    about = {
        "files": list(rows.sources),
        "rows": {gpu.name: int(mask.sum()) for gpu, mask in rows.each()},
        "left out": {name: round(value, 4) for name, value in left_out.items()},
        "source": source,
    }
    return elementwise.dump(fitted, about)
