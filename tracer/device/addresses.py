"""The addresses of fake tensors, which hold no data: by them libraries tell which tensors share memory.

Each storage has a range of addresses of its own, which no other one ever has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from triosim.tracer.patches import Patch

_FIRST = 0x7F00_0000_0000  # where CUDA's addresses usually lie
_ALIGNMENT = 512  # of the caching allocator
_RANGE = "_triosim_addresses"


def patches() -> Iterator[Patch]:
    """Yield the patches by which ``data_ptr`` of fake tensors and of their storages gives an address."""
    storage_address, tensor_address = torch.UntypedStorage.data_ptr, torch.Tensor.data_ptr
    free = _FIRST

    def of_storage(self: Any) -> int:
        nonlocal free
        nbytes = self.nbytes()
        if nbytes == 0 or self.device.type != "meta":  # as fake storages say
            return int(storage_address(self))
        found: range | None = getattr(self, _RANGE, None)
        if found is None or len(found) < nbytes:
            found = range(free, free + nbytes)
            free += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
            setattr(self, _RANGE, found)
        return found.start

    def of_tensor(self: torch.Tensor) -> int:
        if not isinstance(self, FakeTensor) or self.numel() == 0:
            return tensor_address(self)
        return of_storage(self.untyped_storage()) + self.storage_offset() * self.element_size()

    yield Patch(torch.UntypedStorage, "data_ptr", of_storage)
    yield Patch(torch.Tensor, "data_ptr", of_tensor)
