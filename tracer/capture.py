"""One training step, or inference pass, under PyTorch's profiler and its execution-trace observer.

The two files that they write are what ``triosim.trace_formats.pytorch`` reads. Each module's forward pass is marked with
its path, which the profiler alone does not know.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triosim.errors import OptionError, OutputError
from triosim.trace import Trace
from triosim.trace_formats import pytorch
from triosim.trace_formats.pytorch_step import LAYER_PREFIX

if TYPE_CHECKING:
    import torch

PROFILER_FILE = "profiler.json"
EXECUTION_TRACE_FILE = "execution_trace.json"


def capture(
    step: Callable[[], Any],
    model: torch.nn.Module,
    *,
    batch_size: int,
    warmup: int = 3,
    directory: str | os.PathLike[str] | None = None,
) -> Trace:
    """Return the trace of one call of ``step``, after ``warmup`` calls that are not recorded.

    ``step`` runs one training step (or one inference pass) of ``model`` on the CPU or on a GPU. With ``directory`` the
    profiler's two files are kept there, and ``triosim.load_trace(directory)`` reads them again. Raises ``OptionError``
    without PyTorch, and ``OutputError`` when the directory cannot be made.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise OptionError(f"{batch_size!r} is no batch size", where="batch_size", fix="give a positive integer")
    try:
        import torch
    except ImportError:
        raise OptionError("capturing needs PyTorch", fix="install it: pip install 'triosim[torch]'") from None
    for _ in range(warmup):
        step()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary if directory is None else directory)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot be made: {error.strerror}", where=str(place)) from error
        _profile(step, model, place)
        trace = pytorch.read(place, batch_size=batch_size)
    software = {**trace.software, "torch": torch.__version__}
    return dataclasses.replace(trace, model=type(model).__name__, software=software, source=str(directory or ""))


def _profile(step: Callable[[], Any], model: torch.nn.Module, place: Path) -> None:
    """Run one step and write both files."""
    import torch
    from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

    on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    observer = ExecutionTraceObserver().register_callback(str(place / EXECUTION_TRACE_FILE))
    try:
        with (
            _marked(model),
            profile(activities=activities, record_shapes=True, execution_trace_observer=observer) as profiler,
        ):
            step()
            if on_gpu:
                torch.cuda.synchronize()
    finally:
        observer.unregister_callback()
    profiler.export_chrome_trace(str(place / PROFILER_FILE))


@contextmanager
def _marked(model: torch.nn.Module) -> Iterator[None]:
    """Mark each module's forward pass with its path; the model's own is its class."""
    from torch.profiler import record_function

    open_marks: list[Any] = []
    handles = []

    def marker(path: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            mark = record_function(LAYER_PREFIX + path)
            mark.__enter__()
            open_marks.append(mark)

        return enter

    def leave(*_: Any) -> None:
        open_marks.pop().__exit__(None, None, None)

    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(marker(path or type(model).__name__)))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
