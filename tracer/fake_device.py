"""Captures a training step on a fake GPU: all operators, shapes, streams and memory, but no times.

>>> with fake_capture("H100-SXM") as capture:  # doctest: +SKIP
...     model = Model().cuda()
...     for _ in range(2):
...         train_one_step(model)
>>> capture.trace  # doctest: +SKIP
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch._dynamo
import torch._inductor.utils  # both ask for CUDA when they are imported, so before a fake device is there
import torch.distributed

from triosim.errors import CaptureError, OptionError
from triosim.extrapolators.expert.expert_loads import LoadDistribution
from triosim.gpus import Gpu, find
from triosim.memory.allocator.workspace import workspace_bytes
from triosim.trace import Trace
from triosim.tracer.compiler import cuda_graphs, dynamo, triton_kernels
from triosim.tracer.contents import host_reads
from triosim.tracer.device import cpp_registration, cuda_api, other_threads, script_patches, unknown_checks
from triosim.tracer.device.dispatch_mode import DeviceMode, fake_tensor_mode
from triosim.tracer.device.operators import (
    attention,
    cudnn_rnn,
    data_dependent_operators,
    memory_formats,
    router_operators,
    sparse_tensors,
    undecomposed_operators,
    zero_tensors,
)
from triosim.tracer.distributed import fake_world, refused_calls, spawned_ranks
from triosim.tracer.distributed.process_groups import ProcessGroups
from triosim.tracer.distributed.rank_exchange import RankExchange
from triosim.tracer.distributed.rank_messages import RankMessages
from triosim.tracer.distributed.reduced_gradients import axes_of_reduced_gradients
from triosim.tracer.distributed.wrappers import data_parallel
from triosim.tracer.frameworks import adapters
from triosim.tracer.memory.cuda_memory import LimitedAllocator
from triosim.tracer.patches import Patches, only_capture
from triosim.tracer.programs import started_programs
from triosim.tracer.pytorch_version import check_version
from triosim.tracer.recorder.recorded_trace import trace_of
from triosim.tracer.recorder.recorder import Recorder
from triosim.tracer.steps import StepCounter, StepObservations, module_calls, optimizer_steps
from triosim.tracer.surroundings import (
    cuda_profiler,
    distributed_checkpoints,
    file_functions,
    native_libraries,
    nvidia_smi,
    nvml,
    safetensors_files,
    saved_tensors,
)
from triosim.tracer.surroundings.file_overlay import FileOverlay


class FakeDevice:
    """A GPU that PyTorch has while this context is entered, on which operators compute shapes and no data.

    There are so many ``devices`` on the machine, by default one. With a ``world``, this process is one ``rank`` of it
    (``triosim.tracer.distributed.fake_world``), whose machines have a rank for each device, by default up to 8; ``groups`` are
    the process groups that the script has made, and ``launched`` says that the script finds torchrun's environment. Ranks that
    are captured at the same time exchange through ``messages`` what they need to know of each other. With ``limited`` memory is
    that of PyTorch's caching allocator on the GPU, and can run out. What the script writes goes into the overlay ``files``;
    without one, ``torch.save`` writes nothing. ``routing`` says what routers choose: experts that are drawn.

    It is also an observer for ``triosim.tracer.script_runner.run_script``: each step that it is told of becomes a trace in
    ``traces``. No other capture can run at the same time.
    """

    def __init__(
        self,
        gpu: str | Gpu,
        *,
        devices: int | None = None,
        world: int | None = None,
        rank: int = 0,
        messages: RankMessages | None = None,
        limited: bool = False,
        files: FileOverlay | None = None,
        launched: bool = True,
        routing: LoadDistribution | None = None,
    ) -> None:
        if world is not None and not 0 <= rank < world:
            raise OptionError(f"there is no rank {rank} in a world of {world}", fix=f"give 0 to {world - 1}")
        self.gpu = find(gpu) if isinstance(gpu, str) else gpu
        self.devices = devices or min(world or 1, fake_world.LOCAL_RANKS)
        self.world = world
        self.rank = rank
        self.groups: ProcessGroups | None = None
        self._messages = messages
        self._limited = limited
        self._files = files
        self._launched = launched
        self._routing = routing
        self._routers: router_operators.RouterOperators | None = None
        self.traces: list[Trace] = []
        self.recorder = Recorder()
        self._stack = Patches()

    def __enter__(self) -> FakeDevice:
        check_version()
        self._stack = Patches()  # what the script imports later is patched, and restored, too
        try:
            self._stack.enter_context(only_capture())
            self._install(self._stack)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _install(self, patches: Patches) -> None:
        allocator = LimitedAllocator(self.gpu) if self._limited else None
        self.recorder = recorder = Recorder(allocator, workspace_bytes(self.gpu))
        dynamo.prepare(patches)
        cpp_registration.install(patches)
        fake_mode = fake_tensor_mode()
        mode = DeviceMode(recorder, fake_mode)
        cuda_api.install(patches, self.gpu, self.devices, recorder, mode.contents.seed)
        cuda_graphs.install(patches, recorder)
        patches.callback(cuda_api.forget_device)
        attention.install(patches, mode)
        cudnn_rnn.install(patches, mode)
        memory_formats.install(patches)
        data_dependent_operators.install(patches, mode)
        undecomposed_operators.install(patches)
        zero_tensors.install(mode)
        sparse_tensors.install(mode)
        if self._routing is not None:
            self._routers = router_operators.install(patches, mode, self._routing, self.rank)
        mode.replace(dict.fromkeys(triton_kernels.LAUNCHES, triton_kernels.launch_traced))
        after_imports = {
            "triton.runtime": triton_kernels.patches_after_import(mode, self.gpu),
            "pynvml": nvml.patches_after_import,
            **adapters.after_imports(self._reduces_gradients),
            "safetensors": safetensors_files.after_import(self._files),
            **({} if self._files is None else native_libraries.after_import(self._files)),
        }
        script_patches.install(patches, recorder, fake_mode, after_imports)
        host_reads.install(patches, recorder, mode.twins)
        unknown_checks.install(patches, recorder)
        saved_tensors.install(patches, recorder, self._files, mode.twins)
        self.exchange = exchange = RankExchange(self.rank, self._messages, recorder.note)
        distributed_checkpoints.install(patches, exchange)
        if self._files is not None:
            started_programs.install(patches, self._files)
        nvidia_smi.install(patches)
        cuda_profiler.install(patches)
        if self._files is not None:
            file_functions.install(patches, self._files)
            native_libraries.install(patches, self._files)
            patches.make(script_patches.profiler_exports(self._files))
        recorder.install(patches)
        data_parallel.install(patches)
        spawned_ranks.install(patches, self.rank % self.devices, self.devices)
        refused_calls.install(patches)
        if self.world is not None:
            self.groups = fake_world.install(
                patches, recorder, mode, world=self.world, exchange=exchange, messages=self._messages
            )
            if self._launched:
                fake_world.set_environment(patches, self.rank, self.world, self.devices)
        patches.enter_context(
            torch.autograd.set_multithreading_enabled(False)
        )  # one thread issues everything, in order
        dynamo.install(patches, mode, fake_mode)
        patches.enter_context(fake_mode)
        patches.enter_context(mode)
        other_threads.install(patches, mode, fake_mode)

    def _reduces_gradients(self, group: Any) -> None:
        if self.groups is not None:
            self.groups.reduces_gradients(group.group_name)

    def step_begins(self, number: int, observed: StepObservations) -> None:
        """Record from here on."""
        self.recorder.begin()

    def step_ends(self, number: int, observed: StepObservations) -> None:
        """Make a trace of what was recorded."""
        step = self.recorder.end()
        if not step.operators:
            raise CaptureError(
                "the step did nothing on the device 'cuda'", fix="move the model and its inputs there, as for a GPU"
            )
        if self.rank == 0 and self._routers is not None and not self._routers.drawn.exist:
            self.recorder.note("--routing draws nothing: no router of experts was called until here")
        inlined = self.recorder.inlined
        if self.groups is not None:
            for axis in axes_of_reduced_gradients(step):
                self.groups.reduces_gradients_over(axis)
        batch_size = observed.batch_size or inlined.batch_size
        if batch_size is None:
            self.recorder.note("no module was called with a tensor in this step: it is taken for one sample")
            batch_size = 1
        model = observed.model_name or inlined.name or "unknown"
        trace = trace_of(
            step, self.recorder.storages, batch_size=batch_size, model=model, gpu=self.gpu.name, software=_software()
        )
        self.traces.append(trace)

    @property
    def notes(self) -> list[str]:
        """What was done differently from a run on a GPU, one entry for each line of the script."""
        return [f"{line}: {what}" for line, what in self.recorder.notes.items()]


class fake_capture(FakeDevice):  # noqa: N801  (used as a function)
    """A capture of one step of the code inside it, the first one after ``skip`` steps.

    A step ends when the optimizer that was called first returns from ``step()``. ``gpu`` is a name of the catalogue, or a
    ``triosim.gpus.Gpu``. Afterwards ``trace`` is the step's; its operators have no times yet
    (``triosim.compute.pricing.prediction.with_predicted_times`` adds them).
    """

    def __init__(
        self,
        gpu: str | Gpu = "H100-SXM",
        *,
        skip: int = 1,
        batch_size: int | None = None,
        devices: int | None = None,
        world: int | None = None,
        rank: int = 0,
    ) -> None:
        super().__init__(gpu, devices=devices, world=world, rank=rank)
        self._observed = StepObservations(batch_size=batch_size)
        self._counter = StepCounter(self, self._observed, skip, steps=1)

    @property
    def trace(self) -> Trace:
        """The captured step. Raises ``CaptureError`` when there is none."""
        if not self.traces:
            raise CaptureError(
                f"no step was captured: {self._counter.number + self._counter.skip} of {self._counter.skip + 1} steps ended",
                fix="a step ends with optimizer.step(); run more of them, or give a smaller skip",
            )
        return self.traces[0]

    def _install(self, patches: Patches) -> None:
        patches.enter_context(optimizer_steps(self._counter.over, self._observed))
        patches.enter_context(module_calls(self._observed))
        super()._install(patches)
        self._counter.begin()


def _software() -> dict[str, str]:
    return {"torch": torch.__version__, "python": sys.version.split()[0], "capture": "without a GPU"}
