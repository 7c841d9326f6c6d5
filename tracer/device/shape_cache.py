"""A cache of what operators return on fake tensors: PyTorch's shape rules run once for each distinct call.

A training step calls the same operators on the same shapes for each layer and in each step. ``FakeTensorMode`` caches results
too, but a hit costs it hundreds of microseconds, because it allows for symbolic shapes, sparse and quantised tensors. Here the
key of a call is its operator, its other arguments, and the metadata of its tensors: sizes, strides, offset, dtype, device,
dispatch keys, and the bytes of the storage. The result is stored as a recipe: a new tensor, a view of an argument, or an
argument itself. Calls that a recipe cannot describe (those that change an argument's shape or storage, have a tensor whose
value PyTorch knows, or return anything else) run by PyTorch's rules each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

#: Types of arguments that are part of a key by their value.
_NUMBERS = frozenset(
    (int, float, bool, complex, str, type(None), torch.dtype, torch.layout, torch.memory_format, torch.Size)
)
#: Operators whose results depend on the tensors' data, or that change an argument's metadata.
_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)
_META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class _NewTensor:
    """A tensor that a call makes: a new one, or, with ``of``, a view of the argument with that position."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    of: int | None


#: An argument, by its position among the call's tensors; a tensor; or nothing.
_Part = int | _NewTensor | None


@dataclass(frozen=True, slots=True)
class _Recipe:
    """The recipe of a call's result: one part, or a tuple or list of parts."""

    parts: tuple[_Part, ...]
    kind: Callable[[Iterable[Any]], Any] | None


class ShapeCache:
    """A cache of calls on fake tensors of ``mode``, whose shape rules run for the first of equal calls."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._recipes: dict[tuple[Any, ...], _Recipe | None] = {}  # None: no recipe describes it
        self._cacheable: dict[Any, bool] = {}  # by operator: whether its results follow from a key
        self._attributes: dict[torch.device, dict[str, Any]] = {}  # of a new tensor, as PyTorch sets them

    def run(
        self, function: Any, given: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Return what an operator returns; ``given`` are all tensors among its arguments, in order."""
        key = self._key(function, args, kwargs)
        recipe = None if key is None else self._recipes.get(key, _UNKNOWN)
        if key is None or recipe is None:
            return function(*args, **kwargs)
        if recipe is not _UNKNOWN:
            return self._result(recipe, given)
        before = [(*_state(tensor), tensor.untyped_storage()._cdata) for tensor in given]
        result = function(*args, **kwargs)
        same = before == [(*_state(tensor), tensor.untyped_storage()._cdata) for tensor in given]
        self._recipes[key] = self._recipe(given, result) if same else None
        return result

    def _key(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Return the key of a call; None where it does not determine the result."""
        cacheable = self._cacheable.get(function)
        if cacheable is None:
            self._cacheable[function] = cacheable = not any(tag in function.tags for tag in _TAGS)
        if not cacheable:
            return None
        key: list[Any] = [function, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        if not self._describe(args, key):
            return None
        if kwargs:
            key.append(tuple(kwargs))
            if not self._describe(kwargs.values(), key):
                return None
        return tuple(key)

    def _describe(self, values: Iterable[Any], key: list[Any]) -> bool:
        """Add these arguments to a key; return whether that could be done."""
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if value.constant is not None or value.layout is not torch.strided or value.fake_mode is not self._mode:
                    return False
                key += _state(value)
                key.append(value.dtype)
                key.append(value.fake_device)
                key.append(torch._C._dispatch_keys(value).raw_repr())
            elif kind in _NUMBERS:
                key.append(kind)
                key.append(value)
            elif kind is list or kind is tuple:
                key.append(len(value))
                if not self._describe(value, key):
                    return False
            elif kind is torch.device:
                key.append(value)
                if value.index is None and value.type == "cuda":
                    key.append(torch.cuda.current_device())
            else:
                return False
        return True

    def _recipe(self, given: Sequence[torch.Tensor], result: Any) -> _Recipe | None:
        """Return the recipe of a result; None where there is none."""
        kind = type(result) if isinstance(result, (list, tuple)) else None
        whole = [result] if kind is None else list(result)
        parts = [self._part(given, one) for one in whole]
        storages = [one.untyped_storage()._cdata for one, part in zip(whole, parts, strict=True) if _is_new(part)]
        if any(part is _UNKNOWN for part in parts) or len(set(storages)) != len(storages):
            return None
        found = _Recipe(tuple(parts), kind)
        made = self._result(found, given)
        for one, again in zip(whole, [made] if kind is None else made, strict=True):
            if one is not None and torch._C._dispatch_keys(one) != torch._C._dispatch_keys(again):
                return None
        return found

    def _part(self, given: Sequence[torch.Tensor], tensor: Any) -> Any:
        if tensor is None:
            return None
        if type(tensor) is not FakeTensor or tensor.constant is not None or tensor.layout is not torch.strided:
            return _UNKNOWN
        positions = [position for position, one in enumerate(given) if one is tensor]
        if positions:
            return positions[0] if len(positions) == 1 else _UNKNOWN
        if tensor.requires_grad or tensor.fake_mode is not self._mode:
            return _UNKNOWN
        shape, stride, offset, storage, nbytes = *_state(tensor)[:3], tensor.untyped_storage()._cdata, 0
        owners = [position for position, one in enumerate(given) if one.untyped_storage()._cdata == storage]
        made = _NewTensor(shape, stride, offset, tensor.dtype, tensor.fake_device, owners[0] if owners else None)
        if not owners:
            with torch._C._DisableTorchDispatch():
                nbytes = _empty(made).untyped_storage().nbytes()
            if offset or nbytes != tensor.untyped_storage().nbytes():
                return _UNKNOWN
        return made if len(owners) < 2 else _UNKNOWN

    def _result(self, recipe: _Recipe, given: Sequence[torch.Tensor]) -> Any:
        """Return the result of a recipe for the tensors of another call with the same key."""
        if recipe.kind is None:
            return self._one(recipe.parts[0], given)
        return recipe.kind([self._one(part, given) for part in recipe.parts])

    def _one(self, part: _Part, given: Sequence[torch.Tensor]) -> Any:
        if part is None:
            return None
        if type(part) is int:
            return given[part]
        assert isinstance(part, _NewTensor)
        with torch._C._DisableTorchDispatch():
            if part.of is None:
                element = _empty(part)
            else:
                element = torch.empty((0,), dtype=part.dtype, device=_META)
                element.set_(given[part.of].untyped_storage(), part.offset, part.shape, part.stride)
        return self.tensor(element, part.device)

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


def _is_new(part: Any) -> bool:
    return isinstance(part, _NewTensor) and part.of is None


def _state(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the metadata of a tensor that a call may change."""
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes()


def _empty(made: _NewTensor) -> torch.Tensor:
    return torch.empty_strided(made.shape, made.stride, dtype=made.dtype, device=_META)
