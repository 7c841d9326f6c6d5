"""Replaces what a training script calls besides operators, and what fake tensors cannot serve: loading, printing.

Data loaders load in the script's own process.
"""

from __future__ import annotations

import importlib
import inspect
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import wraps
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import profiler as autograd_profiler
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.data import DataLoader

from triosim.tracer.contents import storage_contents
from triosim.tracer.device import addresses, tensor_types
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.recorder.recorder import Recorder
from triosim.tracer.surroundings.after_imports import AfterImport, AfterImports
from triosim.tracer.surroundings.file_overlay import FileOverlay

_torchvision: list[Any] = []
_DATA: Any = torch.Tensor.data


def install(
    patches: Patches, recorder: Recorder, fake_mode: FakeTensorMode, libraries: Mapping[str, AfterImport]
) -> None:
    """Replace what needs a GPU, worker processes or data, until the patches are undone; and parts of ``libraries``."""
    patches.make(_patches(recorder, fake_mode))
    own = {"torch.distributed.checkpoint._state_dict_stager": _staged}
    AfterImports(patches, {**own, **libraries}, {"torchvision": complete_torchvision}).install()
    for module in (importlib.import_module("torch.optim.optimizer"), torch.utils._foreach_utils):
        patches.add(module, "_foreach_supported_types", FakeTensor)  # or optimizers take each parameter by itself
    swap = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # to move modules, whose real parameters become fake
    patches.callback(lambda: torch.__future__.set_swap_module_params_on_conversion(swap))
    module = torch.nn.Module
    sharded: Any = FSDPParam
    patches.make(
        [
            Patch(module, "_load_from_state_dict", _loaded_with(module._load_from_state_dict, swap)),
            Patch(sharded, "reset_sharded_param", _loaded_with(sharded.reset_sharded_param, swap)),
        ]
    )


def _staged(module: ModuleType) -> list[Patch]:
    """Let asynchronous checkpoints copy a fake tensor to the host, where they would copy the bytes of its storage."""
    stager = getattr(module, "StateDictStager", None)
    offload: Any = getattr(stager, "_offload_tensor", None)

    def _offload_tensor(self: Any, x: torch.Tensor, memo: Any, non_blocking: bool = False) -> Any:
        if not isinstance(x, FakeTensor):
            return offload(self, x, memo, non_blocking)
        memo[id(x)] = x.detach().to("cpu", copy=True)
        return memo[id(x)]

    return [] if offload is None else [Patch(stager, "_offload_tensor", _offload_tensor)]


def complete_torchvision() -> None:
    """Define the operators without which torchvision's import fails, where its compiled part cannot be loaded.

    That is so where torchvision, as PyPI has it, is built for CUDA and PyTorch is not. The definitions stay, as the imported
    torchvision does.
    """
    found = PathFinder.find_spec("torchvision")
    if _torchvision or found is None or found.origin is None:
        return
    try:
        torch.ops.load_library(Path(found.origin).with_name("_C.so"))  # type: ignore[no-untyped-call]
    except OSError:
        library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, operator):
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _torchvision.append(library)


def _patches(recorder: Recorder, fake_mode: FakeTensorMode) -> Iterator[Patch]:
    tensor = torch.Tensor
    yield Patch(torch.utils, "swap_tensors", _swap(fake_mode))
    yield Patch(torch.utils, "weakref", SimpleNamespace(getweakrefs=lambda tensor: []))
    yield Patch(FakeTensorMode, "avoid_device_init", property(lambda mode: True))
    yield Patch(fake_tensor.log, "disabled", True)  # it shows the frames of an error in the script
    yield Patch(fake_tensor, "init_gpu_context", lambda device: None, missing="leave")  # asks the driver, in 2.11
    # PyTorch itself reads the addresses of tensors, and would warn of each fake one.
    yield Patch(torch._C, "_set_warn_deprecated_on_mutable_data_ptr", lambda tensor: None, missing="leave")
    yield from addresses.patches()
    yield from tensor_types.patches()
    yield Patch(tensor, "data", property(_DATA.__get__, _assign))
    yield Patch(tensor, "pin_memory", lambda self, device=None: self)
    yield Patch(tensor, "is_pinned", lambda self, device=None: False)
    yield Patch(tensor, "record_stream", lambda self, stream: None)
    yield Patch(torch.UntypedStorage, "resize_", _resize(recorder))
    share = torch.UntypedStorage.share_memory_
    yield Patch(torch.UntypedStorage, "share_memory_", lambda self: self if self.device.type == "meta" else share(self))
    yield Patch(DataLoader, "__init__", _loader(recorder))
    yield Patch(autograd_profiler.profile, "__init__", _profile(recorder))


def _loaded_with(load: Any, swap: bool) -> Any:
    """Return a function that loads into parameters, or assigns them, and swaps them where the script asked for that."""

    @wraps(load)
    def function(self: Any, *args: Any, **kwargs: Any) -> None:
        torch.__future__.set_swap_module_params_on_conversion(swap)
        try:
            load(self, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(True)

    return function


def _swap(fake_mode: FakeTensorMode) -> Any:
    """Return a ``swap_tensors`` that works on fake tensors: PyTorch's refuses those with weak references, where it sees any.

    ``FakeTensorMode`` keeps some to each fake tensor that it made from another one, to return the same one again.
    Where it stands for an assignment, the first keeps the attributes that the script gave it, as on a GPU.
    """
    original = torch.utils.swap_tensors
    converter = fake_mode.fake_tensor_converter.meta_converter
    fake = FakeTensor(fake_mode, torch.empty(0, device="meta"), torch.device("cpu"))
    own = {*vars(fake), "_is_param"}  # of PyTorch

    def swap_tensors(first: torch.Tensor, second: torch.Tensor) -> None:
        converter.tensor_memo.clear()
        converter.describer.lookup_tensor.clear()
        assigns = sys._getframe(1).f_code in _ASSIGNING and not is_traceable_wrapper_subclass(second)
        kept = {
            name: value for name, value in vars(first).items() if name not in own and not name.startswith("_triosim")
        }
        original(first, second)  # type: ignore[no-untyped-call]
        if assigns:
            vars(first).update(kept)

    return swap_tensors


def _assign(self: torch.Tensor, value: torch.Tensor) -> None:
    """Assign ``Tensor.data``; of another device too, as PyTorch allows for real tensors.

    A real tensor cannot become fake in place, nor a fake one real: its object is swapped with one that is, as modules do.
    """
    fake = isinstance(self, FakeTensor), isinstance(value, FakeTensor)
    if fake[0] == fake[1]:
        _DATA.__set__(self, value)
        if fake[0]:
            self.fake_device = value.fake_device  # type: ignore[attr-defined]
        return
    with torch.no_grad():
        made = value.detach()
        if isinstance(self, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=self.requires_grad)
        else:
            made.requires_grad_(self.requires_grad)
    made.grad = None if self.grad is None or self.grad.device != made.device else self.grad
    torch.utils.swap_tensors(self, made)  # type: ignore[no-untyped-call]


#: What swaps tensors here where PyTorch assigns to one.
_ASSIGNING = frozenset((torch.nn.Module._apply.__code__, _assign.__code__))


def _resize(recorder: Recorder) -> Any:
    original = torch.UntypedStorage.resize_

    def resize_(self: Any, size: int) -> Any:
        result = original(self, size)
        recorder.storages.resized(self)
        storage_contents.drop_storage(self)
        return result

    return resize_


def _loader(recorder: Recorder) -> Any:
    original = DataLoader.__init__
    signature = inspect.signature(original)

    @wraps(original)  # Lightning makes a loader anew from its signature
    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: N807
        given = signature.bind(*args, **kwargs).arguments
        if given.get("num_workers"):
            recorder.note(
                f"the data loader's {given['num_workers']} processes are not started: it loads in the script's own process"
            )
            for name in ("num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context", "timeout"):
                given.pop(name, None)
        given.pop("pin_memory", None)
        original(**given)

    return __init__


def profiler_exports(files: FileOverlay) -> Iterator[Patch]:
    """Yield patches by which profiles go where the overlay puts them: PyTorch writes them in C++, past Python's files."""
    for owner in (autograd_profiler.profile, torch.profiler._KinetoProfile):
        original = owner.export_chrome_trace

        def export_chrome_trace(self: Any, path: Any, *args: Any, _original: Any = original, **options: Any) -> None:
            before = tempfile.tempdir
            with tempfile.TemporaryDirectory(dir=files.folder) as folder:
                made = os.path.join(folder, os.path.basename(path))
                tempfile.tempdir = folder  # for a compressed one, PyTorch makes another file
                try:
                    _original(self, made, *args, **options)
                finally:
                    tempfile.tempdir = before
                shutil.copyfile(made, path)

        yield Patch(owner, "export_chrome_trace", export_chrome_trace)


def _profile(recorder: Recorder) -> Any:
    """Return a profiler that profiles the host alone: of each operator PyTorch's would print that no GPU records its events."""
    original = autograd_profiler.profile.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        on_gpu = kwargs.get("use_device") == "cuda" or bool(kwargs.get("use_cuda"))
        original(self, *args, **({**kwargs, "use_cpu": True} if on_gpu else kwargs))
        if on_gpu and self.enabled:
            recorder.note("torch.profiler sees the host alone, in real time: there are no kernels in its profiles")
            self.profiler_kind = autograd_profiler.ProfilerState.KINETO
            self.kineto_activities.discard(autograd_profiler.ProfilerActivity.CUDA)

    return __init__
