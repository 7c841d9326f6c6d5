"""Keeps DTensor's sharding propagation out of a recorded step, and makes it faster.

To find out how a result is sharded, DTensor runs each operator once on fake tensors of the global shape
(``torch.distributed.tensor._sharding_prop``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch.distributed.tensor import _sharding_prop, placement_types
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.utils._python_dispatch import _disable_current_modes

from triosim.tracer.device.dispatch_mode import DeviceMode
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.pytorch_version import missing_api

#: Operators on lists of tensors that treat each position of the lists by itself.
_ELEMENTWISE_ON_LISTS = ("aten::_foreach_", "aten::_amp_foreach_", "aten::_fused_")


def install(patches: Patches, mode: DeviceMode) -> None:
    """Keep sharding propagation unrecorded until the patches are undone."""
    patches.make(_patches(mode))


def _patches(mode: DeviceMode) -> Iterator[Patch]:
    propagator = _sharding_prop.ShardingPropagator
    names = [name for name in vars(propagator) if name.startswith("_propagate_tensor_meta")]
    if not names:
        raise missing_api("ShardingPropagator._propagate_tensor_meta")
    for name in names:
        yield Patch(propagator, name, _unrecorded(getattr(propagator, name), mode))
    whole = getattr(propagator, "propagate_op_sharding_non_cached", None)
    if whole is not None:
        yield Patch(propagator, "propagate_op_sharding_non_cached", _once_for_equal(whole))
    flag = getattr(_sharding_prop, "_propagate_use_strided_shard_flag", None)
    if flag is not None:
        yield Patch(_sharding_prop, "_propagate_use_strided_shard_flag", _where_strided(flag))


def _where_strided(function: Any) -> Any:
    """Return a function that calls another one only where an argument is sharded in strides.

    It is called for each tensor of an optimizer's step, and looks each time at all of them, nearly always in vain.
    """
    seen: list[Any] = [None, False]  # the schema that was looked at last, and whether it has one

    def where_strided(strategy: Any, schema: Any) -> None:
        if seen[0] is not schema:
            strided = placement_types._StridedShard
            seen[:] = schema, any(isinstance(one, strided) for spec in schema.args_spec for one in spec.placements)
        if seen[1]:
            function(strategy, schema)

    return where_strided


def _once_for_equal(function: Any) -> Any:
    """Return a function that propagates shardings of lists of tensors once for positions with equal tensors.

    An optimizer has hundreds of parameters with few different shapes and shardings.
    """

    def once_for_equal(propagator: Any, schema: Any) -> Any:
        kinds = _kinds(schema)
        if kinds is None:
            return function(propagator, schema)
        first = list(dict.fromkeys(kinds))
        positions = [kinds.index(kind) for kind in first]
        found = function(propagator, _at(schema, positions, len(kinds)))
        number = {kind: position for position, kind in enumerate(first)}
        back = [number[kind] for kind in kinds]
        asked, specs = found.redistribute_schema, found.output_spec
        return replace(
            found,
            output_spec=tuple([specs[position] for position in back]) if isinstance(specs, (list, tuple)) else specs,
            redistribute_schema=None if asked is None else _at(asked, back, len(first)),
        )

    return once_for_equal


def _kinds(schema: Any) -> list[Any] | None:
    """Return the specs at each position of an operator's lists; None where it has no such lists, or all differ."""
    if not schema.op.name().startswith(_ELEMENTWISE_ON_LISTS) or any(
        isinstance(one, list) for one in schema.kwargs_schema.values()
    ):
        return None
    lists = [one for one in schema.args_schema if isinstance(one, (list, tuple)) and one]
    tensors = [one for one in lists if isinstance(one[0], DTensorSpec)]
    if not tensors or any(len(one) != len(tensors[0]) for one in lists):
        return None
    kinds = list(zip(*tensors, strict=True))
    return kinds if len(set(kinds)) < len(kinds) else None


def _at(schema: Any, positions: Sequence[int], length: int) -> Any:
    """Return a schema whose lists of a length are reduced to some of their positions."""
    arguments = [
        type(one)([one[position] for position in positions])
        if isinstance(one, (list, tuple)) and len(one) == length
        else one
        for one in schema.args_schema
    ]
    return replace(schema, args_schema=tuple(arguments), _comparison_key=None)


def _unrecorded(function: Any, mode: DeviceMode) -> Any:
    """Return a function that calls another one outside of all dispatch modes."""

    def unrecorded(*args: Any, **kwargs: Any) -> Any:
        with mode.muted(), _disable_current_modes():
            return function(*args, **kwargs)

    return unrecorded
