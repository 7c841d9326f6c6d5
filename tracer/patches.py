"""Replaces functions of PyTorch during a capture, and restores them when the capture is over.

PyTorch has no interface for a fake GPU, so some of its functions are replaced while a script runs. What is to be replaced is
looked up first: where a version of PyTorch lacks it, the capture ends with an error before the script has begun.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from triosim.errors import CaptureError
from triosim.tracer.pytorch_version import missing_api, required

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Patch:
    """The replacement of ``owner.name``. ``missing`` says whether an unknown name is an error, left out, or added."""

    owner: Any
    name: str
    replacement: Any
    missing: Literal["error", "leave", "add"] = "error"


class Patches(ExitStack):
    """A stack of patches, callbacks and contexts, which are undone on leaving in reverse order, also after an error."""

    def make(self, patches: Iterable[Patch]) -> None:
        """Make patches, all or none. Raises ``CaptureError`` when what one of them replaces does not exist."""
        wanted = [patch for patch in patches if patch.missing != "leave" or hasattr(patch.owner, patch.name)]
        for patch in wanted:
            if patch.missing == "error":
                required(patch.owner, patch.name)
        for patch in wanted:
            # A name that is inherited or computed is not in the owner's dictionary: the replacement is removed afterwards.
            own = vars(patch.owner).get(patch.name, _MISSING)
            setattr(patch.owner, patch.name, patch.replacement)
            self.callback(_restore, patch.owner, patch.name, own)

    def rebind(
        self,
        replaced: Mapping[int, Any],
        functions: Iterable[Any] = (),
        spared: Callable[[str], bool] = lambda module: False,
    ) -> None:
        """Replace objects, by their identity, under every name that modules have for them, except in modules that are spared.

        So what a module imported by name is replaced as well; and so are the default arguments of the given functions.
        """
        for name, module in list(sys.modules.items()):
            if module is None or spared(name):
                continue
            bound = [
                (one, value) for one, value in list(getattr(module, "__dict__", {}).items()) if id(value) in replaced
            ]
            self.make(Patch(module, one, replaced[id(value)]) for one, value in bound)
        for function in functions:
            self.callback(setattr, function, "__defaults__", function.__defaults__)
            function.__defaults__ = tuple([replaced.get(id(one), one) for one in function.__defaults__])

    def replace_values(self, replaced: Mapping[Any, Any]) -> None:
        """Replace functions that are values of dictionaries, such as a module's table of openers, which it made at import."""
        by_identity = {id(one): function for one, function in replaced.items()}
        for held in _referrers(replaced):
            if type(held) is not dict or held is replaced or not held.keys().isdisjoint(("__name__", "__module__")):
                continue  # no names of modules or classes
            for key, value in list(held.items()):
                if id(value) in by_identity:
                    self.callback(held.__setitem__, key, value)
                    held[key] = by_identity[id(value)]

    def set_variable(self, name: str, value: str) -> None:
        """Set a variable of the environment, which programs that the script starts have as well."""
        self.callback(_restore_variable, name, os.environ.get(name))
        os.environ[name] = value

    def add(self, owner: Any, name: str, value: Any) -> None:
        """Add a value to a list of PyTorch's, in place. Raises ``CaptureError`` when the list does not exist."""
        known = getattr(owner, name, None)
        if not isinstance(known, list):
            raise missing_api(f"{owner.__name__}.{name}")
        if value not in known:
            known.append(value)
            self.callback(known.remove, value)

    def register_kernels(
        self, kernels: Mapping[str, Callable[..., Any]], keys: Sequence[str] = ("AutogradCUDA", "CUDA")
    ) -> None:
        """Register functions as the kernels of ATen operators, by ``name.overload``, under each of the dispatch keys."""
        import torch

        library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        self.callback(library._destroy)
        for name, kernel in kernels.items():
            for key in keys:
                library.impl(name, kernel, key)


def _referrers(objects: Iterable[Any]) -> list[Any]:
    """Return what refers to objects, also where the garbage collector has put it aside in a process that was forked."""
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    try:
        return gc.get_referrers(*objects)
    finally:
        if frozen:
            gc.freeze()


def _restore_variable(name: str, value: str | None) -> None:
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


_capturing = False


@contextmanager
def only_capture() -> Iterator[None]:
    """Let no other capture begin until the block is left, because patches and PyTorch's profiler serve the whole process.

    Raises ``CaptureError`` when another one runs.
    """
    global _capturing
    if _capturing:
        raise CaptureError("a capture is running already", fix="leave its block before the next one begins")
    _capturing = True
    try:
        yield
    finally:
        _capturing = False


def _restore(owner: Any, name: str, own: Any) -> None:
    if own is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, own)
