"""Records ``DistributedDataParallel`` on fake tensors: PyTorch's own reducer makes the buckets, and a hook reduces them.

The reducer is in C++. It passes each bucket of gradients that is ready to a communication hook; without one it would
all-reduce the bucket where Python cannot see it. It waits for a bucket at the end of the backward pass, before it
copies the bucket into the gradients (Li et al. 2020, "PyTorch Distributed", section 3.2; reducer.cpp, finalize_backward).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import distributed as module

from triosim.tracer.distributed.communication_calls import CommunicationCalls
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.pytorch_version import required
from triosim.tracer.recorder.device_tensors import on_device
from triosim.tracer.recorder.recorder import Recorder

#: With ``static_graph`` the buckets are built in the order of the gradients after this many forward passes.
_PASSES_BEFORE_BUCKETS = 2
#: Whether this build of PyTorch has CUDA. (While a script runs on a fake GPU it seems so.)
HAS_CUDA = torch.backends.cuda.is_built()


class _NoLogger:
    """A logger that ignores everything, in place of the reducer's, which would ask the device for times."""

    strs_map: Mapping[str, str] = MappingProxyType({})  # of what it logged
    ints_map: Mapping[str, int] = MappingProxyType({})

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self


def install(patches: Patches, recorder: Recorder, calls: CommunicationCalls) -> None:
    """Let ``DistributedDataParallel`` work, and be recorded, until the patches are undone."""
    buckets = _Buckets(recorder, calls)
    patches.make(_patches_of_the_wrapper(recorder, calls, buckets))
    patches.make(_patches_of_the_reducer(recorder, calls, buckets))
    # The reducer insists that its list of used parameters is in pinned memory, of which there is none without CUDA.
    calls.mode.replace({torch.ops.aten.is_pinned.default: lambda function, args, kwargs: not on_device(args[0])})


def _patches_of_the_wrapper(recorder: Recorder, calls: CommunicationCalls, buckets: _Buckets) -> Iterator[Patch]:
    """Yield patches by which ``DistributedDataParallel`` registers a hook where the script has none."""
    wrapper: Any = module.DistributedDataParallel
    make, forward, register = wrapper.__init__, required(wrapper, "_pre_forward"), required(dist, "_register_comm_hook")
    hooked: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # and how often each was called

    def first_buckets() -> None:
        """Note that a step begins whose buckets are not those of later steps."""
        if any(model.static_graph and 0 < count < _PASSES_BEFORE_BUCKETS for model, count in hooked.items()):
            recorder.note(
                "DDP with static_graph builds its buckets after its second step: capture a later one (--skip 2)"
            )

    recorder.call_on_begin(first_buckets)

    @wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if kwargs.get("static_graph") and HAS_CUDA:
            kwargs["static_graph"] = False  # (``_patches_without_timer``)
        make(self, *args, **kwargs)
        self.logger = _NoLogger()
        calls.groups.reduces_gradients(self.process_group.group_name)

    def _pre_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self not in hooked and not self._use_python_reducer:
            hooked[self] = 0
            if not self._comm_hooks:
                group = self.process_group
                register(self.reducer, group, buckets.hooked(_all_reduce, as_views=self.gradient_as_bucket_view))
        if self in hooked and torch.is_grad_enabled():
            hooked[self] += 1
        return forward(self, *args, **kwargs)

    yield Patch(wrapper, "__init__", __init__)
    yield Patch(wrapper, "_pre_forward", _pre_forward)


def _patches_of_the_reducer(recorder: Recorder, calls: CommunicationCalls, buckets: _Buckets) -> Iterator[Patch]:
    """Yield patches of what the wrapper calls in C++."""
    reducer = required(dist, "Reducer")
    register, broadcast = required(dist, "_register_comm_hook"), required(dist, "_broadcast_coalesced")
    rebuild = required(reducer, "_rebuild_buckets")

    def _register_comm_hook(reduces: Any, state: Any, hook: Any) -> None:
        register(reduces, state, buckets.hooked(hook, as_views=False))

    def _rebuild_buckets(self: Any) -> Any:
        """Rebuild the buckets unrecorded: that happens once, after the first step, and asks the other ranks."""
        with recorder.unrecorded():
            return rebuild(self)

    def _broadcast_coalesced(*args: Any, **kwargs: Any) -> Any:
        """Broadcast tensors, and wait for each, as C++ does before it unpacks them."""
        before = len(calls.pending)
        result = broadcast(*args, **kwargs)
        for number in calls.pending[before:]:
            calls.wait(number)
        return result

    if HAS_CUDA:
        yield from _patches_without_timer(reducer)
    yield Patch(dist, "_register_comm_hook", _register_comm_hook)
    yield Patch(reducer, "_rebuild_buckets", _rebuild_buckets)
    yield Patch(dist, "_broadcast_coalesced", _broadcast_coalesced)
    yield Patch(dist, "_verify_params_across_processes", lambda *_, **__: None)
    yield Patch(module, "_verify_param_shape_across_processes", lambda *_, **__: None)


def _patches_without_timer(reducer: Any) -> Iterator[Patch]:
    """Yield patches by which the reducer of a build with CUDA takes no times, which would ask the driver for events.

    It takes them from the first forward pass on that it is told of, and needs to be told of those only where the graph is
    static (reducer.cpp, ``should_collect_runtime_stats``, ``static_graph_first_iteration``), which is taken for another one.
    """
    yield Patch(reducer, "prepare_for_forward", lambda self: None)
    yield Patch(module.DistributedDataParallel, "_set_static_graph", lambda self: None)


def _all_reduce(group: Any, bucket: Any) -> Any:
    """All-reduce a bucket, as the reducer does without a hook."""
    dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class _Buckets:
    """The buckets that are being reduced in a backward pass."""

    def __init__(self, recorder: Recorder, calls: CommunicationCalls) -> None:
        self.recorder = recorder
        self.calls = calls
        self.pending: list[tuple[torch.Tensor, list[int]]] = []
        self.first = 0  # how many works were pending when the first bucket was ready

    def hooked(self, hook: Any, *, as_views: bool) -> Any:
        """Return a hook that remembers the works of another hook; with ``as_views`` nothing is copied out of the buckets."""

        def remember(state: Any, bucket: Any) -> Any:
            if not self.pending:
                # Callbacks run in the order in which they are queued: this one before the reducer's own.
                torch.autograd.Variable._execution_engine.queue_callback(lambda: self.finish(as_views=as_views))
                self.first = len(self.calls.pending)
            before = len(self.calls.pending)
            future = hook(state, bucket)
            self.pending.append((bucket.buffer(), self.calls.pending[before:]))
            return future

        return remember

    def finish(self, *, as_views: bool) -> None:
        """Record that the reducer waits for each bucket before it copies from it.

        The other works that it began (which parameters were used on any rank) are waited for last.
        """
        pending, self.pending = self.pending, []
        known = {number for _, works in pending for number in works}
        pending[-1][1].extend(number for number in self.calls.pending[self.first :] if number not in known)
        for buffer, works in pending:
            if as_views:
                self.wait(works)
            else:
                self.recorder.before_read(buffer, lambda works=works: self.wait(works))  # type: ignore[misc]

    def wait(self, works: list[int]) -> None:
        for number in works:
            self.calls.wait(number)
