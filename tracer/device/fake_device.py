"""A training step on a GPU that is not there: what it would do, with all shapes, streams and memory, and without times.

>>> with fake_capture("H100-SXM") as capture:  # doctest: +SKIP
...     model = Model().cuda()
...     for _ in range(2):
...         train_one_step(model)
>>> capture.trace  # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import sys
from types import TracebackType
from typing import TYPE_CHECKING

from triosim.errors import CaptureError, OptionError
from triosim.gpus import Gpu, find
from triosim.trace import Trace
from triosim.tracer.patches import Patches, check_version
from triosim.tracer.steps import Seen, class_name, module_calls, optimizer_steps, unwrapped

if TYPE_CHECKING:
    import torch

    from triosim.tracer.device.cuda import FakeGpu
    from triosim.tracer.distributed.groups import Groups
    from triosim.tracer.distributed.mailbox import Mailbox
    from triosim.tracer.recorder.recorder import Recorder

#: So many GPUs are taken to be in one machine: local ranks count up to it. PyTorch's fake devices are no more than that.
LOCAL_RANKS = 8

#: Compute capabilities by the name of the architecture; what is newer than these is taken for the newest.
_CAPABILITIES = {
    "pascal": (6, 0),
    "volta": (7, 0),
    "turing": (7, 5),
    "ampere": (8, 0),
    "ada": (8, 9),
    "hopper": (9, 0),
    "blackwell": (10, 0),
}


class FakeDevice:
    """While it is entered, PyTorch has a GPU of the given kind: operators on it have shapes and no contents.

    With a ``world``, this process is one ``rank`` of it (``triosim.tracer.distributed.rank``): ``groups`` then has the
    groups that
    the script has made. Through ``mailbox`` ranks that run at the same time tell each other what they must know.

    It is also an observer for ``triosim.tracer.script.run_script``: each step that it is told of becomes a trace in
    ``traces``. Only one can be entered at a time.
    """

    _entered = False

    def __init__(
        self,
        gpu: str | Gpu,
        *,
        devices: int = 1,
        world: int | None = None,
        rank: int = 0,
        mailbox: Mailbox | None = None,
    ) -> None:
        if world is not None and not 0 <= rank < world:
            raise OptionError(f"there is no rank {rank} in a world of {world}", fix=f"give 0 to {world - 1}")
        self.gpu = find(gpu) if isinstance(gpu, str) else gpu
        self.devices = devices
        self.world = world
        self.rank = rank
        self.groups: Groups | None = None
        self._mailbox = mailbox
        self.traces: list[Trace] = []
        self.recorder: Recorder | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> FakeDevice:
        _import_torch()
        if FakeDevice._entered:
            raise OptionError("one capture without a GPU runs already", fix="leave it before the next one begins")
        check_version()
        with contextlib.ExitStack() as stack:
            self._install(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._stack.close()

    def _install(self, stack: contextlib.ExitStack) -> None:
        import torch
        import torch._dynamo
        import torch._inductor.utils  # both ask for CUDA when they are imported
        import torch.distributed

        from triosim.tracer.device import attention as fake_attention
        from triosim.tracer.device import cuda as fake_cuda
        from triosim.tracer.device import driver as fake_driver
        from triosim.tracer.device import kernels as fake_kernels
        from triosim.tracer.device import recurrent as fake_recurrent
        from triosim.tracer.device import script as fake_script
        from triosim.tracer.device import sizes as fake_sizes
        from triosim.tracer.device.tensors import DeviceMode, shape_mode
        from triosim.tracer.recorder.recorder import Recorder

        patches = stack.enter_context(Patches())
        FakeDevice._entered = True
        patches.on_leaving(_left)
        self.recorder = recorder = Recorder()
        fake_driver.install(patches)
        devices = self.devices if self.world is None else max(self.devices, min(self.world, LOCAL_RANKS))
        fake_cuda.install(patches, _fake_gpu(self.gpu), devices, recorder)
        patches.on_leaving(lambda: torch._C._accelerator_setDeviceIndex(0))  # the script may have chosen another
        shapes = shape_mode()
        self.mode = DeviceMode(recorder, shapes)
        fake_attention.install(patches, self.mode)
        fake_recurrent.install(patches, self.mode)
        fake_sizes.install(patches, self.mode)
        fake_kernels.install(patches)
        fake_script.install(patches, recorder, shapes)
        recorder.install(patches)
        if self.world is not None:
            self.groups = self._join(patches, self.world)
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))  # one thread issues everything, in order
        stack.enter_context(shapes)
        stack.enter_context(self.mode)

    def _join(self, patches: Patches, world: int) -> Groups:
        """Make this process a rank of a world."""
        from triosim.tracer.distributed import rank as distributed

        return distributed.install(
            patches, self._recorder, self.mode, world=world, rank=self.rank, mailbox=self._mailbox
        )

    def step_begins(self, number: int, seen: Seen) -> None:
        """Record from here on."""
        self._recorder.begin()

    def step_ends(self, number: int, seen: Seen) -> None:
        """Make a trace of what was recorded."""
        from triosim.tracer.recorder.trace import trace_of

        recorder = self._recorder
        step = recorder.end()
        if not step.operators:
            raise CaptureError(
                "the step did nothing on the device 'cuda'", fix="move the model and its inputs there, as for a GPU"
            )
        batch_size = seen.batch_size
        if batch_size is None:
            raise CaptureError("no module was called with a tensor in this step", fix="give the batch size")
        model = "unknown" if seen.model is None else _name(seen.model)
        trace = trace_of(
            step, recorder.blocks, batch_size=batch_size, model=model, gpu=self.gpu.name, software=_software()
        )
        self.traces.append(trace)

    @property
    def notes(self) -> list[str]:
        """What went otherwise than on a GPU, a line of the script each."""
        return [] if self.recorder is None else [f"{line}: {what}" for line, what in self.recorder.notes.items()]

    @property
    def _recorder(self) -> Recorder:
        assert self.recorder is not None
        return self.recorder


class fake_capture(FakeDevice):  # noqa: N801  (used as a function)
    """Captures one step of the code inside of it, the first one after ``skip`` steps.

    A step ends when the optimizer that was seen first returns from ``step()``. ``gpu`` is a name of the catalogue, or a
    ``triosim.gpus.Gpu``. Afterwards ``trace`` is the step's; its operators have no times yet
    (``triosim.capture.one_rank`` predicts them).
    """

    def __init__(
        self,
        gpu: str | Gpu = "H100-SXM",
        *,
        skip: int = 1,
        batch_size: int | None = None,
        devices: int = 1,
        world: int | None = None,
        rank: int = 0,
    ) -> None:
        super().__init__(gpu, devices=devices, world=world, rank=rank)
        self._skip = skip
        self._batch_size = batch_size
        self._count = 0
        self._seen = Seen()

    @property
    def trace(self) -> Trace:
        """The captured step. Raises ``CaptureError`` when there is none."""
        if not self.traces:
            raise CaptureError(
                f"no step was captured: {self._count} of {self._skip + 1} steps ended",
                fix="a step ends with optimizer.step(); run more of them, or give a smaller skip",
            )
        return self.traces[0]

    def _install(self, stack: contextlib.ExitStack) -> None:
        stack.enter_context(optimizer_steps(self._over, self._seen))
        stack.enter_context(module_calls(self._seen))
        super()._install(stack)
        self._begin()

    def _begin(self) -> None:
        if self._count == self._skip:
            self.step_begins(0, self._seen)

    def _over(self, _: torch.optim.Optimizer) -> None:
        if self._count == self._skip and self._skip and self._seen.joined:
            self._skip += 1  # an optimizer made its states in this step, as in no later one
        if self._count == self._skip:
            if self._batch_size is not None:
                self._seen.batch_size = self._batch_size
            self.step_ends(0, self._seen)
        self._count += 1
        self._begin()


def _left() -> None:
    FakeDevice._entered = False


def _fake_gpu(gpu: Gpu) -> FakeGpu:
    from triosim.tracer.device.cuda import FakeGpu

    capability = _CAPABILITIES.get(gpu.architecture.lower(), (9, 0))
    return FakeGpu(gpu.name, int(gpu.capacity), capability, gpu.sms, int(gpu.l2_bytes), int(gpu.clock_hz / 1000))


def _software() -> dict[str, str]:
    import torch

    return {"torch": torch.__version__, "python": sys.version.split()[0], "capture": "without a GPU"}


def _name(model: torch.nn.Module) -> str:
    return class_name(unwrapped(model))


def _import_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise OptionError("capturing needs PyTorch", fix="install it: pip install 'triosim[torch]'") from None
