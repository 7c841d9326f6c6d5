"""How transfers are called in timelines, and when they begin: at the arrival of their rank, which may wait for a partner."""

from __future__ import annotations

from triosim.tasks import Batch, Collective, Compute, Copy, Handle, Layers, Recv, Send
from triosim.units import format_bytes

Transfer = Collective | Send | Recv | Batch | Copy

#: How many layers a transfer names.
_MOST_LAYERS = 4


def begin_of(handle: Handle) -> float:
    """Return when a task's slice begins, in seconds."""
    if isinstance(handle.task, Compute) or handle.arrived is None:
        return handle.started or 0.0
    return handle.arrived


def transfer_name(task: Transfer) -> str:
    """Return a transfer's kind or partner, and its size."""
    name, size = "", 0.0
    if isinstance(task, Collective):
        name, size = task.kind, task.nbytes
    elif isinstance(task, Send):
        name, size = f"send to GPU {task.destination}", task.nbytes
    elif isinstance(task, Recv):
        name = f"receive from GPU {task.source}"
    elif isinstance(task, Batch):
        name, size = "send and receive", sent_bytes(task)
    else:
        name = f"{task.label} of" if task.is_host_computation else f"copy from {task.source}"
        size = task.nbytes
    return f"{name} {format_bytes(size)}" if size else name


def sent_bytes(batch: Batch) -> float:
    """Return the bytes that a rank sends in a batch."""
    return sum(part.nbytes for part in batch.parts if isinstance(part, Send))


def layer_names(layers: Layers) -> str:
    """Return the layers whose tensors a transfer moves, of many the first ones."""
    names = list(layers.nbytes)
    return ", ".join(names[:_MOST_LAYERS]) + (", …" if len(names) > _MOST_LAYERS else "")
