"""Registers a fake CUDA device with PyTorch's C++ core, by replacing two of its objects: a device guard and hooks.

PyTorch knows a kind of device by two objects: a guard (``c10/core/impl``: the current device and stream) and hooks
(``ATen/detail/CUDAHooksInterface.h``: whether it is built, whether it is there). A build of PyTorch without CUDA has no guard,
and its hooks answer no. PyTorch has a guard for fake devices, ``FakeGuardImpl``, which it installs when the guard that is
there counts no devices: for a moment, ours. Two virtual functions of the hooks are replaced; their slots in the virtual table
are read from the headers that PyTorch ships, and checked by calling one of them. A build with CUDA has both objects, which
would ask the driver; they are replaced in the same way.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from triosim.tracer.patches import Patches
from triosim.tracer.pytorch_version import missing_api, required

_TORCH = Path(torch.__file__).parent
_CUDA = 1  # c10::DeviceType::CUDA
_DEVICE_TYPES = 22  # entries of the guard registry
_TABLE = 64  # more virtual functions than either class has
_HEADERS = ("AcceleratorHooksInterface.h", "CUDAHooksInterface.h")
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_HOOKS = "_ZN2at6detail12getCUDAHooksEv"
#: What C++ may still point to after a capture; it is small.
_kept: list[Any] = []


def install(patches: Patches) -> None:
    """Register the device until the patches are undone. Raises ``CaptureError`` when this build lacks what is replaced."""
    _install_guard(patches)
    _install_hooks(patches)


def _install_guard(patches: Patches) -> None:
    try:
        registry = (ctypes.c_void_p * _DEVICE_TYPES).in_dll(ctypes.CDLL(str(_TORCH / "lib" / "libc10.so")), _REGISTRY)
    except ValueError:
        raise missing_api(f"C++ symbol {_REGISTRY}") from None
    before = registry[_CUDA]
    function = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(lambda _: 0)  # whatever is asked: "no devices"
    address = ctypes.cast(function, ctypes.c_void_p).value
    table = (ctypes.c_void_p * _TABLE)(*[address] * _TABLE)
    stub = (ctypes.c_void_p * 1)(ctypes.addressof(table))
    _kept.extend([function, table, stub])
    registry[_CUDA] = ctypes.addressof(stub)
    patches.callback(lambda: registry.__setitem__(_CUDA, before))
    required(torch._C, "_ensureCUDADeviceGuardSet")()
    if registry[_CUDA] == ctypes.addressof(stub):
        raise missing_api("guard for fake devices")


def _install_hooks(patches: Patches) -> None:
    get = required(ctypes.CDLL(str(_TORCH / "lib" / "libtorch_cpu.so")), _HOOKS)
    get.restype = ctypes.c_void_p
    table_of = ctypes.cast(get(), ctypes.POINTER(ctypes.c_void_p))
    original = table_of[0]
    assert original is not None
    slots = _slots()
    if any(name not in slots for name in ("isBuilt", "hasPrimaryContext")):
        raise missing_api("C++ class at::CUDAHooksInterface")
    built = slots["isBuilt"]
    if _called(table_of, original) != [built]:
        raise missing_api("C++ class at::CUDAHooksInterface in the form that its headers say")
    # Two words before the table belong to it: its offset, and the class's description. Both functions answer 1, as one in C
    # of Python's own does: PyTorch asks them several times in each call of an operator, for which Python would be slow.
    word = ctypes.sizeof(ctypes.c_void_p)
    table = (ctypes.c_void_p * (_TABLE + 2))(*list((ctypes.c_void_p * (_TABLE + 2)).from_address(original - 2 * word)))
    for name in ("isBuilt", "hasPrimaryContext"):
        table[2 + slots[name]] = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value
    _kept.append(table)
    patches.callback(lambda: table_of.__setitem__(0, original))
    table_of[0] = ctypes.addressof(table) + 2 * word
    accelerator = torch._C._accelerator_getAccelerator()
    if accelerator is None or accelerator.type != "cuda":
        raise missing_api("accelerator of the kind 'cuda'")


def _slots() -> Mapping[str, int]:
    """Return the slots of the virtual functions in the table, from the headers; the first two are the destructor's."""
    slots: dict[str, int] = {}
    for header in _HEADERS:
        try:
            text = (_TORCH / "include" / "ATen" / "detail" / header).read_text(encoding="utf-8")
        except OSError:
            raise missing_api(f"header {header}") from None
        for name in re.findall(r"^\s*virtual\s+[^\n(]*?(~?\w+)\s*\(", text, re.M):
            if not name.startswith("~"):
                slots.setdefault(name, len(slots) + 2)
    return slots


def _called(table_of: Any, original: int) -> list[int]:
    """Return the slots that PyTorch calls when it is asked for the accelerator; each answers no."""
    calls: list[int] = []

    def answer_no(slot: int, _: Any) -> int:
        calls.append(slot)
        return 0

    prototype = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)
    functions = [prototype(partial(answer_no, slot)) for slot in range(_TABLE)]
    probe = (ctypes.c_void_p * _TABLE)(*[ctypes.cast(one, ctypes.c_void_p).value for one in functions])
    table_of[0] = ctypes.addressof(probe)
    try:
        torch._C._accelerator_getAccelerator()
    finally:
        table_of[0] = original
    return calls
