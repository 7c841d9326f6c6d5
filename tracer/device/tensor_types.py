"""The older types of tensors on a GPU: ``torch.cuda.FloatTensor(2, 3)``, ``tensor.type("torch.cuda.HalfTensor")``.

PyTorch's own refuse to make tensors in a build without CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from triosim.tracer.patches import Patch

_GPU = "cuda"


class _TensorType(type):
    """The type of such a type, which has a ``dtype``, makes tensors when it is called, and tells which are of it."""

    dtype: torch.dtype
    is_cuda = True
    layout = torch.strided

    def __call__(cls, *given: Any, device: Any = _GPU) -> Any:
        """Return a tensor of a size, or of the values of a list or an array."""
        first = given[0] if len(given) == 1 else None
        if isinstance(first, torch.Tensor):
            return first.to(device, cls.dtype)
        if first is not None and not isinstance(first, (int, torch.Size)):
            return torch.tensor(first, dtype=cls.dtype, device=device)
        size = first if isinstance(first, torch.Size) else given
        return torch.empty(size or (0,), dtype=cls.dtype, device=device)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.is_cuda and value.dtype == cls.dtype


def patches() -> Iterator[Patch]:
    """Yield patches by which the types are there."""
    made = {}
    for name in [one for one in dir(torch.cuda) if one.endswith("Tensor")]:
        body = {"dtype": getattr(torch.cuda, name).dtype, "__module__": torch.cuda.__name__}
        made[f"{torch.cuda.__name__}.{name}"] = kind = _TensorType(name, (), body)
        yield Patch(torch.cuda, name, kind)
    yield Patch(torch.Tensor, "type", _conversion(made))
    yield Patch(torch, "set_default_tensor_type", _default(made))


def _conversion(made: dict[str, _TensorType]) -> Any:
    original = torch.Tensor.type

    def type(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **options: Any) -> Any:
        kind = made.get(dtype) if isinstance(dtype, str) else dtype
        if not isinstance(kind, _TensorType):
            return original(self, dtype, non_blocking, **options)
        return self.to(self.device if self.is_cuda else _GPU, kind.dtype, non_blocking=non_blocking)

    return type


def _default(made: dict[str, _TensorType]) -> Any:
    original = torch.set_default_tensor_type

    def set_default_tensor_type(t: Any) -> None:
        kind = made.get(t) if isinstance(t, str) else t
        on_gpu = isinstance(kind, _TensorType)
        torch.set_default_device(_GPU if on_gpu else None)  # type: ignore[no-untyped-call]
        if isinstance(kind, _TensorType):
            torch.set_default_dtype(kind.dtype)
        else:
            original(t)

    return set_default_tensor_type
