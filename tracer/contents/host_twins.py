"""Fake tensors in place of real ones on the host, into which something unknown was written (``total += loss.cpu()``).

A real tensor cannot become fake while the script holds it and views of it, so its storage gets a fake one beside it, its twin,
whose known contents are the real storage itself. From then on operators work on the twin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from triosim.tracer.contents import storage_contents
from triosim.tracer.contents.storage_contents import is_fake, is_known

_TWIN = "_triosim_twin"
_HOST = torch.device("cpu")


class HostTwins:
    """The twins of a fake device; ``make`` returns a fake tensor for one on "meta"."""

    def __init__(self, make: Callable[[torch.Tensor, torch.device], torch.Tensor]) -> None:
        self._make = make
        self.exist = False

    def add(self, changed: Iterable[torch.Tensor], given: Iterable[torch.Tensor]) -> None:
        """Give twins to the real ones of tensors that an operator changes, if it is given anything unknown."""
        real = [one for one in changed if not is_fake(one) and one.device == _HOST]
        if not real or all(map(is_known, given)):
            return
        for one in real:
            storage: Any = one.untyped_storage()
            if getattr(storage, _TWIN, None) is None:
                with torch._C._DisableTorchDispatch():
                    twin = torch.empty((storage.nbytes(),), dtype=torch.uint8, device="meta").untyped_storage()
                storage_contents.share(twin, storage)
                setattr(storage, _TWIN, twin)
        self.exist = True

    def unknown(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake tensor on the host with the shape of a real one, of which nothing is known."""
        with torch._C._DisableTorchDispatch():
            element = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
        return self._make(element, _HOST)

    def of(self, tensor: Any) -> Any:
        """Return the twin of a real tensor that has one; any other tensor is returned as it is."""
        if not self.exist or is_fake(tensor) or tensor.device != _HOST:
            return tensor
        storage = getattr(tensor.untyped_storage(), _TWIN, None)
        if storage is None:
            return tensor
        with torch._C._DisableTorchDispatch():
            element = torch.empty((0,), dtype=tensor.dtype, device="meta")
            element.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        return self._make(element, _HOST)
