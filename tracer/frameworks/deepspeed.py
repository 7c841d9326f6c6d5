"""Adapters of DeepSpeed: which ranks have samples of their own."""

from __future__ import annotations

from functools import wraps
from types import ModuleType
from typing import Any

from triosim.tracer.frameworks.adapter import Adapter, ReducesGradients
from triosim.tracer.patches import Patch


def _data_parallel(module: ModuleType, reduces_gradients: ReducesGradients) -> list[Patch]:
    engine = getattr(module, "DeepSpeedEngine", None)
    configure: Any = getattr(engine, "_configure_distributed_model", None)
    if configure is None:
        return []

    @wraps(configure)
    def _configure_distributed_model(self: Any, *args: Any, **options: Any) -> None:
        configure(self, *args, **options)
        reduces_gradients(self.data_parallel_group)

    return [Patch(engine, "_configure_distributed_model", _configure_distributed_model)]


ADAPTERS = (
    Adapter(
        "deepspeed",
        "0.19.8",
        "reduces gradients in buffers of its own, so that no collective says which ranks have samples of their own",
        "deepspeed.runtime.engine",
        _data_parallel,
    ),
)
