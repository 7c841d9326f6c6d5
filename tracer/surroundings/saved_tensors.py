"""Saves tensors of the fake device as their shapes, with what is known of their contents, and loads checkpoints by shape.

``torch.save`` writes a file as always, in which a fake tensor is a call of ``rebuilt`` with its metadata. Loaded is a tensor of
the same shape on the device that is asked for. Of a real checkpoint, which is mapped and not read, small tensors and whole
numbers are real, others fake.
"""

from __future__ import annotations

import copyreg
import os
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode
from torch.utils._pytree import tree_map, tree_map_only

from triosim.tracer.contents import storage_contents
from triosim.tracer.contents.host_twins import HostTwins
from triosim.tracer.device.dispatch_mode import MOST_MADE, DeviceMode
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.recorder.recorder import Recorder
from triosim.tracer.surroundings.file_overlay import FileOverlay

_SAVED = "_triosim_saved"
_PROTOCOL = 2  # of pickle, as ``torch.save`` has it


def install(patches: Patches, recorder: Recorder, files: FileOverlay | None, twins: HostTwins) -> None:
    """Save and load shapes, in an overlay, until the patches are undone. Without one, nothing is saved.

    Tensors on the host into which something unknown was written are saved, and copied, as their ``twins``.
    """
    copyreg.pickle(FakeTensor, _reduced)  # type: ignore[arg-type]
    for kind in (torch.Tensor, torch.nn.Parameter):
        copyreg.pickle(kind, _reduced_with(twins))
    for kind in (FakeTensor, torch.Tensor, torch.nn.Parameter):
        patches.callback(copyreg.dispatch_table.pop, kind, None)
    patches.enter_context(torch.serialization.safe_globals([rebuilt]))
    patches.make(_patches(recorder, files))
    patches.make(_of_twins(twins))


def rebuilt(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    requires_grad: bool,
    is_parameter: bool,
    contents: torch.Tensor | None,
) -> torch.Tensor:
    """Return a tensor that was saved: a fake one, or, while all dispatch modes are off, one on "meta" that says what it was."""
    if _get_current_dispatch_mode() is not None:
        return _made(shape, stride, dtype, torch.device(device), requires_grad, is_parameter, contents)
    found = torch.empty((0,), device="meta")
    setattr(found, _SAVED, (shape, stride, dtype, device, requires_grad, is_parameter, contents))
    return found


def _of_twins(twins: HostTwins) -> Iterator[Patch]:
    tensor: Any = torch.Tensor
    copy = tensor.__deepcopy__

    def __deepcopy__(self: Any, memo: Any) -> Any:  # noqa: N807
        twin = twins.of(self)
        if twin is self or not self.is_leaf or id(self) in memo:
            return copy(self, memo)
        with torch.no_grad():
            made = twin.clone().requires_grad_(self.requires_grad)
        memo[id(self)] = torch.nn.Parameter(made, self.requires_grad) if isinstance(self, torch.nn.Parameter) else made
        return memo[id(self)]

    yield Patch(tensor, "__deepcopy__", __deepcopy__)


def _reduced_with(twins: HostTwins) -> Callable[[torch.Tensor], Any]:
    """Return how a tensor is pickled that is real, unless something unknown was written into it."""

    def reduced(tensor: torch.Tensor) -> Any:
        twin = twins.of(tensor)
        return tensor.__reduce_ex__(_PROTOCOL) if twin is tensor else _reduced(twin, like=tensor)

    return reduced


def _reduced(tensor: torch.Tensor, like: torch.Tensor | None = None) -> tuple[Any, ...]:
    """Return how a fake tensor is pickled, as a parameter where it is one, or the one that it is ``like``."""
    like = tensor if like is None else like
    known = storage_contents.of(tensor.detach())
    with torch._C._DisableTorchDispatch():
        contents = None if known is None else known.clone()
    parameter = isinstance(like, torch.nn.Parameter)
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    return rebuilt, (shape, stride, tensor.dtype, str(tensor.device), like.requires_grad, parameter, contents)


def _made(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    requires_grad: bool,
    is_parameter: bool,
    contents: torch.Tensor | None,
) -> torch.Tensor:
    made = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    mode = _get_current_dispatch_mode()
    if contents is not None:
        storage_contents.write(made, contents)
    elif isinstance(mode, DeviceMode) and not storage_contents.is_fake(made):
        made = mode.twins.unknown(made)
    else:
        storage_contents.forget(made)
    return torch.nn.Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)


def placed(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a loaded tensor on a device of the script's: fake where it is large."""
    saved = getattr(tensor, _SAVED, None)
    if saved is not None:
        shape, stride, dtype, _, *others = saved
        return _made(shape, stride, dtype, device, *others)
    if tensor.numel() <= MOST_MADE or not tensor.dtype.is_floating_point:
        moved = tensor.detach().to(device)
        return torch.nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else moved
    parameter = isinstance(tensor, torch.nn.Parameter)
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    return _made(shape, stride, tensor.dtype, device, tensor.requires_grad, parameter, None)


def _everywhere(found: Any, loaded: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return what was loaded with its tensors on the script's devices, those of modules too; what was one tensor stays one."""
    known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    modules: set[torch.nn.Module] = set()

    def replaced(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            if id(one) not in known:
                known[id(one)] = (one, loaded(one))
            return known[id(one)][1]
        for module in one.modules() if isinstance(one, torch.nn.Module) else ():
            if module not in modules:
                modules.add(module)
                state = {name: tree_map_only(torch.Tensor, replaced, value) for name, value in vars(module).items()}
                vars(module).update(state)
        return one

    return tree_map(replaced, found)


def _patches(recorder: Recorder, files: FileOverlay | None) -> Iterator[Patch]:
    save, load = torch.save, torch.load

    def save_shapes(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            save(obj, f, *args, **kwargs)
            return
        if files is None:
            recorder.note("torch.save writes nothing: fake tensors have no data")
            return
        unfinished = f"{os.fspath(f)}.{os.getpid()}.{threading.get_ident()}.part"  # ranks may write one file
        try:
            with open(unfinished, "wb") as file:  # PyTorch would open it in C++
                save(obj, file, *args, **kwargs)
            os.replace(unfinished, f)
        except BaseException:
            with suppress(OSError):
                os.unlink(unfinished)
            raise

    def load_shapes(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        places: dict[int, str] = {}

        def keep(storage: Any, place: str) -> Any:
            places[storage._cdata] = place
            return storage

        if isinstance(f, (str, os.PathLike)):
            f = f if files is None else files.to_read(f)
            kwargs["mmap"] = zipfile.is_zipfile(f)
        with _disable_current_modes():
            try:
                found = load(f, keep, *args, **kwargs)
            except RuntimeError as error:
                if "Callable map_location" not in str(error):  # as a file with distributed tensors does
                    raise
                if hasattr(f, "seek"):
                    f.seek(0)
                found = load(f, "cpu", *args, **kwargs)

        def loaded(tensor: Any) -> torch.Tensor:
            if hasattr(tensor, "_local_tensor"):  # a distributed one
                tensor._local_tensor = loaded(tensor._local_tensor)
                return tensor  # type: ignore[no-any-return]
            if isinstance(tensor, ShardedTensor):
                for shard in tensor.local_shards():
                    shard.tensor = loaded(shard.tensor)
                return tensor  # type: ignore[return-value]
            saved = getattr(tensor, _SAVED, None)
            place = saved[3] if saved is not None else places.get(tensor.untyped_storage()._cdata, "cpu")
            return placed(tensor, _device(map_location, place))

        return _everywhere(found, loaded)

    yield Patch(torch, "save", save_shapes)
    yield Patch(torch, "load", load_shapes)
    yield Patch(torch.serialization, "save", save_shapes)
    yield Patch(torch.serialization, "load", load_shapes)


def _device(map_location: Any, place: str) -> torch.device:
    """Return where a tensor that was saved in a place is loaded (``torch.load``)."""
    if map_location is None:
        return torch.device(place)
    if isinstance(map_location, dict):
        return torch.device(map_location.get(place, place))
    if callable(map_location):
        return _device_of_call(map_location, place)
    return torch.device(map_location)


def _device_of_call(map_location: Any, place: str) -> torch.device:
    """Return where a function puts a storage; one that moves it to a GPU, which is not there, fails."""
    with _disable_current_modes():
        try:
            found = map_location(torch.UntypedStorage(0), place)
        except (RuntimeError, AssertionError):
            return torch.device("cuda")
    return torch.device(place) if found is None else found.device  # type: ignore[no-any-return]
