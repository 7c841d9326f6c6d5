"""Follows the calls of modules, and names each by its path in the model.

The outermost module that is called names all modules inside it, as ``named_modules`` does; its own name is its class. Wrappers
that PyTorch puts around a module (data parallelism, checkpointing, compilation) are left out of a path.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from triosim.tracer.patches import Patches
from triosim.tracer.steps import class_name, module_hooks, unwrapped

_WRAPPERS = re.compile(r"(^|\.)(_checkpoint_wrapped_module|_fsdp_wrapped_module|_orig_mod)(?=\.|$)")
#: Modules of the compiler's own hold parts of a model that it divides, as by the buckets of DDP.
_COMPILER = ("torch._dynamo.", "torch.fx.")
_DATA_PARALLEL = frozenset(("DistributedDataParallel", "DataParallel"))


class ModulePaths:
    """The paths of called modules. ``entered(module, arguments)`` and ``left(module, result)`` are called for outermost ones.

    ``active`` are the paths of the modules that are being called, outermost first.
    """

    def __init__(
        self, entered: Callable[[nn.Module | None, Any], None], left: Callable[[nn.Module, Any], None]
    ) -> None:
        self._entered = entered
        self._left = left
        self._paths: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self.roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.active: list[str] = []
        self._names: set[str] = set()  # of outermost modules

    def install(self, patches: Patches) -> None:
        """Follow the calls of all modules until the patches are undone."""
        patches.enter_context(module_hooks(self._before, self._after))

    def path(self, module: nn.Module) -> str:
        """Return a module's path in the model; of one that was added after the model's first call, its class."""
        found = self._paths.get(module)
        return class_name(module) if found is None else found

    def innermost(self) -> str:
        """Return the path of the module that is being called, nothing for an outermost one."""
        return self.active[-1] if self.active and self.active[-1] not in self._names else ""

    @contextmanager
    def inlined(self, name: str) -> Iterator[None]:
        """Take what runs inside as a call of an outermost module that a compiler has inlined, unless some module is called."""
        if self.active:
            yield
            return
        self._names.add(name)
        self._entered(None, ())
        self.active.append(name)
        try:
            yield
        finally:
            self.active.pop()

    def _before(self, module: nn.Module, arguments: Any) -> None:
        if not self.active:
            self._learn(module)
            self._entered(module, arguments)
        is_compilers = type(module).__module__.startswith(_COMPILER) and module not in self._paths
        self.active.append(self.active[-1] if is_compilers and self.active else self.path(module))

    def _after(self, module: nn.Module, arguments: Any, *others: Any) -> None:
        self.active.pop()
        if not self.active:
            self._left(module, others[-1])

    def _learn(self, root: nn.Module) -> None:
        """Name the modules of an outermost module; one that is a part of another model keeps the name that it has there."""
        if root in self._paths:
            return
        self.roots.add(root)
        modules = dict(root.named_modules())
        wrapped = [f"{path}.module".lstrip(".") for path, one in modules.items() if class_name(one) in _DATA_PARALLEL]
        name = class_name(unwrapped(root))
        self._names.add(name)
        for path, module in modules.items():
            self._paths[module] = _WRAPPERS.sub("", _without(wrapped, path)).lstrip(".") or name


def _without(wrapped: list[str], path: str) -> str:
    """Return a path without the names that data parallelism gives to the modules inside of it, which have these paths."""
    for outer in reversed(wrapped):
        if path == outer or path.startswith(outer + "."):
            path = path.removeprefix(outer)
            path = outer.removesuffix("module").rstrip(".") + path
    return path.lstrip(".")
