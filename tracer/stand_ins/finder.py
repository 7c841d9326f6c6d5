"""Lets a script import packages that are not installed, where it was asked for: ``--stand-in flash_attn``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from types import ModuleType
from typing import Any

from triosim.errors import OptionError
from triosim.tracer.patches import Patches
from triosim.tracer.stand_ins.stand_in import StandIn

#: The module that has each package's stand-in.
_MODULES = {
    name: f"triosim.tracer.stand_ins.{name}" for name in ("apex", "flash_attn", "grouped_gemm", "transformer_engine")
}
#: Packages under which modules of another one are found.
_ALSO = {"amp_C": "apex"}
NAMES = tuple(_MODULES)
_ANY = DistributionFinder.Context()


def checked(names: str) -> tuple[str, ...]:
    """Return the packages of a list. Raises ``OptionError`` for one that has no stand-in."""
    found = tuple(dict.fromkeys(one.strip().replace("-", "_") for one in names.split(",")))
    for name in found:
        if name not in _MODULES:
            what = f"there is no stand-in of '{name}'"
            raise OptionError(what, where="--stand-in", fix=f"there are {', '.join(NAMES)}")
    return found


def install(patches: Patches, names: Iterable[str], note: Callable[[str], None]) -> None:
    """Let packages of these names be imported until the patches are undone, where nothing else provides them."""
    if stand_ins := {name: importlib.import_module(_MODULES[name]).STAND_IN for name in names}:
        finder: Any = _Finder(stand_ins, note)
        sys.meta_path.append(finder)
        patches.callback(sys.meta_path.remove, finder)
        patches.callback(finder.forget)


def missing(error: BaseException) -> str | None:
    """Return what can be done about a package that could not be imported; None where nothing stands in for it."""
    name = (getattr(error, "name", None) or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    package = _ALSO.get(name, name)
    if package not in _MODULES:
        return None
    return f"{package} is not installed; --stand-in {package} runs PyTorch's operators in its place"


class _Finder(DistributionFinder):
    """Finds the modules of stand-ins, and says that their packages are installed; each is ``noted`` when it is imported."""

    def __init__(self, stand_ins: Mapping[str, StandIn], note: Callable[[str], None]) -> None:
        self._stand_ins = stand_ins
        self._note = note
        self._made: list[str] = []

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module of a stand-in, otherwise nothing."""
        top = name.split(".")[0]
        found = self._stand_ins.get(_ALSO.get(top, top))
        if found is None or name not in found.modules:
            return None
        loader: Any = self
        return ModuleSpec(name, loader, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module of a spec."""
        package = _ALSO.get(spec.name.split(".")[0], spec.name.split(".")[0])
        stand_in = self._stand_ins[package]
        if spec.name == package:
            self._note(f"{package} is not installed: its stand-in runs {stand_in.instead}")
        module = ModuleType(spec.name, f"triosim's stand-in of {package}")
        module.__dict__.update(stand_in.modules[spec.name], __version__=stand_in.version)
        self._made.append(spec.name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Import the modules below one, which are then its attributes."""
        stand_in = self._stand_ins[_ALSO.get(module.__name__.split(".")[0], module.__name__.split(".")[0])]
        for name in stand_in.modules:
            if name.rpartition(".")[0] == module.__name__:
                importlib.import_module(name)

    def find_distributions(self, context: DistributionFinder.Context = _ANY) -> Iterator[Distribution]:
        """Yield what is known of the packages of stand-ins, as if they were installed."""
        for name, stand_in in self._stand_ins.items():
            if context.name is None or context.name.replace("-", "_").lower() == name:
                yield _Installed(name, stand_in)

    def forget(self) -> None:
        """Remove the modules that were made."""
        for name in self._made:
            sys.modules.pop(name, None)


class _Installed(Distribution):
    def __init__(self, package: str, stand_in: StandIn) -> None:
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {stand_in.distribution}\nVersion: {stand_in.version}\n",
            "top_level.txt": f"{package}\n",
        }

    def read_text(self, filename: str) -> str | None:
        """Return one of the files of what an installation writes."""
        return self._texts.get(filename)

    def locate_file(self, path: Any) -> Any:
        """There are no files."""
        return path
