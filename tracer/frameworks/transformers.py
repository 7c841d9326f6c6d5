"""Adapters of Hugging Face transformers: how it decides about attention masks."""

from __future__ import annotations

from types import ModuleType

from triosim.tracer.frameworks.adapter import Adapter, ReducesGradients
from triosim.tracer.patches import Patch


def _no_tensor_is_fake(module: ModuleType, reduces_gradients: ReducesGradients) -> list[Patch]:
    return [Patch(module, "is_fake_tensor", lambda x: False, missing="leave")]


ADAPTERS = (
    Adapter(
        "transformers",
        "5.23.0",
        "takes fake tensors for a sign of compilation, and then materialises masks",
        "transformers.utils.import_utils",
        _no_tensor_is_fake,
    ),
)
