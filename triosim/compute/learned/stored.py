"""Fitted models in files: arrays and one JSON text in an npz file, without pickle, and where the shipped ones are.

A file holds models of families of operators (``Learned``) and laws of kinds of operators (``KindLaw``). The environment
variable ``TRIOSIM_MODELS`` names a file or folder that ``triosim calibrate compute`` wrote; what it holds for a GPU goes
before what ships with triosim.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from triosim.compute.fit.operator_rows import Key
from triosim.compute.learned.family_model import Learned
from triosim.compute.learned.kind_laws import KindLaw
from triosim.errors import TriosimError
from triosim.output_files import writing_bytes

_FORMAT = "triosim fitted operator models 1"
SHIPPED = Path(__file__).resolve().parent / "data"
ENVIRONMENT = "TRIOSIM_MODELS"
#: What an estimate by a model of one's own is called, instead of by what ships.
OWN_LABEL = "own"
_WRITE_ONE = "write one: triosim calibrate compute"
#: Files with the time of their last change and their size, so that one that was written anew is read anew.
_Files = tuple[tuple[str, int, int], ...]


def save(models: Sequence[Learned], path: str | os.PathLike[str], laws: Sequence[KindLaw] = ()) -> None:
    """Write models and laws to one npz file, whole or not at all."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    about: dict[str, Any] = {"format": _FORMAT, "models": [model.about() for model in models]}
    for number, model in enumerate(models):
        arrays.update(model.arrays(f"{number}"))
    if laws:
        about["laws"] = [law.about() for law in laws]
        for number, law in enumerate(laws):
            arrays.update(law.arrays(f"law {number}"))
    arrays["about"] = np.array(json.dumps(about))
    content = io.BytesIO()
    _write_npz(content, arrays)
    with writing_bytes(path) as file:
        file.write(content.getvalue())


class Contents(NamedTuple):
    """What a file holds."""

    models: list[Learned]
    laws: list[KindLaw]


def load(path: str | os.PathLike[str]) -> Contents:
    """Read what ``save`` wrote. Raises ``TriosimError`` that says what is wrong with the file."""
    place = os.fspath(path)
    try:
        with np.load(place, allow_pickle=False) as file:
            arrays: Mapping[str, npt.NDArray[Any]] = {name: file[name] for name in file.files}
        about = json.loads(str(arrays["about"]))
        if about["format"] != _FORMAT:
            raise TriosimError(f"holds '{about['format']}'", where=place, fix=f"this version reads '{_FORMAT}'")
        models = [Learned.from_stored(one, arrays, f"{number}") for number, one in enumerate(about["models"])]
        laws = [KindLaw.from_stored(one, arrays, f"law {number}") for number, one in enumerate(about.get("laws", ()))]
        return Contents(models, laws)
    except OSError as error:
        raise TriosimError(f"cannot be read: {error.strerror or error}", where=place) from error
    except (AttributeError, EOFError, KeyError, ValueError, TypeError, IndexError, zipfile.BadZipFile) as error:
        raise TriosimError("is no file of fitted models", where=place, fix=_WRITE_ONE) from error


def check(path: str | os.PathLike[str]) -> None:
    """Raise ``TriosimError`` where a path is no file of fitted models, and no folder of some."""
    _own(_files(os.fspath(path)))


def check_named() -> None:
    """Raise ``TriosimError`` where the environment names what is not there."""
    _files(_named())


def find(family: str, dtype: str, gpu: str) -> Learned | None:
    """Return the model of a family and dtype to ask about a GPU (a catalogue's name), or None where there is none."""
    for model in _own(_files(_named()))[0]:
        if (model.family, model.dtype) == (family, dtype) and gpu in model.rates:
            return model
    return _shipped(family, dtype)


def is_own(model: Learned) -> bool:
    """Whether a model that was found is one's own, and not one that ships."""
    return model is not _shipped(model.family, model.dtype)


def laws(gpu: str) -> Mapping[Key, KindLaw]:
    """Return one's own laws of a GPU (a catalogue's name) by what they are of."""
    return _own(_files(_named()))[1].get(gpu, {})


def fitted_files(families: Collection[tuple[str, str]]) -> tuple[set[str], set[str]]:
    """Return the names of the files that were fitted: one's own models and laws, and what ships for families and dtypes."""
    models, laws = _own(_files(_named()))
    own = {name for model in models for name in model.provenance.get("files", ())}
    own |= {Path(name).name for several in laws.values() for law in several.values() for name in law.files.split(", ")}
    known = [_shipped(family, dtype) for family, dtype in families]
    shipped = {name for model in known if model is not None for name in model.provenance.get("files", ())}
    if any(family == "elementwise" for family, _ in families):
        shipped |= {*json.loads((SHIPPED / "elementwise.json").read_text(encoding="utf-8"))["provenance"]["files"]}
    return own, shipped


@contextmanager
def using(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Within the block, take one's own models from ``path``, and not from where the environment says; None changes nothing."""
    if path is None:
        yield
        return
    before = os.environ.get(ENVIRONMENT)
    os.environ[ENVIRONMENT] = os.fspath(path)
    try:
        yield
    finally:
        if before is None:
            del os.environ[ENVIRONMENT]
        else:
            os.environ[ENVIRONMENT] = before


def file_name(model: Learned) -> str:
    """Return the name under which a model ships."""
    return f"{model.family}_{model.dtype}.npz"


@cache
def _shipped(family: str, dtype: str) -> Learned | None:
    path = SHIPPED / f"{family}_{dtype}.npz"
    return load(path).models[0] if path.is_file() else None


def _named() -> str:
    return os.environ.get(ENVIRONMENT, "")


def _files(name: str) -> _Files:
    """Return the files that a path stands for, and when each was written. Raises ``TriosimError`` where there is none."""
    if not name:
        return ()
    place = Path(name)
    try:
        files = sorted(place.glob("*.npz")) if place.is_dir() else [place]
        found = tuple((os.fspath(file), (state := file.stat()).st_mtime_ns, state.st_size) for file in files)
    except (OSError, ValueError) as error:
        raise TriosimError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}", where=_where(name), fix=_WRITE_ONE
        ) from None
    if not found:
        raise TriosimError("is a folder without fitted models (.npz)", where=_where(name), fix=_WRITE_ONE)
    return found


def _where(name: str) -> str:
    return f"{ENVIRONMENT}={name}" if name == _named() else name


@cache
def _own(files: _Files) -> tuple[tuple[Learned, ...], dict[str, dict[Key, KindLaw]]]:
    """Return the models and the laws, by GPU and key, of files; the later file's law holds."""
    loaded = [load(file) for file, _, _ in files]
    laws: dict[str, dict[Key, KindLaw]] = {}
    for _, several in loaded:
        for law in several:
            laws.setdefault(law.gpu, {})[law.key] = law
    return tuple(model for models, _ in loaded for model in models), laws


def _write_npz(content: io.BytesIO, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """As ``numpy.savez_compressed``, but of the same arrays always the same bytes: without the time of day."""
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue(), zipfile.ZIP_DEFLATED, 9)
