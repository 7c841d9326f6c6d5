"""What the host reads of fake tensors as a whole: lists, arrays, and how they are printed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from triosim.tracer.contents import assumed_values, storage_contents
from triosim.tracer.contents.host_twins import HostTwins
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.recorder.device_tensors import on_device
from triosim.tracer.recorder.recorder import Recorder


def install(patches: Patches, recorder: Recorder, twins: HostTwins) -> None:
    """Serve what the host reads until the patches are undone."""
    patches.make(_patches(recorder, twins))


def _patches(recorder: Recorder, twins: HostTwins) -> Iterator[Patch]:
    tensor = torch.Tensor
    yield Patch(tensor, "numpy", _numpy(recorder, twins))
    for owner in (tensor, FakeTensor):  # PyTorch's fake tensors read one element after the other
        yield Patch(owner, "tolist", _tolist(recorder, twins))
    yield Patch(tensor, "__repr__", _repr(recorder, twins))
    yield Patch(tensor, "__format__", _format(twins))


def _numpy(recorder: Recorder, twins: HostTwins) -> Any:
    original = torch.Tensor.numpy

    def numpy(self: torch.Tensor, *, force: bool = False) -> Any:
        self = twins.of(self)
        if not isinstance(self, FakeTensor):
            return original(self, force=force)
        if on_device(self) and not force:
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )  # as PyTorch says it
        return original(_contents(self, recorder))

    return numpy


def _tolist(recorder: Recorder, twins: HostTwins) -> Any:
    original = torch.Tensor.tolist

    def tolist(self: torch.Tensor) -> Any:
        self = twins.of(self)
        return original(_contents(self, recorder) if isinstance(self, FakeTensor) else self)  # type: ignore[no-untyped-call]

    return tolist


def _contents(tensor: torch.Tensor, recorder: Recorder) -> torch.Tensor:
    """Return a fake tensor's contents as the host reads them: what is unknown has one assumed value."""
    part = storage_contents.known_part(tensor)
    if part is not None and part[1] is None:
        if on_device(tensor):
            recorder.value_read(known=True)
        return part[0]
    assumed = storage_contents.assumed(tensor)
    value = assumed_values.value(tensor) if assumed is None or tensor.numel() == 1 else "what follows from all 1"
    recorder.value_read(
        f"all {value}" if part is None and assumed is None and tensor.dim() else value,
        known=assumed is None and assumed_values.is_known(tensor),
    )
    with torch._C._DisableTorchDispatch():
        dtype = torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype
        made = torch.full(tensor.shape, value, dtype=dtype) if assumed is None else assumed.to(dtype).clone()
        return made if part is None else torch.where(part[1], part[0].to(dtype), made)


def _repr(recorder: Recorder, twins: HostTwins) -> Any:
    """Print a tensor as PyTorch does on a GPU: an unknown one as it prints those without data, a single number as assumed."""
    original = torch.Tensor.__repr__

    def __repr__(self: torch.Tensor, *, tensor_contents: Any = None) -> str:  # noqa: N807
        self = twins.of(self)
        if not isinstance(self, FakeTensor) or self.is_meta:
            return original(self, tensor_contents=tensor_contents)
        contents = None if self.dim() and not storage_contents.is_known(self) else _contents(self, recorder)
        device = [f"device='{self.device}'"] if on_device(self) else []
        kind = [] if self.dtype in (torch.get_default_dtype(), torch.int64, torch.bool) else [f"dtype={self.dtype}"]
        if contents is None:
            given = ["...", *device, f"size={tuple(self.size())}", *kind]
        else:
            with torch._C._DisableTorchDispatch():
                numbers, _, _ = original(contents.to(self.dtype)).partition(", dtype=")
            given = [numbers.removeprefix("tensor(").removesuffix(")"), *device, *kind]
        graph = [f"grad_fn=<{type(self.grad_fn).__name__}>"] if self.grad_fn is not None else []
        requires = ["requires_grad=True"] if self.requires_grad and not graph else []
        text = f"tensor({', '.join((*given, *graph, *requires))})"
        return f"Parameter containing:\n{text}" if isinstance(self, torch.nn.Parameter) else text

    return __repr__


def _format(twins: HostTwins) -> Any:
    """Format a tensor of one element as its number, which PyTorch does only for tensors of no subclass."""
    original = torch.Tensor.__format__

    def __format__(self: torch.Tensor, form: str) -> str:  # noqa: N807
        self = twins.of(self)
        if isinstance(self, FakeTensor) and not self.dim() and not self.is_meta:
            return format(self.item(), form)
        return original(self, form)  # type: ignore[no-untyped-call,no-any-return]

    return __format__
