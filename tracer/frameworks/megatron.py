"""Adapters of Megatron-Core: which ranks have samples of their own."""

from __future__ import annotations

from functools import wraps
from types import ModuleType
from typing import Any

from triosim.tracer.frameworks.adapter import Adapter, ReducesGradients
from triosim.tracer.patches import Patch


def _data_parallel(module: ModuleType, reduces_gradients: ReducesGradients) -> list[Patch]:
    wrapper: Any = getattr(module, "DistributedDataParallel", None)
    if wrapper is None:
        return []
    original = wrapper.__init__

    @wraps(original)
    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807
        original(self, *args, **options)
        if (group := getattr(self, "dp_group", None)) is not None:
            reduces_gradients(group)

    return [Patch(wrapper, "__init__", __init__)]


ADAPTERS = (
    Adapter(
        "megatron-core",
        "0.16.1",
        "reduces gradients in buffers of its own, so that no collective says which ranks have samples of their own",
        "megatron.core.distributed.distributed_data_parallel",
        _data_parallel,
    ),
)
