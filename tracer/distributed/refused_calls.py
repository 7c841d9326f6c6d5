"""Calls of PyTorch that nothing stands in for without a GPU: each ends the script with an error that says so."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch.distributed
from torch._subclasses.fake_tensor import FakeTensor

from triosim.errors import CaptureError
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.recorder.script_lines import script_line


def install(patches: Patches) -> None:
    """Refuse remote procedure calls, and tensors of the GPU in other processes, until the patches are undone."""
    if torch.distributed.rpc.is_available():
        patches.make([Patch(torch.distributed.rpc, "init_rpc", _refuse_remote_calls)])
    reducers: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    reducers[FakeTensor] = _sent
    patches.callback(reducers.pop, FakeTensor, None)


def _refuse_remote_calls(*_: Any, **__: Any) -> None:
    raise CaptureError(
        "torch.distributed.rpc is not simulated: what a remote call does is known on the other rank alone",
        where=script_line(),
        fix="use collectives, or torch.distributed.pipelining",
    )


def _sent(tensor: FakeTensor) -> Any:
    """Return how a tensor is sent to another process. Raises ``CaptureError`` for one of the GPU."""
    if tensor.device.type != "cuda":
        return tensor.__reduce_ex__(2)
    raise CaptureError(
        "a tensor of the GPU is sent to another process, and processes that a script starts have no GPU",
        where=script_line(),
        fix="give each process a GPU of its own, as a rank: --world N",
    )
