"""Adapters of torchtitan: what it calls of a PyTorch that is not released yet."""

from __future__ import annotations

from types import ModuleType

import torch.distributed as dist

from triosim.tracer.frameworks.adapter import Adapter, ReducesGradients
from triosim.tracer.patches import Patch


def _timeouts(_: ModuleType, reduces_gradients: ReducesGradients) -> list[Patch]:
    return [] if hasattr(dist, "set_timeout") else [Patch(dist, "set_timeout", lambda *_, **__: None, missing="add")]


ADAPTERS = (
    Adapter(
        "torchtitan",
        "0.3.0",
        "calls torch.distributed.set_timeout, which PyTorch 2.13 lacks: groups have no timeouts here",
        "torchtitan",
        _timeouts,
    ),
)
