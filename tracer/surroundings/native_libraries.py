"""Sends files into an overlay that libraries open by themselves, in C, C++ or Rust: databases, archives, and PyTorch's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from triosim.tracer.patches import Patch, Patches
from triosim.tracer.surroundings.file_overlay import FileOverlay

#: What SQLite writes beside a database: what was not yet written into it.
_JOURNALS = ("-wal", "-journal")
#: Where wandb's own program writes, by the variables that say so.
_FOLDERS = {"WANDB_DIR": ".", "WANDB_CACHE_DIR": "~/.cache/wandb", "WANDB_DATA_DIR": "~/.local/share/wandb"}
_ARGUMENT_URI = 6  # of sqlite3.connect, after the path


def install(patches: Patches, files: FileOverlay) -> None:
    """Let the program that wandb starts write into the overlay until the patches are undone."""
    for name, folder in _FOLDERS.items():
        place = files.to_write(os.path.abspath(os.path.expanduser(os.environ.get(name, folder))))
        os.makedirs(place, exist_ok=True)
        patches.set_variable(name, place)


def after_import(files: FileOverlay) -> dict[str, Callable[[ModuleType], list[Patch]]]:
    """Return functions that make the patches of further modules, by their names."""
    return {
        "torch": lambda module: list(_of_torch(module, files)),
        "sqlite3": lambda module: list(_of_sqlite(module, files)),
        "h5py._hl.files": lambda module: [_of_hdf5(module.File, files)],
        "wandb": lambda module: [_of_wandb(module, files)],
        "tokenizers": lambda module: list(_of_tokenizers(module, files)),
        "pyarrow": lambda module: [_opening(module, name, files) for name in ("OSFile", "memory_map")],
    }


def _of_torch(torch: Any, files: FileOverlay) -> Iterator[Patch]:
    yield Patch(torch._C, "PyTorchFileReader", _placed(torch._C.PyTorchFileReader, files.to_read))
    yield Patch(torch._C, "PyTorchFileWriter", _placed(torch._C.PyTorchFileWriter, files.to_write))
    for owner in (torch.jit.RecursiveScriptModule, torch._C.ScriptModule, torch._C.ScriptFunction):
        yield Patch(owner, "save", _second(owner.save, files.to_write))
    yield Patch(torch._C, "import_ir_module", _second(torch._C.import_ir_module, files.to_read))


def _placed(original: Any, place: Callable[[Any], Any]) -> Any:
    """Return a class of C++ whose first argument can be a path."""
    body = {"__init__": _second(original.__init__, place), "__module__": original.__module__}
    return type(original.__name__, (original,), body)


def _second(original: Any, place: Callable[[Any], Any]) -> Any:
    """Return a function whose second argument can be a path, after an object."""

    @wraps(original)
    def function(owner: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, (str, os.PathLike)):
            file = os.fspath(place(file))
        return original(owner, file, *args, **kwargs)

    return function


def _of_sqlite(module: ModuleType, files: FileOverlay) -> Iterator[Patch]:
    original = module.connect

    @wraps(original)
    def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
        is_uri = kwargs.get("uri", args[_ARGUMENT_URI] if len(args) > _ARGUMENT_URI else False)
        return original(_database(database, bool(is_uri), files), *args, **kwargs)

    for owner in (module, module.dbapi2, sys.modules["_sqlite3"]):
        yield Patch(owner, "connect", connect)


def _database(database: Any, is_uri: bool, files: FileOverlay) -> Any:
    """Return where a database lies. One that existed is copied, with its journals, because reading one may write."""
    name = os.fsdecode(database)
    if is_uri and name.startswith("file:"):
        path, mark, query = name.removeprefix("file:").partition("?")
        given = parse_qs(query)
        path = unquote(path.removeprefix("//localhost") if path.startswith("//localhost") else path.removeprefix("//"))
        if given.get("mode") == ["memory"] or path in ("", ":memory:"):
            return database
        return f"file:{quote(_copied(path, files))}{mark}{query}"
    return database if name in ("", ":memory:") else _copied(name, files)


def _copied(path: str, files: FileOverlay) -> str:
    for journal in _JOURNALS:
        if os.path.exists(f"{path}{journal}"):
            files.to_write(f"{path}{journal}", copy=True)
    return os.fspath(files.to_write(path, copy=True))


def _of_hdf5(owner: Any, files: FileOverlay) -> Patch:
    original = owner.__init__

    @wraps(original)
    def __init__(self: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if isinstance(name, (str, bytes, os.PathLike)) and kwargs.get("driver") != "core":
            name = files.to_read(name) if mode == "r" else files.to_write(name, copy=mode not in ("w", "w-", "x"))
        original(self, name, mode, *args, **kwargs)

    return Patch(owner, "__init__", __init__)


def _of_wandb(module: Any, files: FileOverlay) -> Patch:
    original = module.init

    @wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dir") is not None:
            kwargs["dir"] = files.to_write(kwargs["dir"])
        return original(*args, **kwargs)

    return Patch(module, "init", init)


def _of_tokenizers(module: Any, files: FileOverlay) -> Iterator[Patch]:
    tokenizer, model, from_file = module.Tokenizer, module.models.Model, module.Tokenizer.from_file
    yield Patch(tokenizer, "save", _second(tokenizer.save, files.to_write))
    yield Patch(model, "save", _second(model.save, files.to_write))
    yield Patch(tokenizer, "from_file", staticmethod(lambda path: from_file(os.fspath(files.to_read(path)))))


def _opening(module: Any, name: str, files: FileOverlay) -> Patch:
    original = getattr(module, name)

    def opened(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        place = files.to_read(path) if mode.startswith("r") else files.to_write(path, copy="w" not in mode)
        return original(place, mode, *args, **kwargs)

    return Patch(module, name, opened)
