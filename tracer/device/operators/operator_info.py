"""What is known of an operator from its schema, and of a call of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from triosim.trace.formats.pytorch.execution_trace import ATTRIBUTES
from triosim.tracer.compiler.custom_operators import implementation
from triosim.tracer.device.operators import dtype_checks, memory_formats
from triosim.tracer.device.shape_cache import UNCACHED
from triosim.tracer.recorder.device_tensors import on_device

#: A function that runs an operator: ``run(operator, args, kwargs)``.
Run = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
#: Operators that change their arguments in place and return nothing, so there is no shape to compute.
_IN_PLACE_ONLY = frozenset(("aten::_fused_sgd_", "aten::_fused_adagrad_", "aten::_fused_adam_", "aten::_fused_adamw_"))


class OperatorInfo:
    """An operator's name, attributes and changed arguments, from its schema, and its dtype check.

    ``own`` is a function that runs it, ``rule`` one that returns its result where PyTorch has no shape rule.
    """

    def __init__(
        self, function: OpOverload, own: Run | None = None, rule: Callable[..., Any] | None = None, number: int = 0
    ) -> None:
        schema = function._schema
        self.own, self.rule, self.number = own, rule, number
        self.function = function
        self.name = schema.name
        self.bare = schema.name.partition("::")[2].rstrip("_")
        self.attributes = [
            (position, argument.name, argument.default_value)
            for position, argument in enumerate(schema.arguments)
            if argument.name in ATTRIBUTES or (argument.name == "device" and schema.name == "aten::_to_copy")
        ]
        self.changed = [
            (position, argument.name)
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        each = schema.name.startswith("aten::_foreach_") and schema.name.endswith("_")
        self.is_view = function.is_view
        self.in_place = each or schema.name in _IN_PLACE_ONLY
        self.is_cached = not self.in_place and not any(tag in function.tags for tag in UNCACHED)
        self.on_images = memory_formats.depends_on_format(schema.name)
        self.check = dtype_checks.check_of(self.bare)
        self.is_composite = _has_kernel(function, torch._C.DispatchKey.CompositeImplicitAutograd)
        self.to_host = schema.name in ("aten::_to_copy", "aten::copy_")
        self.runs_as = implementation(schema.name)

    def composition(self, given: Iterable[torch.Tensor]) -> Any:
        """Return the dispatch key of a composite operator's kernel: one of the device's own, if there is one."""
        keys = torch._C.DispatchKey
        own = any(map(on_device, given)) and _has_kernel(self.function, keys.CUDA)
        return keys.CUDA if own else keys.CompositeImplicitAutograd

    def attributes_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that a trace holds and are no tensors, by name."""
        found: dict[str, Any] = {}
        for position, name, default in self.attributes:
            value = args[position] if position < len(args) else kwargs.get(name, default)
            if isinstance(value, (list, tuple)) and not any(isinstance(one, torch.Tensor) for one in value):
                found[name] = [one if isinstance(one, (bool, int, float, str)) else int(one) for one in value]
            elif isinstance(value, (bool, int, float, str)):
                found[name] = value
            elif isinstance(value, torch.device):
                found[name] = value.type
        return found


class OperatorCall(NamedTuple):
    """A call of an operator: what is known of that, the tensors that it is given, in order, and all its arguments."""

    info: OperatorInfo
    given: list[torch.Tensor]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def changed(self) -> Iterator[Any]:
        """Yield the tensors that the call changes in place."""
        for position, name in self.info.changed:
            yield from flat(self.args[position] if position < len(self.args) else self.kwargs.get(name))

    def on_device(self) -> list[torch.Tensor]:
        """Return the given tensors that are on the device."""
        return [tensor for tensor in self.given if on_device(tensor)]

    def attributes(self, inputs: list[torch.Tensor]) -> dict[str, Any]:
        """Return what a trace holds of the call beside tensors; ``inputs`` are those of the device."""
        attributes = self.info.attributes_of(self.args, self.kwargs)
        if self.info.on_images and any(map(memory_formats.is_channels_last, inputs[:2])):
            attributes["channels_last"] = True
        return attributes


def flat(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an argument or a result."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from flat(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from flat(one)


def _has_kernel(function: OpOverload, key: Any) -> bool:
    """Whether PyTorch's dispatcher has a kernel: a decomposition in Python alone, such as that of upsampling, is none."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), key))
