"""Leaves compilation out of a capture, because a fused kernel is no operator that a compute model knows.

Functions that are compiled during the capture stay as they are; on a real device, models that were compiled before it run
eagerly by ``torch.compiler.set_stance``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from triosim.errors import CaptureWarning
from triosim.tracer.patches import Patch, Patches

LEFT_OUT = "compilation is left out: the model is captured as it is written, without fused kernels"


def compilation_patches(left_out: Callable[[Any], None]) -> list[Patch]:
    """Return patches by which nothing is compiled; ``left_out`` is called with what the script wanted to compile."""

    def compile(model: Any = None, *_: Any, **__: Any) -> Any:
        left_out(model)
        return model if model is not None else lambda function: function

    return [
        Patch(torch, "compile", compile),
        Patch(torch.nn.Module, "compile", lambda module, *_, **__: left_out(module)),
    ]


@contextmanager
def run_eagerly() -> Iterator[None]:
    """Run everything eagerly until the block is left, and warn of calls that compile."""
    with Patches() as patches:
        patches.make(compilation_patches(_warn))
        if "torch._dynamo" in sys.modules:  # else nothing was compiled before
            patches.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def _warn(_: Any) -> None:
    caller = sys._getframe(2)
    line = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
    warnings.warn(f"{line}: {LEFT_OUT}", CaptureWarning, stacklevel=4)
