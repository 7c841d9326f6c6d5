"""The dispatch mode of the fake device: on it operators compute shapes alone, on the host small tensors are real.

Below this mode is PyTorch's own ``FakeTensorMode``, which knows the shape that each operator returns. A tensor on the host
of whole numbers, or of no more than a few megabytes, is a real one, so that a script's settings, indices and labels have their
values; a larger one (the weights before they move to the GPU) is a fake tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, UnsupportedOperatorException
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from triosim.trace.formats.pytorch.execution_trace import ATTRIBUTES
from triosim.tracer.compiler.custom_operators import implementation
from triosim.tracer.contents import assumed_values, storage_contents
from triosim.tracer.contents.assumed_contents import AssumedContents, OperatorCall
from triosim.tracer.contents.host_twins import HostTwins
from triosim.tracer.contents.known_contents import KnownContents, flat
from triosim.tracer.contents.storage_contents import is_fake
from triosim.tracer.device.operators import dtype_checks, memory_formats
from triosim.tracer.device.shape_cache import UNCACHED, KnownCall, Made, ShapeCache
from triosim.tracer.recorder.device_tensors import on_device
from triosim.tracer.recorder.recorder import Recorder

#: Tensors of fractions that a script creates on the host are real up to this many elements ...
MOST_MADE = 2**18
#: ... and those that are computed from real ones, when these have no more than this many.
MOST_COMPUTED = 2**24
#: Whole numbers on the host (indices, labels, words) are always real, up to what no script holds there.
MOST_WHOLE = 2**30

#: A function that runs an operator: ``run(operator, args, kwargs)``.
Run = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
aten = torch.ops.aten
_FIRST = torch.device("cuda", 0)
_DEVICE = torch.ops.prim.device.default
_FAKE = {FakeTensor}
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor))
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

    def changed_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the tensors that a call changes in place."""
        for position, name in self.changed:
            yield from flat(args[position] if position < len(args) else kwargs.get(name))


def _add_tensors(found: list[torch.Tensor], values: Iterable[Any]) -> None:
    """Add the tensors among arguments to a list, in order."""
    for value in values:
        kind = type(value)
        if kind is FakeTensor or isinstance(value, torch.Tensor):
            found.append(value)
        elif kind is list or kind is tuple:
            _add_tensors(found, value)
        elif isinstance(value, (list, tuple, dict)):
            found += flat(value)


def _has_kernel(function: OpOverload, key: Any) -> bool:
    """Whether PyTorch's dispatcher has a kernel: a decomposition in Python alone, such as that of upsampling, is none."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), key))


class DeviceMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The dispatch mode that runs each operator as far as it can, and records those on the device."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep PyTorch from wrapping each call of this mode against its compiler, which runs outside of it."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let PyTorch compile although this mode is active: compiled code then runs under it."""
        return True

    def __init__(self, recorder: Recorder, fake_mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.contents = KnownContents()
        self._assumed = AssumedContents()
        self._shapes = ShapeCache(fake_mode, recorder.storages.forms)
        self.twins = HostTwins(self._shapes.tensor)
        self._muted = 0
        self._inside = 0  # of operators that the script defines
        self._run_by: dict[Any, Run] = {}
        self._infos: dict[Any, OperatorInfo] = {}
        self._numbers = count()  # of operators
        self._rules: dict[Any, Callable[..., Any]] = {
            aten.batch_norm_stats.default: _channels(2),
            aten.batch_norm_gather_stats_with_counts.default: _channels(2),
            aten.batch_norm_backward_reduce.default: _channels(4),
            aten.batch_norm_elemt.default: lambda data, *_, **__: torch.empty_like(data),
            aten.batch_norm_backward_elemt.default: lambda data, *_, **__: torch.empty_like(data),
        }

    def replace(self, operators: Mapping[Any, Run]) -> None:
        """Let functions of their own run, and record, these operators: ``run(operator, args, kwargs)``."""
        self._run_by.update(operators)
        self._infos.clear()

    def add_shape_rules(self, rules: Mapping[Any, Callable[..., Any]]) -> None:
        """Add functions that return an operator's result where PyTorch has no shape rule, or ``NotImplemented``."""
        self._rules.update(rules)
        self._infos.clear()

    @property
    def is_muted(self) -> bool:
        """Whether operators are run without being recorded."""
        return self._muted > 0

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Do not record what runs inside."""
        self._muted += 1
        try:
            yield
        finally:
            self._muted -= 1

    @contextmanager
    def _below_autograd(self) -> Iterator[None]:
        """Say that what runs inside comes here as it is written, because autograd, which decomposes operators, is off."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if function is _DEVICE and isinstance(args[0], FakeTensor):  # more than half of all calls
            return args[0].fake_device
        kwargs = kwargs or {}
        info = self._infos.get(function) or self._info(function)
        if info is None:
            own = self._run_by.get(function)
            if own is None:
                return function(*args, **kwargs)  # one that runs functions, such as flex attention
            with self:
                return own(function, args, kwargs)
        for kind in types:
            if kind not in _PLAIN and hasattr(kind, "__tensor_flatten__"):
                return NotImplemented  # a distributed tensor first runs the operator on its local parts
        if info.own is not None:
            return info.own(function, args, kwargs)
        given: list[torch.Tensor] = []
        _add_tensors(given, args)
        if kwargs:
            _add_tensors(given, kwargs.values())
        if given and set(map(type, given)) == _FAKE:
            return self._on_fakes(function, info, given, args, kwargs)
        fake = any(hasattr(tensor, "fake_device") for tensor in given)
        if fake and info.changed and not all(hasattr(tensor, "fake_device") for tensor in given):
            self.twins.add(info.changed_of(args, kwargs), given)
        if self.twins.exist and any(self.twins.of(tensor) is not tensor for tensor in given):
            changed, others = tree_map_only(torch.Tensor, self.twins.of, (args, kwargs))
            result = self.__torch_dispatch__(function, types, changed, others)
            return args[0] if info.changed and isinstance(result, torch.Tensor) else result
        if not fake and _is_real(function, given, args, kwargs):
            with torch._C._DisableTorchDispatch():
                return function(*args, **({**kwargs, "pin_memory": False} if kwargs.get("pin_memory") else kwargs))
        return self._on_fakes(function, info, given, args, kwargs)

    def _info(self, function: Any) -> OperatorInfo | None:
        """Return what is known of an operator; None of one that runs functions."""
        if not isinstance(function, OpOverload):
            return None
        made = OperatorInfo(function, self._run_by.get(function), self._rules.get(function), next(self._numbers))
        self._infos[function] = made
        return made

    def _on_fakes(
        self,
        function: Any,
        info: OperatorInfo,
        given: list[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if info.runs_as is not None and any(map(on_device, given)):
            with self, self._below_autograd():
                return info.runs_as(*args, **kwargs)
        if info.is_composite and (self._inside or torch.is_inference_mode_enabled()):
            with self:  # autograd, which decomposes operators before they come here, is off
                return function._op_dk(info.composition(given), *args, **kwargs)
        return self._on_device(function, info, given, args, kwargs)

    def _on_device(
        self,
        function: Any,
        info: OperatorInfo,
        given: list[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if info.to_host and len(kwargs) == 1 and kwargs.get("device") == _FIRST:
            kwargs = {"device": torch.device("cuda", torch.cuda.current_device())}  # torch.tensor has lost the index
        if info.check is not None and info.rule is not None:
            info.check(args)
        found = NotImplemented if info.rule is None else info.rule(*args, **kwargs)
        storages: list[Any] = []
        call = (
            self._shapes.find(info.number, args, kwargs, storages)
            if found is NotImplemented and info.is_cached
            else None
        )
        if call is not None and call.parts is not None:
            made = self._shapes.make(call, given, storages)
            return self._known(info, call, made, given, storages, args, kwargs)
        if info.check is not None:
            info.check(args)
        if found is not NotImplemented:
            result = found
        elif info.in_place:
            result = None
        else:
            fakes = _fake_copies(given)
            try:
                if fakes:
                    arguments = tree_map_only(torch.Tensor, lambda one: fakes.get(id(one), one), (args, kwargs))
                    result = function(*arguments[0], **arguments[1])
                else:
                    result = function(*args, **kwargs)
            except NotImplementedError as error:  # without a rule for the shape, PyTorch tries the kernel itself
                raise UnsupportedOperatorException(function) from error
        if call is not None and not call.tried:
            first = self._learnt(info, call, given, storages, args, kwargs, result)
            if first is not None:
                return self._known(info, call, first, given, storages, args, kwargs)
        changed = list(info.changed_of(args, kwargs)) if info.changed else []
        if changed and isinstance(result, torch.Tensor) and isinstance(args[0], torch.Tensor) and not is_fake(args[0]):
            result = args[0]  # a real tensor that was to be changed in place
        if self._assumed.may_follow(info.bare, changed):
            self._assumed.follow(OperatorCall(info.bare, function, given, args, kwargs), result, changed)
        assumed_values.learn(info.bare, args, result, changed)
        if found is NotImplemented:
            self.contents.follow(info, given, args, kwargs, result, changed)
        self._record(info, given, args, kwargs, result, changed)
        return _real_on_host(info, result)

    def _learnt(
        self,
        info: OperatorInfo,
        call: KnownCall,
        given: list[torch.Tensor],
        storages: list[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> Made | None:
        """Keep how a call's result is made, and what else is equal for calls with its key; return the parts of the result."""
        made = self._shapes.learn(call, given, storages, result, changes=bool(info.changed))
        if made is not None:
            call.attributes = self._attributes_of(info, [one for one in given if on_device(one)], args, kwargs)
            positions = {id(one): position for position, one in enumerate(given)}
            call.changed = tuple([positions[id(one)] for one in info.changed_of(args, kwargs)])
        return made

    def _known(
        self,
        info: OperatorInfo,
        call: KnownCall,
        made: Made,
        given: list[torch.Tensor],
        storages: list[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Learn from a call, and record it, whose result was ``made`` by its recipe, or for it."""
        result, changed = made.result, [given[position] for position in call.changed]
        if self._assumed.may_follow(info.bare, changed):
            self._assumed.follow(OperatorCall(info.bare, info.function, given, args, kwargs), result, changed)
        if changed or assumed_values.may_learn(info.bare, given):
            assumed_values.learn(info.bare, args, result, changed)
        if self.contents.may_follow(info, given, storages):
            self.contents.follow(info, given, args, kwargs, result, changed)
        if self._muted:
            return result
        if not (call.on_device and self.recorder.takes_calls):
            self._record(info, given, args, kwargs, result, changed)
            return _real_on_host(info, result)
        outputs = list(zip(made.forms, made.storages, strict=True))
        outputs += [(call.forms[position], storages[position]) for position in call.changed]
        self.recorder.call(info.name, call, list(zip(call.forms, storages, strict=True)), outputs)
        return result

    def _record(
        self,
        info: OperatorInfo,
        given: list[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        changed: list[torch.Tensor],
    ) -> None:
        if self._muted:
            return
        inputs = [tensor for tensor in given if on_device(tensor)]
        outputs = [tensor for tensor in (*flat(result), *changed) if on_device(tensor)]
        if not inputs and not outputs:
            return
        self.recorder.operator(info.name, self._attributes_of(info, inputs, args, kwargs), inputs, outputs)
        if info.to_host and not outputs and not kwargs.get("non_blocking"):
            self.recorder.host_waits_here()

    def _attributes_of(
        self, info: OperatorInfo, inputs: list[torch.Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the attributes of a call with these tensors of the device."""
        attributes = info.attributes_of(args, kwargs)
        if info.on_images and any(map(memory_formats.is_channels_last, inputs[:2])):
            attributes["channels_last"] = True
        return attributes


def _real_on_host(info: OperatorInfo, result: Any) -> Any:
    """Return a call's result, a real tensor where its contents are known on the host."""
    if info.to_host and isinstance(result, FakeTensor) and not on_device(result):
        real = storage_contents.of(result)
        return result if real is None else real
    return result


def _channels(count: int) -> Callable[..., Any]:
    """Return a shape rule for operators of synchronised batch normalisation, which PyTorch has for CUDA alone.

    They return ``count`` tensors by channel, in single precision where the data is in half (PyTorch, Normalization.cu); of the
    four of the backward pass the last two are the parameters' gradients.
    """

    def shapes(data: torch.Tensor, *others: Any, **_: Any) -> tuple[torch.Tensor, ...]:
        half = data.dtype in (torch.float16, torch.bfloat16)
        kind = torch.float32 if half else data.dtype
        weight = others[3] if count == 4 and others[3] is not None else None
        kinds = [kind, kind, *[kind if weight is None else weight.dtype] * (count - 2)]
        return tuple([data.new_empty((data.shape[1],), dtype=one) for one in kinds])

    return shapes


def _is_real(function: Any, given: list[torch.Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator on real tensors, or on none, really runs: on the host and small enough, or on "meta"."""
    device = kwargs.get("device")
    if device is not None and device.type != "cpu":
        return device.type == "meta" and all(tensor.device.type in ("cpu", "meta") for tensor in given)
    if given:
        return all(
            tensor.device.type == "meta"
            or (tensor.device.type == "cpu" and tensor.numel() <= (MOST_WHOLE if _is_whole(tensor) else MOST_COMPUTED))
            for tensor in given
        )
    most = MOST_WHOLE if _makes_whole(function, args, kwargs) else MOST_MADE
    sizes = next((one for one in args if isinstance(one, (list, tuple))), None)
    if sizes is not None:
        return math.prod(sizes) <= most
    return all(abs(one) <= most for one in args if isinstance(one, (int, float)))


def _is_whole(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _makes_whole(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator without tensors makes whole numbers: by its dtype, or by what it makes without one."""
    dtype = kwargs.get("dtype")
    if dtype is not None:
        return not (dtype.is_floating_point or dtype.is_complex)
    name = function._schema.name
    if name in ("aten::arange", "aten::full"):
        return all(isinstance(one, int) for one in args if not isinstance(one, (list, tuple)))
    return name in ("aten::randperm", "aten::randint")


def _fake_copies(given: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return a fake tensor for each real one, by its ``id()`` during this call; single numbers stay real."""
    return {
        id(one): torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device=one.device)
        for one in given
        if not hasattr(one, "fake_device") and one.dim()
    }


def fake_tensor_mode() -> FakeTensorMode:
    """Return PyTorch's mode of fake tensors, without its cache, whose keys lack the current device."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.cache_enabled = False
    return mode
