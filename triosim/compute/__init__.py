"""Operator times: compute models, their fits, and the times of operators in other shapes or on other GPUs.

The modules are loaded when a name of theirs is asked for (PEP 562), so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triosim.compute.compute_model import ComputeModel as ComputeModel
    from triosim.compute.compute_model import Estimates as Estimates
    from triosim.compute.models.linear import Linear as Linear
    from triosim.compute.pricing.repricing import reprice as reprice
    from triosim.sharding.reshape import with_batch_size as with_batch_size

_HOMES = {
    "ComputeModel": "triosim.compute.compute_model",
    "Estimates": "triosim.compute.compute_model",
    "Linear": "triosim.compute.models.linear",
    "reprice": "triosim.compute.pricing.repricing",
    "with_batch_size": "triosim.sharding.reshape",
}
__all__ = ["ComputeModel", "Estimates", "Linear", "reprice", "with_batch_size"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
