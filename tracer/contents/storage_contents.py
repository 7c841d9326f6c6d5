"""What is known of the contents of fake tensors, kept with their storages, so that all views of one agree.

A storage of which something is known has a real one on the host beside it, and a mask of its known bytes unless all are. What
is noted of a tensor (``note``) holds until its storage is written to, through whichever view.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

#: Tensors of more elements have no known contents ...
MOST_ELEMENTS = 2**16
#: ... but for what follows from routing that is drawn, whose masks have an element for each token and expert.
MOST_DRAWN = 2**24
#: The attribute of a storage of which something is known.
CONTENTS = "_triosim_contents"
_WRITES = "_triosim_writes"
#: The attribute of a storage with a real one, of what each element is assumed to be where it is not known.
_ASSUMED = "_triosim_assumed"


@dataclass(slots=True)
class _Contents:
    """A real storage and, in a storage of the same size, 1 for each byte that is known; without one, all are.

    What follows from it is known of tensors of so many elements at ``most``.
    """

    real: Any
    known: Any = None
    most: int = MOST_ELEMENTS


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a fake one, on the device or the host."""
    return hasattr(tensor, "fake_device")


def of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a real tensor on the host with a tensor's contents, in the same memory for all its views; None if any is unknown.

    A real tensor on the host is itself.
    """
    if not is_fake(tensor):
        return tensor if tensor.device.type == "cpu" else None
    found = _contents(tensor)
    return _real(tensor, found.real) if found is not None and _is_known(tensor, found) else None


def is_known(tensor: torch.Tensor) -> bool:
    """Whether all of a tensor's contents are known."""
    if not is_fake(tensor):
        return tensor.device.type == "cpu"
    found = _contents(tensor)
    return found is not None and _is_known(tensor, found)


def most_elements(tensors: Iterable[torch.Tensor]) -> int:
    """Return how many elements tensors have at most whose contents are known as they follow from these."""
    found = [getattr(one.untyped_storage(), CONTENTS, None) for one in tensors if is_fake(one)]
    return max([one.most for one in found if one is not None], default=MOST_ELEMENTS)


def known_part(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """Return real contents and a mask of the elements that are known (None: all); None where nothing is known."""
    if not is_fake(tensor):
        return (tensor, None) if tensor.device.type == "cpu" else None
    found = _contents(tensor)
    if found is None:
        return None
    if found.known is None:
        return _real(tensor, found.real), None
    with torch._C._DisableTorchDispatch():
        mask = _mask(tensor, found).all(-1)
        return None if not mask.any() else (_real(tensor, found.real), None if mask.all() else mask)


def real_or_zeros(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's real contents as far as they are known; zeros, without memory of their own, where nothing is."""
    found = _contents(tensor) if is_fake(tensor) else None
    if found is not None:
        return _real(tensor, found.real)
    if tensor.device.type == "cpu" and not is_fake(tensor):
        return tensor
    with torch._C._DisableTorchDispatch():
        return torch.zeros((), dtype=tensor.dtype).expand(tensor.size())


def write(
    tensor: torch.Tensor, contents: torch.Tensor | None, mask: torch.Tensor | None = None, most: int = MOST_ELEMENTS
) -> None:
    """Write real contents, of which ``mask`` says what is known, into a tensor, real or fake; None makes it unknown.

    Contents of another shape are taken in order. What has more elements than ``most`` becomes unknown.
    """
    if contents is None:
        forget(tensor)
        return
    with torch._C._DisableTorchDispatch():
        contents = contents.reshape(tensor.size())
        if not is_fake(tensor):
            tensor.copy_(contents)
            return
        was_written(tensor)
        drop_assumed(tensor)
        set_contents(tensor, contents, None if mask is None else mask.reshape(tensor.size()), most)


def forget(tensor: torch.Tensor) -> None:
    """Make a tensor's contents, and what is noted of its storage, unknown; other parts of its contents stay known."""
    if is_fake(tensor):
        was_written(tensor)
        drop_assumed(tensor)
        drop_contents(tensor)


def set_contents(
    tensor: torch.Tensor, contents: torch.Tensor, mask: torch.Tensor | None, most: int = MOST_ELEMENTS
) -> None:
    """Set the contents of a fake tensor, if it has no more elements than ``most``, and which of them are known."""
    if make_room(tensor, most):
        with torch._C._DisableTorchDispatch():
            real_or_zeros(tensor).copy_(contents)
        set_mask(tensor, mask)


def drop_contents(tensor: torch.Tensor) -> None:
    """Make the contents of a fake tensor unknown; other parts of its storage stay known."""
    storage = tensor.untyped_storage()
    if not hasattr(storage, CONTENTS):
        return
    if _contents(tensor) is None or is_whole(tensor) or storage.nbytes() > MOST_ELEMENTS * tensor.element_size():
        drop_storage(storage)
    else:
        with torch._C._DisableTorchDispatch():
            set_mask(tensor, torch.zeros((1,) * tensor.dim(), dtype=torch.bool))


def drop_storage(storage: torch.UntypedStorage) -> None:
    """Make all contents of a storage unknown."""
    if hasattr(storage, CONTENTS):
        delattr(storage, CONTENTS)


def share(storage: torch.UntypedStorage, real: torch.UntypedStorage) -> None:
    """Let a real storage hold the contents of a fake one of the same size, all of them known."""
    setattr(storage, CONTENTS, _Contents(real))


def make_room(tensor: torch.Tensor, most: int = MOST_ELEMENTS) -> bool:
    """Let the storage of a fake tensor have contents, none of which are known yet; return whether it is small enough."""
    found = _contents(tensor)
    if found is not None:
        found.most = max(found.most, most)
        return True
    storage = tensor.untyped_storage()
    nbytes = storage.nbytes()
    if nbytes > most * tensor.element_size():
        return False
    setattr(storage, CONTENTS, _Contents(_bytes(nbytes), None if is_whole(tensor) else _bytes(nbytes), most))
    return True


def set_mask(tensor: torch.Tensor, mask: torch.Tensor | None) -> None:
    """Say which elements of a tensor that has contents are known now: all without a mask."""
    found = _contents(tensor)
    if mask is None and (found.known is None or is_whole(tensor)):
        found.known = None
        return
    with torch._C._DisableTorchDispatch():
        if found.known is None:
            found.known = _bytes(found.real.nbytes(), 1)
        _mask(tensor, found).copy_(torch.ones((), dtype=torch.bool) if mask is None else mask.unsqueeze(-1))
        known = torch.empty((0,), dtype=torch.bool).set_(found.known)
        if known.all():
            found.known = None
        elif not known.any():
            drop_storage(tensor.untyped_storage())


def assumed(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return what each element of a fake tensor is assumed to be, in the same memory for all its views; None if nothing is.

    Known elements are what they are known to be, not this.
    """
    storage = tensor.untyped_storage()
    found = getattr(storage, _ASSUMED, None)
    return _real(tensor, found) if found is not None and found.nbytes() == storage.nbytes() else None


def assume_elements(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the same, where the other elements of its storage are assumed to be 1 so far; None if it is too large."""
    found = assumed(tensor)
    nbytes = tensor.untyped_storage().nbytes()
    if found is not None or nbytes > MOST_ELEMENTS * tensor.element_size() or nbytes % tensor.element_size():
        return found
    with torch._C._DisableTorchDispatch():
        ones = torch.ones(nbytes // tensor.element_size(), dtype=tensor.dtype)
    setattr(tensor.untyped_storage(), _ASSUMED, ones.untyped_storage())
    return assumed(tensor)


def drop_assumed(tensor: torch.Tensor) -> None:
    """Assume nothing of the elements of a fake tensor any more; other parts of its storage stay as they are."""
    found = assumed(tensor)
    if found is None:
        return
    if is_whole(tensor):
        delattr(tensor.untyped_storage(), _ASSUMED)
    else:
        with torch._C._DisableTorchDispatch():
            found.fill_(1)


def has_contents(tensor: torch.Tensor) -> bool:
    """Whether something is known of a fake tensor's storage."""
    return hasattr(tensor.untyped_storage(), CONTENTS)


def note(tensor: torch.Tensor, name: str, value: object) -> None:
    """Note something of a tensor, until its storage is written to."""
    storage = tensor.untyped_storage()
    writes = getattr(storage, _WRITES, None)
    if writes is None:
        setattr(storage, _WRITES, writes := 0)
    setattr(tensor, name, (writes, value))


def noted(tensor: torch.Tensor, name: str) -> Any:
    """Return what is noted of a tensor by this name; None if nothing is."""
    found = getattr(tensor, name, None)
    if found is None or found[0] != getattr(tensor.untyped_storage(), _WRITES, None):
        return None
    return found[1]


def was_written(tensor: torch.Tensor) -> None:
    """Forget what is noted of all views of a tensor's storage: it is written to."""
    storage = tensor.untyped_storage()
    writes = getattr(storage, _WRITES, None)
    if writes is not None:
        setattr(storage, _WRITES, writes + 1)


def _contents(tensor: torch.Tensor) -> Any:
    """Return the contents of a tensor's storage; None if there are none, or the storage has changed its size."""
    storage = tensor.untyped_storage()
    found = getattr(storage, CONTENTS, None)
    return found if found is not None and found.real.nbytes() == storage.nbytes() else None


def _is_known(tensor: torch.Tensor, found: _Contents) -> bool:
    if found.known is None:
        return True
    with torch._C._DisableTorchDispatch():
        return bool(_mask(tensor, found).all())


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its storage."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes() and tensor.is_contiguous()


def _bytes(count: int, value: int = 0) -> Any:
    with torch._C._DisableTorchDispatch():
        return torch.full((count,), value, dtype=torch.bool).untyped_storage()


def _real(tensor: torch.Tensor, storage: Any) -> torch.Tensor:
    """Return the real tensor, in a real storage, that corresponds to a fake one."""
    with torch._C._DisableTorchDispatch():
        real = torch.empty((0,), dtype=tensor.dtype)
        real.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        if tensor.is_conj():
            real = torch._conj(real)
        return torch._neg_view(real) if tensor.is_neg() else real


def _mask(tensor: torch.Tensor, found: _Contents) -> torch.Tensor:
    """Return which bytes of a tensor are known, with the bytes of an element as the last dimension."""
    size = tensor.element_size()
    shape, strides = (*tensor.size(), size), (*[size * one for one in tensor.stride()], 1)
    return torch.empty((0,), dtype=torch.bool).set_(found.known, size * tensor.storage_offset(), shape, strides)
