"""CUDA graphs on the fake device: what is captured runs when it is replayed, with one launch.

The tensors of a graph stay alive as long as it does, as its memory pool does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from triosim.tracer.contents import storage_contents
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.recorder.compiled_code import GraphCall, GraphStep
from triosim.tracer.recorder.recorder import Recorder


def install(patches: Patches, recorder: Recorder) -> None:
    """Let ``torch.cuda`` capture and replay graphs until the patches are undone."""
    patches.make(_patches(recorder))


def _forget_results(calls: list[GraphCall | GraphStep]) -> None:
    """Make unknown what a graph writes: its operators were computed when it was captured, and not when it is replayed."""
    for call in calls:
        if isinstance(call, GraphCall):
            for result in call.outputs:
                storage_contents.forget(result)


def _patches(recorder: Recorder) -> Iterator[Patch]:
    class CUDAGraph:
        """A graph: the calls that were recorded while it was captured."""

        def __init__(self, keep_graph: bool = False) -> None:
            self.calls: list[GraphCall | GraphStep] = []

        def capture_begin(self, *_: Any, **__: Any) -> None:
            recorder.graph = self.calls = []

        def capture_end(self) -> None:
            recorder.graph = None
            _forget_results(self.calls)

        def replay(self) -> None:
            recorder.replay(self.calls)
            _forget_results(self.calls)

        def reset(self) -> None:
            self.calls = []

        def pool(self) -> tuple[int, int]:
            return (0, id(self))

        def instantiate(self) -> None:
            pass

        enable_debug_mode = debug_dump = lambda self, *_: None

    class graph:  # noqa: N801  (as PyTorch calls it)
        """The context in which a graph is captured, on a stream of its own; nothing runs in it."""

        def __init__(self, cuda_graph: CUDAGraph, pool: Any = None, stream: Any = None, **_: Any) -> None:
            self.graph = cuda_graph
            self.on = torch.cuda.stream(stream if stream is not None else torch.cuda.Stream())

        def __enter__(self) -> None:
            self.on.__enter__()
            self.graph.capture_begin()

        def __exit__(self, *error: Any) -> None:
            self.graph.capture_end()
            self.on.__exit__(*error)

    replaced = {
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "make_graphed_callables": _make_graphed_callables(recorder),
        "graph_pool_handle": lambda: (0, 0),
        "is_current_stream_capturing": lambda: recorder.graph is not None,
    }
    for owner in (torch.cuda, torch.cuda.graphs):
        for name, value in replaced.items():
            yield Patch(owner, name, value)


def _make_graphed_callables(recorder: Recorder) -> Any:
    """Return a ``make_graphed_callables`` whose results are one launch forward and one backward."""

    def graphed(function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            with recorder.launches.graphed_call():
                return called(*args, **options)

        if not isinstance(function, torch.nn.Module):
            called = function
            return call
        called = function.forward
        function.forward = call
        return function

    def make_graphed_callables(callables: Any, *_: Any, **__: Any) -> Any:
        return tuple(map(graphed, callables)) if isinstance(callables, tuple) else graphed(callables)

    return make_graphed_callables
