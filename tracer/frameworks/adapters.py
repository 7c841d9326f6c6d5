"""Lists all adapters of frameworks, by the module after whose import each is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

from triosim.tracer.frameworks import deepspeed, megatron, torchtitan, transformers
from triosim.tracer.frameworks.adapter import Adapter, ReducesGradients
from triosim.tracer.patches import Patch

ADAPTERS: tuple[Adapter, ...] = (
    *(*deepspeed.ADAPTERS, *megatron.ADAPTERS),
    *(*torchtitan.ADAPTERS, *transformers.ADAPTERS),
)


def after_imports(reduces_gradients: ReducesGradients) -> Mapping[str, Callable[[ModuleType], list[Patch]]]:
    """Return the adapters' patches by the module after whose import they are made."""

    def patches(adapter: Adapter) -> Callable[[ModuleType], list[Patch]]:
        return lambda module: adapter.patches(module, reduces_gradients)

    return {one.module: patches(one) for one in ADAPTERS}
