"""Files of fitted compute models: arrays and one JSON text in an npz file, without pickle; and the models that ship.

A file holds models of operator families (``FamilyModel``) and regressions of operator kinds (``KindRegression``). The
environment variable ``TRIOSIM_MODELS`` names a file or folder that ``triosim calibrate compute`` wrote: the user's own models,
which are preferred to those that ship with triosim.
"""

from __future__ import annotations

import io
import json
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from triosim.compute.learned.family_model import FamilyModel
from triosim.compute.learned.kind_regression import KindRegression, OperatorKind
from triosim.errors import TriosimError
from triosim.input_files.pipes import seekable
from triosim.input_files.reading import check_expansion
from triosim.output_files import writing_bytes

_FORMAT = "triosim fitted operator models 1"
SHIPPED = Path(__file__).resolve().parent / "data"
ENVIRONMENT = "TRIOSIM_MODELS"
#: A path that is chosen instead of the environment's, within a block of ``using``.
_chosen: ContextVar[str | None] = ContextVar("models of the user", default=None)
_WRITE_ONE = "write one: triosim calibrate compute"
#: What reading a file raises that is none of ours, or damaged; a false size of an array takes all memory.
_DAMAGED = (
    *(
        AttributeError,
        EOFError,
        KeyError,
        ValueError,
        TypeError,
        IndexError,
        NotImplementedError,
        RuntimeError,
        MemoryError,
    ),
    *(RecursionError, OverflowError, SyntaxError, tokenize.TokenError, struct.error, zipfile.BadZipFile, zlib.error),
)
#: Files with the time of their last change and their size, so that a file that has changed is read again.
_Files = tuple[tuple[str, int, int], ...]


def save(
    models: Sequence[FamilyModel], path: str | os.PathLike[str], regressions: Sequence[KindRegression] = ()
) -> None:
    """Write models and regressions to one npz file, whole or not at all."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    about: dict[str, Any] = {"format": _FORMAT, "models": [model.about() for model in models]}
    for number, model in enumerate(models):
        arrays.update(model.arrays(f"{number}"))
    if regressions:
        about["laws"] = [one.about() for one in regressions]
        for number, one in enumerate(regressions):
            arrays.update(one.arrays(f"law {number}"))
    arrays["about"] = np.array(json.dumps(about))
    content = io.BytesIO()
    _write_npz(content, arrays)
    with writing_bytes(path) as file:
        file.write(content.getvalue())


class FittedModels(NamedTuple):
    """The models and regressions of a file."""

    models: list[FamilyModel]
    regressions: list[KindRegression]


def load(path: str | os.PathLike[str]) -> FittedModels:
    """Read what ``save`` wrote. Raises ``TriosimError`` that says what is wrong with the file."""
    name = os.fspath(path)
    try:
        with open(seekable(name), "rb") as content:
            with zipfile.ZipFile(content) as packed:
                check_expansion(
                    sum(one.file_size for one in packed.infolist()), os.fstat(content.fileno()).st_size, name
                )
            content.seek(0)
            with np.load(content, allow_pickle=False) as file:
                arrays: Mapping[str, npt.NDArray[Any]] = {name: file[name] for name in file.files}
        about = json.loads(str(arrays["about"]))
        if about["format"] != _FORMAT:
            raise TriosimError(f"holds '{about['format']}'", where=name, fix=f"this version reads '{_FORMAT}'")
        models = [FamilyModel.from_stored(one, arrays, f"{number}") for number, one in enumerate(about["models"])]
        regressions = [
            KindRegression.from_stored(one, arrays, f"law {number}") for number, one in enumerate(about.get("laws", ()))
        ]
        if any(one.error < 0 or not all(0 < time < math.inf for time in one.measured.values()) for one in regressions):
            raise ValueError("an error or a time below zero")
        return FittedModels(models, regressions)
    except OSError as error:
        raise TriosimError(f"cannot be read: {error.strerror or error}", where=name) from error
    except _DAMAGED as error:
        raise TriosimError("is not a file of fitted models", where=name, fix=_WRITE_ONE) from error


def check(path: str | os.PathLike[str]) -> None:
    """Raise ``TriosimError`` where a path is neither a file of fitted models nor a folder of some."""
    _loaded(_files(os.fspath(path)))


def own_files() -> _Files:
    """Return the files of the user's own models, and when each was last changed.

    Raises ``TriosimError`` where the environment variable names none.
    """
    return _files(_named())


def find(family: str, dtype: str, gpu: str) -> FamilyModel | None:
    """Return the model of a family and dtype to ask about a GPU (a catalogue's name), or None where there is none."""
    for model in _loaded(own_files())[0]:
        if (model.family, model.dtype) == (family, dtype) and gpu in model.rates:
            return model
    return _shipped(family, dtype)


def is_own(model: FamilyModel) -> bool:
    """Whether a model that was found is the user's own, and not one that ships."""
    return model is not _shipped(model.family, model.dtype)


def regressions(gpu: str) -> Mapping[OperatorKind, KindRegression]:
    """Return the user's regressions of a GPU (a name of the catalogue) by operator kind."""
    return _loaded(own_files())[1].get(gpu, {})


def knows(gpu: str) -> bool:
    """Whether the user has models of a GPU (a name of the catalogue)."""
    models, fitted = _loaded(own_files())
    return gpu in fitted or any(gpu in model.rates for model in models)


def measured_calls(gpu: str) -> Mapping[str, float]:
    """Return the times of the calls that the user measured on a GPU, by ``call_of``."""
    return _measured_calls(own_files(), gpu)


def fitted_files(families: Collection[tuple[str, str]]) -> tuple[set[str], set[str]]:
    """Return the names of the tables that models were fitted to: the user's, and those that ship for families and dtypes."""
    models, fitted = _loaded(own_files())
    own = {name for model in models for name in model.provenance.get("files", ())}
    own |= {
        Path(name).name for several in fitted.values() for one in several.values() for name in one.files.split(", ")
    }
    known = [_shipped(family, dtype) for family, dtype in families]
    shipped = {name for model in known if model is not None for name in model.provenance.get("files", ())}
    if any(family == "elementwise" for family, _ in families):
        shipped |= {*json.loads((SHIPPED / "elementwise.json").read_text(encoding="utf-8"))["provenance"]["files"]}
    return own, shipped


@contextmanager
def using(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Within the block, read the user's models from ``path`` instead of the environment's; None changes nothing."""
    token = None if path is None else _chosen.set(os.fspath(path))
    try:
        yield
    finally:
        if token is not None:
            _chosen.reset(token)


def file_name(family: str, dtype: str) -> str:
    """Return the name of the file of a model that ships."""
    return f"{family}_{dtype}.npz"


@cache
def _shipped(family: str, dtype: str) -> FamilyModel | None:
    path = SHIPPED / file_name(family, dtype)
    return load(path).models[0] if path.is_file() else None


def are_named() -> bool:
    """Whether the user names models, by ``--models`` or in the environment."""
    return bool(_named())


def _named() -> str:
    chosen = _chosen.get()
    return os.environ.get(ENVIRONMENT, "") if chosen is None else chosen


def _files(name: str) -> _Files:
    """Return the files of a path, with the time of their last change and size. Raises ``TriosimError`` where there is none."""
    if not name:
        return ()
    path = Path(name)
    try:
        files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
        found = tuple((os.fspath(file), (state := file.stat()).st_mtime_ns, state.st_size) for file in files)
    except (OSError, ValueError) as error:
        raise TriosimError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}", where=_where(name), fix=_WRITE_ONE
        ) from None
    if not found:
        raise TriosimError("is a folder without fitted models (.npz)", where=_where(name), fix=_WRITE_ONE)
    return found


def _where(name: str) -> str:
    return f"{ENVIRONMENT}={name}" if _chosen.get() is None and name == _named() else name


@cache
def _loaded(files: _Files) -> tuple[tuple[FamilyModel, ...], dict[str, dict[OperatorKind, KindRegression]]]:
    """Return the models of files, and their regressions by GPU and kind; of two for one kind, the later file's holds."""
    loaded = [load(file) for file, _, _ in files]
    found: dict[str, dict[OperatorKind, KindRegression]] = {}
    for _, several in loaded:
        for one in several:
            found.setdefault(one.gpu, {})[one.key] = one
    return tuple(model for models, _ in loaded for model in models), found


@cache
def _measured_calls(files: _Files, gpu: str) -> dict[str, float]:
    of_gpu = _loaded(files)[1].get(gpu, {})
    return {call: seconds for one in of_gpu.values() for call, seconds in one.measured.items()}


def _write_npz(content: io.BytesIO, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write as ``numpy.savez_compressed`` does, but without the time of day: equal arrays give equal bytes."""
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue(), zipfile.ZIP_DEFLATED, 9)
