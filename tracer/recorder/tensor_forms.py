"""The forms of fake tensors: sizes, strides and what else of their metadata decides what a call returns, as one object each."""

from __future__ import annotations

from typing import Any

import torch


class TensorForm:
    """The metadata of tensors that are alike but for their contents and storage.

    ``nbytes`` is the size of the storage. Tensors of one storage and one ``view`` are one tensor of a trace: their shapes,
    strides, offsets and dtypes are equal. ``name`` is the dtype's.
    """

    __slots__ = ("device", "dtype", "name", "nbytes", "offset", "on_device", "shape", "stride", "view")

    def __init__(self, tensor: Any, storage: Any, view: int) -> None:
        self.shape: tuple[int, ...] = tuple(tensor.shape)
        self.stride: tuple[int, ...] = tensor.stride()
        self.offset: int = tensor.storage_offset()
        self.dtype: torch.dtype = tensor.dtype
        self.name = str(tensor.dtype).removeprefix("torch.")
        self.device: torch.device = tensor.fake_device
        self.on_device: bool = tensor.fake_device.type == "cuda"
        self.nbytes: int = storage.nbytes()
        self.view = view


#: A tensor, by its form and its storage.
PlacedTensor = tuple[TensorForm, Any]


class TensorForms:
    """All forms of tensors so far; equal ones are one object."""

    def __init__(self) -> None:
        self._forms: dict[tuple[Any, ...], TensorForm] = {}
        self._views: dict[tuple[Any, ...], int] = {}

    def of(self, tensor: Any, storage: Any) -> TensorForm:
        """Return the form of a fake tensor in this storage."""
        shape, stride, offset, dtype = tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype
        keys = torch._C._dispatch_keys(tensor).raw_repr()
        key = (shape, stride, offset, dtype, storage.nbytes(), tensor.fake_device, keys)
        found = self._forms.get(key)
        if found is None:
            view = self._views.setdefault((shape, stride, offset, dtype), len(self._views))
            self._forms[key] = found = TensorForm(tensor, storage, view)
        return found
