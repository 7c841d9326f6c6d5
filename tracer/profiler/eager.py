"""Turns off compilation during a capture, because a fused kernel is no operator that a compute model knows.

Functions that are compiled during the capture stay as they are; models that were compiled before run eagerly by
``torch.compiler.set_stance``, where the version of PyTorch has it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from triosim.errors import CaptureWarning
from triosim.tracer.patches import Patch, Patches

_WARNING = "is left out: the model is captured as it is written, without fused kernels"


@contextmanager
def run_eagerly() -> Iterator[None]:
    """Run everything eagerly until the block is left, and warn of calls that compile."""
    import torch

    with Patches() as patches:
        patches.make([Patch(torch, "compile", _compile), Patch(torch.nn.Module, "compile", _compile_module)])
        stance = getattr(torch.compiler, "set_stance", None)
        if stance is None or "torch._dynamo" not in sys.modules:  # nothing was compiled before
            yield
            return
        with stance("force_eager"):
            yield


def _compile(model: Any = None, *_: Any, **__: Any) -> Any:
    _warn("torch.compile")
    return model if model is not None else lambda function: function


def _compile_module(_: Any, *__: Any, **___: Any) -> None:
    _warn("compile()")


def _warn(what: str) -> None:
    caller = sys._getframe(2)
    line = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
    warnings.warn(f"{line}: {what} {_WARNING}", CaptureWarning, stacklevel=4)
