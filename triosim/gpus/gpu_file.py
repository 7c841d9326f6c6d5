"""Finds a GPU by its name, with what differs from it, or reads a user's own from a YAML file.

A file has the keys of the catalogue, with units where a person would write them. With ``like``, it gives only what differs
from another GPU. Errors name file, line and key. What ``triosim gpus NAME --format json`` prints is such a file; only its names
must change.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from os import PathLike, fspath
from pathlib import Path

from triosim.errors import OptionError, nearest
from triosim.gpus.gpu import Gpu
from triosim.gpus.gpu_keys import changed, values_of
from triosim.gpus.known_gpus import catalogue, get, is_shipped, register
from triosim.input_files import yaml_lines
from triosim.input_files.reading import read_text
from triosim.input_files.yaml_lines import Path as KeyPath

#: The required keys, each with an example.
_REQUIRED = {"name": "my GPU", "flops": "{float32: 67 TFLOP/s}", "bandwidth": "3.35 TB/s", "capacity": "80 GB"}


def _read(file: str) -> Gpu:
    """Return the GPU that a file describes."""
    mapping, lines = yaml_lines.parse(read_text(Path(file), OptionError), file, OptionError)
    if not isinstance(mapping, dict):
        raise OptionError("not a mapping of keys to values", where=file, fix="begin with 'name: my GPU'")
    where = partial(_where, file, lines)
    in_order = sorted(mapping, key=lambda key: lines.get((key,), 0))
    values = values_of({key: mapping[key] for key in in_order}, where)
    like = values.pop("like", None)
    if like:
        based = get(like)
        if based is None:
            fix = nearest(like, {gpu.name for gpu in catalogue()})
            raise OptionError(f"the catalogue has no GPU '{like}'", where=where("like"), fix=fix)
        gpu = changed(based, values, name=values.pop("name", f"{based.name} of {Path(file).stem}"))
    else:
        for key, example in _REQUIRED.items():
            if key not in values:
                raise OptionError(f"'{key}' is missing", where=file, fix=f"write for example '{key}: {example}'")
        if "float32" not in values["flops"]:
            raise OptionError("'float32' is missing", where=where("flops"), fix="give its peak rate")
        gpu = Gpu(**{"source": file, **values})
    for name in (gpu.name, *gpu.aliases):
        if is_shipped(name):
            fix = "give it a name of its own, or write 'like: H100-SXM' to take its other figures"
            raise OptionError(f"'{name}' is a GPU of the catalogue", where=file, fix=fix)
    return gpu


def _where(file: str, lines: Mapping[KeyPath, int], key: str) -> str:
    return f"{file}:{lines[key,]}: {key}" if (key,) in lines else f"{file}: {key}"


def find(name: str | PathLike[str]) -> Gpu:
    """Return the GPU of a name, as PyTorch reports it or shorter, in any case, with what differs
    (``H100(power=500 W)``), or of a user's file (``my_gpu.yaml``).

    A GPU of a file is known by its name from then on. Raises ``OptionError`` that suggests the nearest name, or names what is
    wrong in the file.
    """
    text = fspath(name)
    found = get(text)
    if found is None and _is_file(text):
        return register(_read(text))
    if found is None:
        yaml_lines.check_parentheses(text, OptionError)
        names = {alias for gpu in catalogue() for alias in (gpu.name, *gpu.aliases)}
        near = nearest(text, names, most=0)
        fix = near if near.startswith("did") else "'triosim gpus' lists all; or give a file of your own"
        raise OptionError(f"there is no GPU '{text}' in the catalogue", fix=fix)
    return found


def _is_file(text: str) -> bool:
    return text.lower().endswith((".yaml", ".yml", ".json")) or ("/" in text and Path(text).is_file())
