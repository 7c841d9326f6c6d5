"""The dispatch mode of the fake device: on it operators compute shapes alone, on the host small tensors are real.

Below this mode is PyTorch's own ``FakeTensorMode``, which knows the shape that each operator returns. A tensor on the host
of whole numbers, or of no more than a few megabytes, is a real one, so that a script's settings, indices and labels have their
values; a larger one (the weights before they move to the GPU) is a fake tensor.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, UnsupportedOperatorException
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from triosim.tracer.contents import assumed_values, storage_contents
from triosim.tracer.contents.assumed_contents import AssumedContents
from triosim.tracer.contents.host_twins import HostTwins
from triosim.tracer.contents.known_contents import KnownContents
from triosim.tracer.contents.storage_contents import is_fake
from triosim.tracer.device.operators import sparse_tensors
from triosim.tracer.device.operators.operator_info import OperatorCall, OperatorInfo, Run, flat
from triosim.tracer.device.shape_cache import KnownCall, Made, ShapeCache
from triosim.tracer.recorder.device_tensors import on_device
from triosim.tracer.recorder.recorder import Recorder

#: Tensors of fractions that a script creates on the host are real up to this many elements ...
MOST_MADE = 2**18
#: ... and those that are computed from real ones, when these have no more than this many.
MOST_COMPUTED = 2**24
#: Whole numbers on the host (indices, labels, words) are always real, up to what no script holds there.
MOST_WHOLE = 2**30

aten = torch.ops.aten
_FIRST = torch.device("cuda", 0)
_HOST = torch.device("cpu")
_DEVICE = torch.ops.prim.device.default
_FAKE = {FakeTensor}
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor))


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
        self._turn = threading.RLock()  # of one thread at a time
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

    def in_turn(self) -> AbstractContextManager[object]:
        """Keep operators of other threads waiting while what is inside runs."""
        return self._turn

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
        with self._turn:
            return self._run(function, types, args, kwargs or {})

    def _run(self, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
            return self._on_fakes(OperatorCall(info, given, args, kwargs))
        call = OperatorCall(info, given, args, kwargs)
        if function is aten._to_copy.default and given[0].is_sparse and kwargs.get("device", _HOST).type == "cuda":
            with self:
                return sparse_tensors.copied(given[0], self, kwargs["device"], kwargs.get("dtype"))
        fake = any(hasattr(tensor, "fake_device") for tensor in given)
        if fake and info.changed and not all(hasattr(tensor, "fake_device") for tensor in given):
            self.twins.add(call.changed(), given)
        if self.twins.exist and any(self.twins.of(tensor) is not tensor for tensor in given):
            changed, others = tree_map_only(torch.Tensor, self.twins.of, (args, kwargs))
            result = self._run(function, types, changed, others)
            return args[0] if info.changed and isinstance(result, torch.Tensor) else result
        if not fake and _is_real(call):
            with torch._C._DisableTorchDispatch():
                return function(*args, **({**kwargs, "pin_memory": False} if kwargs.get("pin_memory") else kwargs))
        return self._on_fakes(call)

    def shaped(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what an operator returns on fake tensors, and record nothing: for one that is run by a function of its own."""
        info = self._infos.get(function) or self._info(function)
        storages: list[Any] = []
        known = None
        if info is not None and info.is_cached:
            known = self._shapes.find(info.number, args, kwargs, storages)
        if info is None or known is None or (known.tried and known.parts is None):
            return function(*args, **kwargs)
        given = [*flat(args), *flat(kwargs)]
        if known.parts is not None:
            return self._shapes.make(known, given, storages).result
        result = function(*args, **kwargs)
        self._shapes.learn(known, given, storages, result, changes=bool(info.changed))
        return result

    def _info(self, function: Any) -> OperatorInfo | None:
        """Return what is known of an operator; None of one that runs functions."""
        if not isinstance(function, OpOverload):
            return None
        made = OperatorInfo(function, self._run_by.get(function), self._rules.get(function), next(self._numbers))
        self._infos[function] = made
        return made

    def _on_fakes(self, call: OperatorCall) -> Any:
        info = call.info
        if info.runs_as is not None and any(map(on_device, call.given)):
            with self, self._below_autograd():
                return info.runs_as(*call.args, **call.kwargs)
        if info.is_composite and (self._inside or torch.is_inference_mode_enabled()):
            with self:  # autograd, which decomposes operators before they come here, is off
                return info.function._op_dk(info.composition(call.given), *call.args, **call.kwargs)
        return self._on_device(call)

    def _on_device(self, call: OperatorCall) -> Any:
        info, given, args, kwargs = call
        if info.to_host and len(kwargs) == 1 and kwargs.get("device") == _FIRST:
            kwargs = {"device": torch.device("cuda", torch.cuda.current_device())}  # torch.tensor has lost the index
            call = call._replace(kwargs=kwargs)
        if info.check is not None and info.rule is not None:
            info.check(args)
        found = NotImplemented if info.rule is None else info.rule(*args, **kwargs)
        storages: list[Any] = []
        known = None
        if found is NotImplemented and info.is_cached:
            known = self._shapes.find(info.number, args, kwargs, storages)
        if known is not None and known.parts is not None:
            return self._known(call, known, self._shapes.make(known, given, storages), storages)
        if info.check is not None:
            info.check(args)
        result = _computed(call) if found is NotImplemented else found
        if known is not None and not known.tried:
            first = self._learnt(call, known, storages, result)
            if first is not None:
                return self._known(call, known, first, storages)
        if self.contents.are_drawn:
            self.contents.fill(given)
        changed = list(call.changed()) if info.changed else []
        if changed and isinstance(result, torch.Tensor) and isinstance(args[0], torch.Tensor) and not is_fake(args[0]):
            result = args[0]  # a real tensor that was to be changed in place
        if self._assumed.may_follow(info.bare, changed):
            self._assumed.follow(call, result, changed)
        assumed_values.learn(info.bare, args, result, changed)
        if found is NotImplemented:
            self.contents.follow(call, result, changed)
        self._record(call, result, changed)
        return _real_on_host(info, result)

    def _learnt(self, call: OperatorCall, known: KnownCall, storages: list[Any], result: Any) -> Made | None:
        """Keep how a call's result is made, and what else is equal for calls with its key; return the parts of the result."""
        made = self._shapes.learn(known, call.given, storages, result, changes=bool(call.info.changed))
        if made is not None:
            known.attributes = call.attributes(call.on_device())
            positions = {id(one): position for position, one in enumerate(call.given)}
            known.changed = tuple([positions[id(one)] for one in call.changed()])
        return made

    def _known(self, call: OperatorCall, known: KnownCall, made: Made, storages: list[Any]) -> Any:
        """Learn from a call, and record it, whose result was ``made`` by its recipe, or for it."""
        info, given, args, _ = call
        result, changed = made.result, [given[position] for position in known.changed]
        if self.contents.are_drawn:
            self.contents.fill(given)
        if self._assumed.may_follow(info.bare, changed):
            self._assumed.follow(call, result, changed)
        if changed or assumed_values.may_learn(info.bare, given):
            assumed_values.learn(info.bare, args, result, changed)
        if self.contents.may_follow(info, given, storages):
            self.contents.follow(call, result, changed)
        if self._muted:
            return result
        if not (known.on_device and self.recorder.takes_calls):
            self._record(call, result, changed)
            return _real_on_host(info, result)
        outputs = list(zip(made.forms, made.storages, strict=True))
        outputs += [(known.forms[position], storages[position]) for position in known.changed]
        self.recorder.call(info.name, known, list(zip(known.forms, storages, strict=True)), outputs)
        return result

    def _record(self, call: OperatorCall, result: Any, changed: list[torch.Tensor]) -> None:
        if self._muted:
            return
        inputs = call.on_device()
        outputs = [tensor for tensor in (*flat(result), *changed) if on_device(tensor)]
        if not inputs and not outputs:
            return
        self.recorder.operator(call.info.name, call.attributes(inputs), inputs, outputs)
        if call.info.to_host and not outputs and not call.kwargs.get("non_blocking"):
            self.recorder.host_waits_here()


def _computed(call: OperatorCall) -> Any:
    """Return the result of a call on fake tensors, of which PyTorch's rule computes the shapes."""
    info, given, args, kwargs = call
    if info.in_place:
        return None
    fakes = _fake_copies(given)
    if fakes:
        args, kwargs = tree_map_only(torch.Tensor, lambda one: fakes.get(id(one), one), (args, kwargs))
    try:
        return info.function(*args, **kwargs)
    except NotImplementedError as error:  # without a rule for the shape, PyTorch tries the kernel itself
        raise UnsupportedOperatorException(info.function) from error


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


def _is_real(call: OperatorCall) -> bool:
    """Whether an operator on real tensors, or on none, really runs: on the host and small enough, or on "meta"."""
    info, given, args, kwargs = call
    device = kwargs.get("device")
    if device is not None and device.type != "cpu":
        return device.type == "meta" and all(tensor.device.type in ("cpu", "meta") for tensor in given)
    if given:
        return all(
            tensor.device.type == "meta"
            or (tensor.device.type == "cpu" and tensor.numel() <= (MOST_WHOLE if _is_whole(tensor) else MOST_COMPUTED))
            for tensor in given
        )
    most = MOST_WHOLE if _makes_whole(info.name, args, kwargs) else MOST_MADE
    sizes = next((one for one in args if isinstance(one, (list, tuple))), None)
    if sizes is not None:
        return math.prod(sizes) <= most
    return all(abs(one) <= most for one in args if isinstance(one, (int, float)))


def _is_whole(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _makes_whole(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator without tensors makes whole numbers: by its dtype, or by what it makes without one."""
    dtype = kwargs.get("dtype")
    if dtype is not None:
        return not (dtype.is_floating_point or dtype.is_complex)
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
