"""Finds a GPU by its name in the catalogue, or reads it from a user's file."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

from triosim.errors import OptionError, nearest
from triosim.gpus.gpu import Gpu
from triosim.gpus.gpu_file import read
from triosim.gpus.known_gpus import catalogue, get, is_shipped, register


def find(name: str | PathLike[str]) -> Gpu:
    """Return the GPU of a name, as PyTorch reports it or shorter, in any case, or of a user's file (``my_gpu.yaml``).

    Raises ``OptionError`` that suggests the nearest name.
    """
    text = fspath(name)
    found = get(text)
    if found is None and _is_file(text):
        return load_user(text)
    if found is None:
        names = {alias for gpu in catalogue() for alias in (gpu.name, *gpu.aliases)}
        fix = nearest(text, names) if nearest(text, names)[:3] == "did" else nearest("", {g.name for g in catalogue()})
        raise OptionError(f"there is no GPU '{text}' in the catalogue", fix=f"{fix}; or give a file of your own")
    return found


def load_user(path: str | PathLike[str]) -> Gpu:
    """Read a GPU from a YAML file; from then on it is known by its name. Raises ``OptionError`` with file, line and key."""
    gpu = read(fspath(path))
    for name in (gpu.name, *gpu.aliases):
        if is_shipped(name):
            fix = "give it a name of its own, or write 'like: H100-SXM' for what it has in common"
            raise OptionError(f"'{name}' is a GPU of the catalogue", where=fspath(path), fix=fix)
    return register(gpu)


def _is_file(text: str) -> bool:
    return text.lower().endswith((".yaml", ".yml", ".json")) or ("/" in text and Path(text).is_file())
