"""Distributed tensors without contents: what PyTorch works out about their shapes is no part of a step.

To find out how a result is divided, DTensor runs each operator once on tensors of the whole size, without contents of its own
making (``torch.distributed.tensor._sharding_prop``). A device mesh counts on small tensors of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.distributed.tensor import _sharding_prop, placement_types
from torch.utils._python_dispatch import _disable_current_modes

from triosim.tracer.fake_tensors import DeviceMode
from triosim.tracer.patches import Patch, Patches, missing_api


def install(patches: Patches, mode: DeviceMode) -> None:
    """Keep DTensor's own work out of the record until the patches are undone."""
    patches.make(_patches(mode))


def _patches(mode: DeviceMode) -> Iterator[Patch]:
    propagator = _sharding_prop.ShardingPropagator
    names = [name for name in vars(propagator) if name.startswith("_propagate_tensor_meta")]
    if not names:
        raise missing_api("ShardingPropagator._propagate_tensor_meta")
    for name in names:
        yield Patch(propagator, name, _apart(getattr(propagator, name), mode))
    flag = getattr(_sharding_prop, "_propagate_use_strided_shard_flag", None)
    if flag is not None:
        yield Patch(_sharding_prop, "_propagate_use_strided_shard_flag", _where_strided(flag))


def _where_strided(function: Any) -> Any:
    """Return a function that runs another one only where an argument is sharded in strides.

    It is called for each tensor of an optimizer's step, and looks each time at all of them, for nothing in nearly all cases.
    """
    seen: list[Any] = [None, False]  # the arguments that were looked at last, and whether one is

    def where_strided(strategy: Any, schema: Any) -> None:
        if seen[0] is not schema:
            strided = placement_types._StridedShard
            seen[:] = schema, any(isinstance(one, strided) for spec in schema.args_spec for one in spec.placements)
        if seen[1]:
            function(strategy, schema)

    return where_strided


def _apart(function: Any, mode: DeviceMode) -> Any:
    """Return a function that runs another one outside of all modes."""

    def apart(*args: Any, **kwargs: Any) -> Any:
        with mode.muted(), _disable_current_modes():
            return function(*args, **kwargs)

    return apart
