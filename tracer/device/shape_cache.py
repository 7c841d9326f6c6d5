"""A cache of what operators return on fake tensors: PyTorch's shape rules run once for each distinct call.

A training step calls the same operators on the same shapes for each layer and in each step. ``FakeTensorMode`` caches results
too, but a hit costs it hundreds of microseconds, because it allows for symbolic shapes, sparse and quantised tensors. Here the
key of a call is its operator, its other arguments, and the forms of its tensors: sizes, strides, offset, dtype, device,
dispatch keys, and the bytes of the storage (``triosim.tracer.recorder.tensor_forms``).
The result is stored as a recipe: a new tensor, a view of an argument, or an
argument itself. Calls that a recipe cannot describe (those that change an argument's shape or storage, have a tensor whose
value PyTorch knows, or return anything else) run by PyTorch's rules each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from triosim.tracer.recorder.tensor_forms import TensorForm, TensorForms

#: Types of arguments that are part of a key by their value.
_NUMBERS = frozenset(
    (int, float, bool, complex, str, type(None), torch.dtype, torch.layout, torch.memory_format, torch.Size)
)
#: Operators whose results depend on the tensors' data, or that change an argument's metadata.
UNCACHED = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)
_META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class _NewTensor:
    """A tensor that a call makes: a new one, or, with ``of``, a view of the argument with that position."""

    form: TensorForm
    of: int | None


#: An argument, by its position among the call's tensors; a tensor; or nothing.
_Part = int | _NewTensor | None


@dataclass(slots=True, eq=False)
class KnownCall:
    """What calls with one key have in common: the ``forms`` of their tensors, and the recipe of their result.

    ``parts`` are those of the result, one or, in a tuple or list (``kind``), several; None where no recipe describes it.
    ``attributes`` and the positions of ``changed`` arguments are kept here by those that find them.
    """

    forms: tuple[TensorForm, ...]
    tried: bool = False
    parts: tuple[_Part, ...] | None = None
    kind: Callable[[Iterable[Any]], Any] | None = None
    on_device: bool = False  # all of its tensors
    attributes: Mapping[str, Any] | None = None
    changed: tuple[int, ...] = ()


@dataclass(slots=True)
class Made:
    """What a recipe made: the result, its tensors, and the storage of each."""

    result: Any = None
    tensors: list[Any] = field(default_factory=list)
    forms: list[TensorForm] = field(default_factory=list)
    storages: list[Any] = field(default_factory=list)


class ShapeCache:
    """A cache of calls on fake tensors of ``mode``, whose shape rules run for the first of equal calls."""

    def __init__(self, mode: FakeTensorMode, forms: TensorForms) -> None:
        self._mode = mode
        self._forms = forms
        self._calls: dict[tuple[Any, ...], KnownCall] = {}
        self._attributes: dict[torch.device, dict[str, Any]] = {}  # of a new tensor, as PyTorch sets them

    def find(
        self, operator: int, args: tuple[Any, ...], kwargs: Mapping[str, Any], storages: list[Any]
    ) -> KnownCall | None:
        """Return what is known of such calls of an operator, by its number; None where a key does not determine the result.

        The storages of its tensors are added to ``storages``, in order.
        """
        key: list[Any] = [operator, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        if not self._describe(args, key, storages):
            return None
        if kwargs:
            key.append(tuple(kwargs))
            if not self._describe(kwargs.values(), key, storages):
                return None
        found = self._calls.get(tuple(key))
        if found is None:
            forms = tuple([one for one in key if type(one) is TensorForm])
            self._calls[tuple(key)] = found = KnownCall(forms)
        return found

    def _describe(self, values: Iterable[Any], key: list[Any], storages: list[Any]) -> bool:
        """Add these arguments to a key; return whether that could be done."""
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if value.constant is not None or value.layout is not torch.strided or value.fake_mode is not self._mode:
                    return False
                storage = value.untyped_storage()
                storages.append(storage)
                key.append(self._forms.of(value, storage))
            elif kind in _NUMBERS:
                key.append(kind)
                key.append(value)
            elif kind is list or kind is tuple:
                key.append(len(value))
                if not self._describe(value, key, storages):
                    return False
            elif kind is torch.device:
                key.append(value)
                if value.index is None and value.type == "cuda":
                    key.append(torch.cuda.current_device())
            else:
                return False
        return True

    def learn(
        self, call: KnownCall, given: Sequence[torch.Tensor], storages: Sequence[Any], result: Any, *, changes: bool
    ) -> Made | None:
        """Keep the recipe of the first result of a call, and return its parts; None where there is no recipe.

        ``changes`` says that the operator changes arguments, whose forms may then be others.
        """
        call.tried = True
        if changes and not self._are_as_before(call, given, storages):
            return None
        kind = type(result) if isinstance(result, (list, tuple)) else None
        whole = [result] if kind is None else list(result)
        parts = [self._part(given, storages, one) for one in whole]
        if any(part is _UNKNOWN for part in parts):
            return None
        made = Made(result)
        for part, tensor in zip(parts, whole, strict=True):
            if tensor is not None:
                made.tensors.append(tensor)
                made.forms.append(call.forms[part] if type(part) is int else part.form)
                made.storages.append(tensor.untyped_storage())
        new = [one._cdata for one, part in zip(made.storages, filter(_is_some, parts), strict=True) if _is_new(part)]
        if len(set(new)) != len(new):
            return None
        call.kind, call.parts = kind, tuple(parts)
        for one, again in zip(made.tensors, self.make(call, given, storages).tensors, strict=True):
            if torch._C._dispatch_keys(one) != torch._C._dispatch_keys(again):
                call.parts = None
                return None
        call.on_device = bool(call.forms or made.forms) and all(one.on_device for one in (*call.forms, *made.forms))
        return made

    def _are_as_before(self, call: KnownCall, given: Sequence[torch.Tensor], storages: Sequence[Any]) -> bool:
        after = [one.untyped_storage() for one in given]
        forms = [self._forms.of(*one) for one in zip(given, after, strict=True)]
        return list(call.forms) == forms and [one._cdata for one in storages] == [one._cdata for one in after]

    def _part(self, given: Sequence[torch.Tensor], storages: Sequence[Any], tensor: Any) -> Any:
        if tensor is None:
            return None
        if type(tensor) is not FakeTensor or tensor.constant is not None or tensor.layout is not torch.strided:
            return _UNKNOWN
        positions = [position for position, one in enumerate(given) if one is tensor]
        if positions:
            return positions[0] if len(positions) == 1 else _UNKNOWN
        if tensor.requires_grad or tensor.fake_mode is not self._mode:
            return _UNKNOWN
        storage = tensor.untyped_storage()
        owners = [position for position, one in enumerate(storages) if one._cdata == storage._cdata]
        made = _NewTensor(self._forms.of(tensor, storage), owners[0] if owners else None)
        if not owners:
            with torch._C._DisableTorchDispatch():
                nbytes = _empty(made.form).untyped_storage().nbytes()
            if made.form.offset or nbytes != storage.nbytes():
                return _UNKNOWN
        return made if len(owners) < 2 else _UNKNOWN

    def make(self, call: KnownCall, given: Sequence[torch.Tensor], storages: Sequence[Any]) -> Made:
        """Return the result of a recipe for the tensors of another call with the same key."""
        made = Made()
        assert call.parts is not None
        values: list[Any] = []
        for part in call.parts:
            if part is None:
                values.append(None)
                continue
            if type(part) is int:
                tensor, form, storage = given[part], call.forms[part], storages[part]
            else:
                tensor, form, storage = self._new(part, storages)
            values.append(tensor)
            made.tensors.append(tensor)
            made.forms.append(form)
            made.storages.append(storage)
        made.result = values[0] if call.kind is None else call.kind(values)
        return made

    def _new(self, part: Any, storages: Sequence[Any]) -> tuple[Any, TensorForm, Any]:
        form = part.form
        with torch._C._DisableTorchDispatch():
            if part.of is None:
                element = _empty(form)
                storage: Any = element.untyped_storage()
            else:
                storage = storages[part.of]
                element = torch.empty((0,), dtype=form.dtype, device=_META)
                element.set_(storage, form.offset, form.shape, form.stride)
        return self.tensor(element, form.device), form, storage

    def tensor(self, element: torch.Tensor, device: torch.device) -> FakeTensor:
        """Return ``FakeTensor(mode, element, device)``, faster: its attributes are copied from another one of the device."""
        known = self._attributes.get(device)
        if known is None:
            first = FakeTensor(self._mode, element, device)
            self._attributes[device] = dict(vars(first))
            return first
        made: FakeTensor = torch.Tensor._make_subclass(
            FakeTensor, element, False, dispatch_device=True, device_for_backend_keys=device
        )
        vars(made).update(known)
        return made


_UNKNOWN: Any = object()


def _is_some(part: Any) -> bool:
    return part is not None


def _is_new(part: Any) -> bool:
    return isinstance(part, _NewTensor) and part.of is None


def _empty(form: TensorForm) -> torch.Tensor:
    return torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=_META)
