"""Replacements for ``torch.cuda`` and ``torch.accelerator`` that answer as a GPU of a chosen kind would.

Streams and events are objects without work behind them; the synchronisation that a script asks of them is recorded.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from triosim.gpus import Gpu, product
from triosim.memory.allocator.gpu_memory import visible
from triosim.tracer.memory import cuda_memory
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.recorder.recorder import Recorder

_STATE_BYTES = 16  # of the state of a GPU's random numbers: seed and offset
_numbers = itertools.count(1)  # of streams and events; 0 is the default stream


#: Compute capabilities by the name of the architecture; a newer one is treated as Hopper.
_CAPABILITIES = {
    **{"pascal": (6, 0), "volta": (7, 0), "turing": (7, 5), "ampere": (8, 0)},
    **{"ada": (8, 9), "hopper": (9, 0), "blackwell": (10, 0)},
}
#: Those of GPUs that differ from others of their architecture.
_OTHER_CAPABILITIES = {
    **dict.fromkeys(("A40", "RTX-A6000", "A10G", "RTX-3090"), (8, 6)),
    **dict.fromkeys(("B300", "GB300"), (10, 3)),
    **dict.fromkeys(("RTX-5090", "RTX-PRO-6000", "RTX-PRO-6000-Server"), (12, 0)),
    "GB10": (12, 1),
}
_recorders: list[Recorder] = []  # that of the running capture, if any


def _recorder() -> Recorder:
    return _recorders[-1]


def _capability(gpu: Gpu) -> tuple[int, int]:
    usual = _CAPABILITIES.get(gpu.architecture.lower(), (9, 0))
    return _OTHER_CAPABILITIES.get(gpu.like or gpu.name, usual)


def current() -> int:
    """Return the number of the current device."""
    return int(torch._C._accelerator_getDeviceIndex())


def index_of(device: Any = None) -> int:
    """Return the number of a device, however it is given."""
    if device is None:
        return current()
    number = device if isinstance(device, int) else torch.device(device).index
    if number is None or number < 0:
        return current()
    if number >= torch.cuda.device_count():
        raise _no_device(number, torch.cuda.device_count())
    return number


def _no_device(number: int, devices: int) -> RuntimeError:
    """Return what PyTorch raises for a device that there is not."""
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    return kind(  # type: ignore[no-any-return]
        "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\n"
        f"cuda:{number} was asked for, and a machine has {devices} (a rank's own is the one of LOCAL_RANK)"
    )


class Stream(torch.Stream):
    """A CUDA stream, identified by its number."""

    def __new__(  # noqa: D102
        cls,
        device: Any = None,
        priority: int = 0,
        stream_id: int | None = None,
        device_index: int | None = None,
        **_: Any,
    ) -> Stream:
        number = next(_numbers) if stream_id is None else stream_id
        index = index_of(device) if device_index is None else device_index
        return super().__new__(cls, stream_id=number, device_index=index, device_type=1)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    @property
    def cuda_stream(self) -> int:
        """The stream's number."""
        return int(self.stream_id)

    def wait_event(self, event: Any) -> None:
        """Let later work on this stream wait for an event."""
        _recorder().event_awaited(self.stream_id, event.number)

    def wait_stream(self, stream: Any) -> None:
        """Let later work on this stream wait for the work that another stream has now."""
        self.wait_event(Event().record(stream))

    def record_event(self, event: Any = None) -> Any:
        """Put an event at the tail of this stream."""
        return (Event() if event is None else event).record(self)

    def query(self) -> bool:
        """Whether all work is done: always."""
        return True

    def synchronize(self) -> None:
        """Let the host wait for this stream."""
        _recorder().host_waits(stream=self.stream_id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, torch.Stream):
            return NotImplemented
        return bool(self.stream_id == other.stream_id and self.device_index == other.device_index)

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))


class Event:
    """A CUDA event; it gets a new number each time that it is recorded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number: int | None = None

    def record(self, stream: Any = None) -> Event:
        """Put it at the tail of a stream, the current one by default."""
        stream = current_stream() if stream is None else stream
        self.number = next(_numbers)
        _recorder().event_recorded(stream.stream_id, self.number)
        return self

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait for it, the current one by default."""
        if self.number is not None:
            stream = current_stream() if stream is None else stream
            _recorder().event_awaited(stream.stream_id, self.number)

    def query(self) -> bool:
        """Whether its work is done: always."""
        return True

    def synchronize(self) -> None:
        """Let the host wait for it."""
        if self.number is not None:
            _recorder().host_waits(number=self.number)

    def elapsed_time(self, other: Any) -> float:
        """Return milliseconds between two events: always one, because nothing runs."""
        return 1.0


def current_stream(device: Any = None) -> Stream:
    """Return the current stream of a device."""
    found = torch._C._accelerator_getStream(index_of(device))
    return Stream(stream_id=found.stream_id, device_index=found.device_index)


def set_stream(stream: Any) -> None:
    """Make a stream the current one."""
    if stream is not None:
        torch._C._accelerator_setStream(stream)


class StreamContext:
    """A context in which a stream is the current one."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> Any:
        if self.stream is not None:
            self._before = current_stream(self.stream.device_index)
            set_stream(self.stream)
        return self.stream

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            set_stream(self._before)


class DeviceContext:
    """A context in which a device is the current one."""

    def __init__(self, device: Any) -> None:
        self._number = -1 if device is None else index_of(device)

    def __enter__(self) -> None:
        if self._number >= 0:
            self._before = current()
            torch._C._accelerator_setDeviceIndex(self._number)

    def __exit__(self, *_: object) -> None:
        if self._number >= 0:
            torch._C._accelerator_setDeviceIndex(self._before)


class DeviceOf(DeviceContext):
    """A context in which a tensor's device is the current one."""

    def __init__(self, tensor: Any) -> None:
        super().__init__(tensor.get_device() if tensor.is_cuda else None)


def _generator_on_the_cpu(generator: type[torch.Generator]) -> type[torch.Generator]:
    """Return a class of generators on the CPU, whatever device is asked for; states of a GPU's say nothing to them."""

    class Generator(generator):  # type: ignore[misc,valid-type]
        def __new__(cls, device: Any = "cpu") -> Any:
            return generator.__new__(cls, device="cpu")  # type: ignore[call-arg,call-overload]

        def set_state(self, new_state: torch.Tensor) -> Any:
            return self if new_state.numel() == _STATE_BYTES else super().set_state(new_state)

    return Generator


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _yes(*_: Any, **__: Any) -> bool:
    return True


class DeviceProperties(types.SimpleNamespace):
    """The value of ``torch.cuda.get_device_properties``."""

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, L2_cache_size={self.L2_cache_size // 2**20}MB)"
        )


def _properties(gpu: Gpu) -> DeviceProperties:
    """Return a GPU's properties, with the name and total memory that PyTorch reports on a real one."""
    major, minor = _capability(gpu)
    return DeviceProperties(
        name=product(gpu),
        major=major,
        minor=minor,
        total_memory=visible(gpu),
        multi_processor_count=gpu.sms,
        L2_cache_size=int(gpu.l2_bytes),
        clock_rate=int(gpu.clock_hz / 1000),
        warp_size=32,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        uuid="GPU-captured-without",
        pci_bus_id=0,
        pci_device_id=0,
        pci_domain_id=0,
    )


def install(patches: Patches, gpu: Gpu, devices: int, recorder: Recorder, seed: Callable[[int], None]) -> None:
    """Let ``torch.cuda`` and ``torch.accelerator`` answer as with ``devices`` GPUs until the patches are undone.

    ``seed`` seeds the random numbers of all of them.
    """
    patches.make(_patches(gpu, devices, recorder))
    patches.make(_random(devices, seed))
    cuda_memory.install(patches, gpu, recorder.storages, recorder.host_waits)
    _recorders.append(recorder)
    patches.callback(_recorders.clear)


def _patches(gpu: Gpu, devices: int, recorder: Recorder) -> Iterator[Patch]:
    """Yield the patches of ``torch.cuda``, ``torch.accelerator`` and what both ask in C++."""
    cuda, accelerator, c = torch.cuda, torch.accelerator, torch._C
    for name, value in (*_about_the_device(gpu, devices), *_beginning(recorder)):
        yield Patch(cuda, name, value)
    for name, value in (
        ("Stream", Stream), ("Event", Event), ("ExternalStream", Stream), ("StreamContext", StreamContext),
        ("stream", StreamContext), ("device", DeviceContext), ("device_of", DeviceOf), ("current_stream", current_stream),
        ("default_stream", lambda device=None: Stream(stream_id=0, device_index=index_of(device))),
        ("set_stream", set_stream), ("synchronize", lambda device=None: recorder.host_waits()),
    ):  # fmt: skip
        yield Patch(cuda, name, value)
    yield Patch(cuda.streams, "Stream", Stream)
    yield Patch(cuda.streams, "Event", Event)
    for owner, name, value in (
        (c, "_cuda_getDeviceCount", lambda: devices), (c, "_cuda_getDevice", current),
        (c, "_cuda_setDevice", cuda_set_device), (c, "_cuda_exchangeDevice", c._accelerator_exchangeDevice),
        (c, "_cuda_maybeExchangeDevice", c._accelerator_maybeExchangeDevice), (c, "_is_cuda_available", True),
    ):  # fmt: skip
        yield Patch(owner, name, value, "add")  # a build without CUDA lacks some
    yield Patch(c, "_get_accelerator", lambda check=False: torch.device("cuda"))
    yield Patch(torch.version, "cuda", torch.version.cuda or "13.0")
    yield Patch(torch.backends.cuda, "is_built", _yes)
    for name, value in (
        ("is_available", _yes), ("device_count", lambda: devices), ("synchronize", lambda device=None: recorder.host_waits()),
        ("current_accelerator", lambda check_available=False: torch.device("cuda")),
        ("current_stream", current_stream), ("set_stream", set_stream),
    ):  # fmt: skip
        yield Patch(accelerator, name, value)


def cuda_set_device(device: Any) -> None:
    """Make a device the current one. Fake tensors that PyTorch makes by itself on "cuda" are on it from now on."""
    number = index_of(device)
    if number != torch._C._accelerator_getDeviceIndex():
        FakeTensorMode.cache_clear()  # which holds what "cuda" was by an operator's arguments
    torch._C._accelerator_setDeviceIndex(number)


def forget_device() -> None:
    """Make the first device the current one, as at the start of a process: the script may have chosen another."""
    FakeTensorMode.cache_clear()
    torch._C._accelerator_setDeviceIndex(0)


def _about_the_device(gpu: Gpu, devices: int) -> Iterator[tuple[str, Any]]:
    properties, capability = _properties(gpu), _capability(gpu)
    yield "_lazy_init", _nothing
    yield "init", _nothing
    yield "_is_compiled", _yes
    yield "is_available", _yes
    yield "device_count", lambda: devices
    yield "current_device", current
    yield "get_device_properties", lambda device=None: properties
    yield "get_device_capability", lambda device=None: capability
    yield "get_device_name", lambda device=None: product(gpu)
    yield "get_arch_list", lambda: [f"sm_{capability[0]}{capability[1]}"]
    yield "is_bf16_supported", lambda including_emulation=True: including_emulation or capability >= (8, 0)
    yield "is_tf32_supported", lambda: capability >= (8, 0)
    yield "can_device_access_peer", _yes
    yield "ipc_collect", _nothing
    yield "set_sync_debug_mode", _nothing


def _beginning(recorder: Recorder) -> Iterator[tuple[str, Any]]:
    """Yield what begins to use the device, and whether that was done: if not, ``DeviceMesh`` chooses the device of its rank."""
    chosen: list[Any] = []

    def set_device(device: Any) -> None:
        chosen.append(device)
        cuda_set_device(device)

    yield "set_device", set_device
    yield "_initialized", True
    yield "is_initialized", lambda: bool(chosen) or recorder.storages.has_any
    yield "_lazy_call", lambda call, **_: call()


def _random(devices: int, seed: Callable[[int], None]) -> Iterator[Patch]:
    """Yield patches of random numbers, of which only whole ones are drawn; their state cannot be read."""
    cuda, generator = torch.cuda, torch.Generator
    state = torch.zeros(_STATE_BYTES, dtype=torch.uint8)
    on_the_cpu = _generator_on_the_cpu(generator)
    yield Patch(torch, "Generator", on_the_cpu)
    yield Patch(cuda, "default_generators", tuple(on_the_cpu() for _ in range(devices)))
    for owner in (cuda, cuda.random):
        for name, value in (
            ("get_rng_state", lambda device=None: state), ("set_rng_state", _nothing), ("initial_seed", lambda: 0),
            ("get_rng_state_all", lambda: [state] * devices), ("set_rng_state_all", _nothing), ("seed", _nothing),
            ("manual_seed", seed), ("manual_seed_all", seed), ("seed_all", _nothing),
        ):  # fmt: skip
            yield Patch(owner, name, value)
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        yield Patch(cuda.nvtx, name, lambda *_, **__: 0)
