"""The work of ``triosim calibrate compute``: from measured operators to files of fitted models.

All rows are fitted by regressions, one for each kind of operator (``kind_fitting``). Families with enough rows also
get a model each (``family_fitting``), and ``auto`` takes whichever of the two states the smaller error. The models that ship
are fitted to families alone, of all GPUs together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from triosim.compute import families
from triosim.compute.fit import family_fitting, kind_fitting, measured_files
from triosim.compute.fit.boosting import regressor
from triosim.compute.fit.family_tables import FamilyTable
from triosim.compute.fit.measured_files import ALL_GPUS
from triosim.compute.fit.operator_rows import OperatorRows
from triosim.compute.learned import model_files
from triosim.compute.learned.family_model import FamilyModel
from triosim.compute.models import elementwise
from triosim.compute.models.elementwise import Segments, memory_seconds
from triosim.errors import OutputError, TriosimError
from triosim.operators.number_formats import SCALED
from triosim.output_files import check_outputs, writing_text

#: The distinct shapes of a family, measured on one GPU, from which it gets a model.
ENOUGH_FOR_FAMILY = 200
#: The sources, by family or dtype, of the tables that the shipped models are fitted to.
_SOURCES = {
    "convolution": "sitar-lab/NeuSight, MIT; baidu-research/DeepBench, Apache-2.0",
    **dict.fromkeys(("bfloat16", *SCALED), "NVIDIA ai-dynamo/aiconfigurator performance database, Apache-2.0"),
    "float32": "sitar-lab/NeuSight, MIT",
}
_OPERATORS_FILE = "operators.npz"


def _is_folder(path: str) -> bool:
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
    if path is not None and not _is_folder(path):
        check_outputs(path, reading=data)
    measured = measured_files.read(data, gpu, operator, cache)
    named = measured.gpus()
    path = path or f"{named[0] if len(named) == 1 else 'models'}.npz"
    folder = _is_folder(path)
    together = folder and gpu == ALL_GPUS
    rows = measured.operators if together else measured.by_gpu()
    for line in measured_files.unknown_names(rows):
        progress(line)
    tables_of_families = measured.tables if together else _families(rows)
    models, elementwise_json = _fit_families(tables_of_families, progress, together=together)
    for one in rows:
        if one.software:
            progress(f"rows of {one.gpu.name} with {one.software}")
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
    tables: Sequence[FamilyTable], progress: Callable[[str], None], *, together: bool
) -> tuple[list[FamilyModel], str]:
    """Return models of families, and the JSON text of the element-wise segments where these were fitted."""
    models, text = [], ""
    if tables:
        regressor()  # says what is missing before anything takes long
    joined = family_fitting.joined(tables)
    for rows in joined:
        known = _SOURCES.get(rows.shapes.family) or _SOURCES.get(rows.shapes.dtype, "")
        source = known if together else ""
        if rows.shapes.family == "elementwise":
            text = segments(rows, source)
            continue
        if sum(_different(rows.shapes.select(mask)) for _, mask in rows.by_gpu()) < ENOUGH_FOR_FAMILY:
            what = f"{len(rows)} rows of {rows.shapes.family} in {rows.shapes.dtype} are too few for all GPUs together"
            raise TriosimError(what, where=rows.source, fix=f"leave out --gpu {ALL_GPUS}")
        model = family_fitting.calibrate(rows, progress, source=source, beside=beside(rows, joined))
        models.append(model)
        for name, errors in model.errors["random"].items():
            progress(f"{rows.shapes.family} in {rows.shapes.dtype} on {name}: {100 * errors['all']:.1f}% off, held out")
    return models, text


def beside(rows: FamilyTable, tables: Sequence[FamilyTable]) -> list[FamilyTable]:
    """Return the float32 rows of convolutions for those in half precision, which few were measured in."""
    if rows.shapes.family != "convolution" or rows.shapes.dtype == "float32":
        return []
    return [one for one in tables if (one.shapes.family, one.shapes.dtype) == ("convolution", "float32")]


def _families(several: Sequence[OperatorRows]) -> list[FamilyTable]:
    """Return rows as tables of a family, where there are enough of them on one GPU."""
    made = []
    for one in several:
        for rows, shapes in families.calls_of(one.rows()):
            if shapes.family != "elementwise" and _different(shapes) >= ENOUGH_FOR_FAMILY:
                made.append(FamilyTable(shapes, one.seconds[rows], np.full(len(rows), one.gpu.name), one.source))
    return made


def _different(shapes: families.FamilyCalls) -> int:
    """Return how many calls differ, in sizes or in what they compute."""
    kinds = [] if shapes.kinds is None else [np.unique(shapes.kinds, return_inverse=True)[1]]
    return int(np.unique(np.stack([*shapes.columns.values(), *kinds]), axis=1).shape[1])


def segments(rows: FamilyTable, source: str = "") -> str:
    """Return the JSON text of each GPU's segments, and any other's, with errors from five folds and from GPUs left out."""
    fitted: dict[str, Segments] = {}
    left_out: dict[str, float] = {}
    every_kind = rows.shapes.kinds
    memory = {gpu.name: memory_seconds(rows.shapes.select(mask), gpu) for gpu, mask in rows.by_gpu()}
    for gpu, mask in rows.by_gpu():
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
    for gpu, mask in rows.by_gpu() if len(fitted) > 1 else []:
        predicted = elementwise.of_others(fitted, gpu).seconds(
            memory[gpu.name], None if every_kind is None else every_kind[mask]
        )
        left_out[gpu.name] = float(np.abs(predicted / rows.seconds[mask] - 1).mean())
    unknown = float(np.mean(list(left_out.values()))) if left_out else 0.25
    fitted[""] = replace(next(iter(fitted.values())), error=round(unknown, 4))
    about = {
        "files": rows.source.split(", "),
        "rows": {gpu.name: int(mask.sum()) for gpu, mask in rows.by_gpu()},
        "left out": {name: round(value, 4) for name, value in left_out.items()},
        "source": source,
    }
    return elementwise.dump(fitted, about)
