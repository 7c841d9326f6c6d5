"""From files of measured operators to files of fitted models: what ``triosim calibrate compute`` does."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from triosim.compute import calibration, elementwise, evaluation, stored, tables
from triosim.compute.calibration import Rows
from triosim.compute.elementwise import Segments, memory_seconds
from triosim.errors import OptionError, TriosimError
from triosim.output import writing_text

EVERY = "all"
#: How the tables that ship fitted are named, and whose they are.
_OF_FILE = ("a100", "h100", "h200")
SOURCES = {
    "bfloat16": "NVIDIA ai-dynamo/aiconfigurator performance database, Apache-2.0",
    "float32": "sitar-lab/NeuSight, MIT",
}


def is_folder(path: str) -> bool:
    """Whether fitted models go into a folder, a file for each, instead of one file."""
    return not path.endswith(".npz")


def run(
    data: Sequence[str], gpu: str, path: str, operator: str | None = None, progress: Callable[[str], None] = print
) -> None:
    """Read tables, fit, cross-validate and write. ``gpu`` is a name, or ``all`` for every row of the tables."""
    collected = read(data, gpu, operator)
    folder = is_folder(path)
    if folder:
        os.makedirs(path, exist_ok=True)
    models = []
    for rows in collected:
        source = SOURCES.get(rows.shapes.dtype, "") if gpu == EVERY else ""
        if rows.shapes.family == "elementwise":
            if not folder:
                progress("element-wise rows go into a folder: name one with -o")
                continue
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
    if not folder:
        if not models:
            raise TriosimError("nothing to fit for one file", where=path, fix="name a folder with -o")
        stored.save(models, path)


def read(data: Sequence[str], gpu: str, operator: str | None = None) -> list[Rows]:
    """Read tables as the rows of one GPU, or of all."""
    found, names = [], []
    for path in data:
        table = tables.read(path, operator)
        if gpu != EVERY:
            target = evaluation.gpu_in(table, gpu)
            table = evaluation.rows_of(table, target)
            name: str | None = target.name
        else:
            stem = Path(path).name.lower()
            name = next((one for one in _OF_FILE if one in stem), None)
            if table.devices is None and name is None:
                raise OptionError("does not say which GPU it is about", where=path, fix="add --gpu NAME")
        found.append(table)
        names.append(name)
    return calibration.collect(found, names)


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
