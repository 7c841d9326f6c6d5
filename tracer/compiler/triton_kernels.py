"""Triton kernels that a script launches on the fake device: a launch is one operator, named after the kernel.

Triton is the one that is installed. What needs a GPU is replaced: its driver, the launch, and the measurements by which
``triton.autotune`` chooses a configuration (the first one is taken). Which arguments a kernel reads and writes, PyTorch finds
in Triton's intermediate code, which is made without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch._higher_order_ops import triton_kernel_wrap as wrap

from triosim.gpus import Gpu
from triosim.operators.features import TRITON
from triosim.tracer.contents import storage_contents
from triosim.tracer.device.dispatch_mode import DeviceMode
from triosim.tracer.patches import Patch
from triosim.tracer.recorder.device_tensors import on_device

#: By these names ``torch.compile`` and ``torch.library.wrap_triton`` launch kernels.
LAUNCHES = (wrap.triton_kernel_wrapper_mutation, wrap.triton_kernel_wrapper_functional)
#: The width of the memory's bus, in bits; with it goes a clock that gives the GPU's bandwidth.
_BUS = 4096
#: What a compiled kernel says that it uses, as none is compiled: registers of a thread, and bytes of shared memory.
_REGISTERS, _SHARED = 64, 16384


def patches_after_import(mode: DeviceMode, gpu: Gpu) -> Callable[[ModuleType], list[Patch]]:
    """Return the function that makes the patches of ``triton.runtime``, once that is imported."""

    def patches(runtime: ModuleType) -> list[Patch]:
        launcher = _Launcher(mode)
        return [
            Patch(runtime.JITFunction, "run", launcher.run),
            Patch(runtime.Autotuner, "_bench", lambda *_, **__: [0.0, 0.0, 0.0]),
            Patch(type(runtime.driver), "active", property(lambda _: _driver(gpu))),
        ]

    return patches


def launch_traced(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Launch a kernel as traced code does: ``function`` is one of ``LAUNCHES``.

    The compiler runs those that return what they change in place, and so does this.
    """
    changed = kwargs.pop("tensors_to_clone", ())
    wrap.triton_kernel_wrapper_mutation_dense(*args, **kwargs)
    return {name: kwargs["kwargs"][name] for name in changed}


class _Launcher:
    """Records launches. What a kernel reads and writes is found once for each kind of its arguments."""

    def __init__(self, mode: DeviceMode) -> None:
        self._mode = mode
        self._found: dict[Any, tuple[frozenset[str], frozenset[str]]] = {}

    @property
    def run(self) -> Callable[..., Any]:
        """What replaces ``JITFunction.run``."""

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            for hook in kernel.pre_run_hooks:
                hook(*args, **options)
            bound = _bound(kernel, args, options)
            if not warmup and math.prod(grid(bound) if callable(grid) else grid):
                self._launch(kernel, bound)
            return _Compiled(kernel)

        return run

    def _launch(self, kernel: Any, bound: Mapping[str, Any]) -> None:
        if self._mode.is_muted:
            return
        tensors = {name: found for name, value in bound.items() if (found := _tensors_of(value))}
        reads, writes = self._accesses(kernel, bound, tensors)
        given, changed = (
            [one for name in tensors if name in some for one in tensors[name] if on_device(one)]
            for some in (reads, writes)
        )
        for one in changed:
            storage_contents.forget(one)
        self._mode.recorder.operator(TRITON + kernel.__name__, {}, given, changed)

    def _accesses(
        self, kernel: Any, bound: Mapping[str, Any], tensors: Mapping[str, list[Any]]
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Return the names of the arguments that a kernel reads, and of those that it writes."""
        constant = [parameter.name for parameter in kernel.params if parameter.is_constexpr]
        key = (
            kernel,
            *[repr(bound[name]) for name in constant],
            *[tuple([one.dtype for one in tensors.get(name, ())]) or type(value) for name, value in bound.items()],
        )
        found = self._found.get(key)
        if found is None:
            self._found[key] = found = _accessed(kernel, bound)
        return found


class _Compiled:
    """A kernel as a launch returns it, of which scripts ask what it uses, and which they launch again."""

    n_regs, n_spills = _REGISTERS, 0

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.metadata = SimpleNamespace(shared=_SHARED, name=kernel.__name__)
        self.asm: dict[str, str] = {}

    def _init_handles(self) -> None:
        pass

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return self._kernel[grid]  # type: ignore[no-any-return]


def _bound(kernel: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a kernel's arguments by name; other options are the compiler's (``num_warps``)."""
    names = kernel.arg_names
    found = kernel.signature.bind(*args, **{name: value for name, value in options.items() if name in names})
    found.apply_defaults()
    return dict(found.arguments)


def _tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors of an argument: a tensor, one that a descriptor describes, or some in a tuple."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [found for one in value for found in _tensors_of(one)]
    base = getattr(value, "base", None)  # of a TensorDescriptor, or of a tensor under another dtype
    return [base] if isinstance(base, torch.Tensor) else []


def _accessed(kernel: Any, bound: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[str]]:
    """Return what a kernel reads and writes; where PyTorch cannot find it, all its tensors are both."""
    descriptors = {
        name: wrap.create_tma_stable_metadata(value.block_shape)
        for name, value in bound.items()
        if hasattr(value, "block_shape")
    }
    given = {name: value.base if name in descriptors else value for name, value in bound.items()}
    find = getattr(wrap, "identify_accessed_tensors", None)
    with _quiet():
        if find is None:  # before 2.13
            writes = frozenset(wrap.identify_mutated_tensors(kernel, given, descriptors))
            return frozenset(given) - writes, writes
        found = find(kernel, given, descriptors).read_writes
    return frozenset(one.name for one in found.reads), frozenset(one.name for one in found.writes)


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave PyTorch's log out, which warns of kernels that it cannot read."""
    before, wrap.log.disabled = wrap.log.disabled, True
    try:
        yield
    finally:
        wrap.log.disabled = before


def _driver(gpu: Gpu) -> Any:
    """Return Triton's driver for CUDA without its library: it knows the GPU, and launches nothing."""
    from triton.backends.nvidia.driver import CudaDriver, GPUDriver

    properties = torch.cuda.get_device_properties()
    about = {
        "max_shared_mem": properties.shared_memory_per_block_optin,
        "max_num_regs": properties.regs_per_multiprocessor,
        "multiprocessor_count": properties.multi_processor_count,
        "warpSize": properties.warp_size,
        "sm_clock_rate": properties.clock_rate,
        "mem_clock_rate": round(gpu.bandwidth * 8 / (2 * _BUS) / 1e3),
        "mem_bus_width": _BUS,
    }
    driver: Any = object.__new__(CudaDriver)
    GPUDriver.__init__(driver)
    driver.get_current_stream = lambda device=None: 0
    driver.utils = SimpleNamespace(get_device_properties=lambda device: about)
    return driver
