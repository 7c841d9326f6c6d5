"""Lets the script's other threads work on the fake device, such as those that load a checkpoint or copy the next batch to it.

Modes of PyTorch hold in the thread that enters them. Each thread that the script starts enters them too. Its operators run
one at a time with the main thread's and are not recorded: in which order the threads' operators come changes from run to run.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _push_mode

from triosim.tracer.device.dispatch_mode import DeviceMode
from triosim.tracer.patches import Patch, Patches

#: Where a mode holds the threads that are inside of one of its kernels.
_INSIDE = "_threads_in_kernels"


class _UnrecordedMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode of a thread, which has the device's mode run its operators."""

    def __init__(self, mode: DeviceMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode = mode

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        with self._mode.in_turn(), self._mode.muted():
            return self._mode.__torch_dispatch__(function, types, args, kwargs)


class _InThisThread:
    """Whether a mode is inside of a kernel, where its tensors say that they are on "meta": each thread by itself."""

    def __get__(self, mode: FakeTensorMode | None, owner: type) -> bool:
        return mode is not None and threading.get_ident() in mode.__dict__.get(_INSIDE, ())

    def __set__(self, mode: FakeTensorMode, inside: bool) -> None:
        threads = mode.__dict__.setdefault(_INSIDE, set())
        (threads.add if inside else threads.discard)(threading.get_ident())


def install(patches: Patches, mode: DeviceMode, fake_mode: FakeTensorMode) -> None:
    """Let threads that are started work as this one, which has entered the modes, until the patches are undone."""
    lifts = torch._C._only_lift_cpu_tensors()
    run: Any = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def run_on_the_device(thread: threading.Thread) -> None:
        torch._C._set_only_lift_cpu_tensors(lifts)  # as entering a mode of fake tensors says
        _push_mode(fake_mode)  # not entered: what a mode notes on entering is of one thread
        with _UnrecordedMode(mode):
            run(thread)

    patches.make(
        [
            Patch(threading.Thread, "_bootstrap_inner", run_on_the_device),
            Patch(FakeTensorMode, "in_kernel_invocation", _InThisThread()),
        ]
    )
