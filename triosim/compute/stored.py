"""Fitted models in files: arrays and one JSON text in an npz file, without pickle, and where the shipped ones are.

The environment variable ``TRIOSIM_MODELS`` names a file or folder that ``triosim calibrate compute`` wrote; what it holds for
a GPU goes before what ships with triosim.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from triosim.compute.learned import Learned
from triosim.errors import TriosimError
from triosim.output import writing_bytes

_FORMAT = "triosim fitted operator models 1"
SHIPPED = Path(__file__).resolve().parents[1] / "data" / "compute"
ENVIRONMENT = "TRIOSIM_MODELS"


def save(models: Sequence[Learned], path: str | os.PathLike[str]) -> None:
    """Write models to one npz file, whole or not at all."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    about = []
    for number, model in enumerate(models):
        arrays.update(model.arrays(f"{number}"))
        about.append(model.about())
    arrays["about"] = np.array(json.dumps({"format": _FORMAT, "models": about}))
    content = io.BytesIO()
    _write_npz(content, arrays)
    with writing_bytes(path) as file:
        file.write(content.getvalue())


def load(path: str | os.PathLike[str]) -> list[Learned]:
    """Read what ``save`` wrote. Raises ``TriosimError`` that says what is wrong with the file."""
    place = os.fspath(path)
    try:
        with np.load(place, allow_pickle=False) as file:
            arrays: Mapping[str, npt.NDArray[Any]] = {name: file[name] for name in file.files}
        about = json.loads(str(arrays["about"]))
        if about["format"] != _FORMAT:
            raise TriosimError(f"holds '{about['format']}'", where=place, fix=f"this version reads '{_FORMAT}'")
        return [Learned.from_stored(one, arrays, f"{number}") for number, one in enumerate(about["models"])]
    except OSError as error:
        raise TriosimError(f"cannot be read: {error.strerror or error}", where=place) from error
    except (EOFError, KeyError, ValueError, TypeError, IndexError, zipfile.BadZipFile) as error:
        raise TriosimError(
            f"holds no fitted models: {error}", where=place, fix="write one: triosim calibrate compute"
        ) from error


def find(family: str, dtype: str, gpu: str) -> Learned | None:
    """Return the model of a family and dtype to ask about a GPU (a catalogue's name), or None where there is none."""
    for model in _own(os.environ.get(ENVIRONMENT, "")):
        if (model.family, model.dtype) == (family, dtype) and gpu in model.rates:
            return model
    return _shipped(family, dtype)


def file_name(model: Learned) -> str:
    """Return the name under which a model ships."""
    return f"{model.family}_{model.dtype}.npz"


@cache
def _shipped(family: str, dtype: str) -> Learned | None:
    path = SHIPPED / f"{family}_{dtype}.npz"
    return load(path)[0] if path.is_file() else None


@cache
def _own(name: str) -> tuple[Learned, ...]:
    if not name:
        return ()
    place = Path(name)
    files = sorted(place.glob("*.npz")) if place.is_dir() else [place]
    return tuple(model for file in files for model in load(file))


def _write_npz(content: io.BytesIO, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """As ``numpy.savez_compressed``, but of the same arrays always the same bytes: without the time of day."""
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue(), zipfile.ZIP_DEFLATED, 9)
