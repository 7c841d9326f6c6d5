"""Patches modules as soon as they are imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from triosim.tracer.patches import Patch, Patches

#: Returns the patches of a module that the script imports.
AfterImport = Callable[[ModuleType], list[Patch]]


class AfterImports:
    """An import hook that makes the patches of each of some ``modules`` when it is imported, or at once.

    ``before`` are functions that are called before modules are imported, by their names.
    """

    def __init__(
        self,
        patches: Patches,
        modules: Mapping[str, AfterImport],
        before: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:
        self._patches = patches
        self._modules = modules
        self._before = before or {}

    def install(self) -> None:
        """Hook into imports until the patches are undone."""
        for name in self._modules.keys() & sys.modules.keys():
            self._patches.make(self._modules[name](sys.modules[name]))
        finder: Any = self
        sys.meta_path.insert(0, finder)
        self._patches.callback(sys.meta_path.remove, finder)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module that is patched after its import, otherwise nothing."""
        if name in self._before:
            self._before[name]()
        found = PathFinder.find_spec(name, path) if name in self._modules else None
        if found is None or found.loader is None:
            return None
        loader: Any = found.loader
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self._patches.make(self._modules[name](module))

        loader.exec_module = exec_module
        return found
