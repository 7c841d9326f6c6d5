"""The names and arguments of transfers in a profile: the calls of c10d, and kernels named like NCCL's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triosim.networks.collectives.algorithm import to_each
from triosim.reports.transfer_names import Transfer, sent_bytes
from triosim.tasks import AllToAll, Batch, Collective, CollectiveKind, Communicator, Copy, Recv, Send
from triosim.trace.copies import COPIED_BYTES, COPY_LABEL, FROM_HOST, TO_HOST
from triosim.trace.formats.pytorch.kineto_file import WorkCategory

#: By kind: the call of c10d, PyTorch's name of the collective, and NCCL's kernel.
_COLLECTIVES: Mapping[CollectiveKind, tuple[str, str, str]] = {
    "all_reduce": ("c10d::allreduce_", "allreduce", "ncclDevKernel_AllReduce_Sum"),
    "all_gather": ("c10d::_allgather_base_", "_allgather_base", "ncclDevKernel_AllGather"),
    "reduce_scatter": ("c10d::_reduce_scatter_base_", "_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum"),
    "all_to_all": ("c10d::alltoall_base_", "all_to_allv", "ncclDevKernel_SendRecv"),
    "broadcast": ("c10d::broadcast_", "broadcast", "ncclDevKernel_Broadcast"),
    "reduce": ("c10d::reduce_", "reduce", "ncclDevKernel_Reduce_Sum"),
    "gather": ("c10d::gather_", "gather", "ncclDevKernel_SendRecv"),
    "scatter": ("c10d::scatter_", "scatter", "ncclDevKernel_SendRecv"),
}
_POINT_TO_POINT = "ncclDevKernel_SendRecv"


@dataclass(frozen=True, slots=True)
class ProfiledTransfer:
    """A transfer in a profile: its call, its work on the GPU, and the arguments of both. A copy is no communication.

    ``parts`` are the arguments of the messages of a batch, each of which has a call of its own before the one kernel.
    """

    call: str
    work: str
    category: WorkCategory
    arguments: Mapping[str, Any]
    parts: tuple[Mapping[str, Any], ...] = ()

    @property
    def communicates(self) -> bool:
        """Whether it is NCCL's."""
        return self.category == "kernel"


def profiled(task: Transfer, rank: int, numbers: Mapping[Communicator, int], received: float) -> ProfiledTransfer:
    """Return a transfer of a rank as a profile shows it.

    ``numbers`` are those of the process groups, ``received`` the bytes that sends bring to it.
    """
    if isinstance(task, Copy):
        about = {COPIED_BYTES: round(task.nbytes), COPY_LABEL: task.label}
        return ProfiledTransfer("aten::copy_", _copy_kernel(task), "gpu_memcpy", about)
    if isinstance(task, Collective):
        return _collective(task, rank, numbers)
    if isinstance(task, Batch):
        sent = sent_bytes(task)
        receives = sum(isinstance(part, Recv) for part in task.parts)
        parts = tuple(_message(part, received / max(1, receives), task.label) for part in task.parts)
        about = _about("coalesced", sent, received, task.label)
        return ProfiledTransfer("nccl:coalesced", _POINT_TO_POINT, "kernel", about, parts)
    call = "c10d::send" if isinstance(task, Send) else "c10d::recv_"
    return ProfiledTransfer(call, _POINT_TO_POINT, "kernel", _message(task, received, task.label))


def _copy_kernel(copy: Copy) -> str:
    """Return what CUDA calls a copy; what the CPU does with memory of the host, or with drives, is one within the host."""
    if "device" not in (copy.source, copy.destination):
        return f"Memcpy HtoH ({copy.source} -> {copy.destination})"
    return (
        f"Memcpy {TO_HOST} (Device -> Pinned)" if copy.source == "device" else f"Memcpy {FROM_HOST} (Pinned -> Device)"
    )


def _message(task: Send | Recv, received: float, axis: str) -> dict[str, Any]:
    """Return what is said of a message; the engine adds up what a batch receives, so that its receives have equal parts."""
    if isinstance(task, Send):
        return _about("send", task.nbytes, 0.0, axis) | {"Dst Rank": task.destination}
    return _about("recv", 0.0, received, axis) | {"Src Rank": task.source}


def _collective(task: Collective, rank: int, numbers: Mapping[Communicator, int]) -> ProfiledTransfer:
    call, name, kernel = _COLLECTIVES[task.kind]
    size = len(task.group.ranks)
    place = task.group.ranks.index(rank)
    share = task.nbytes / size
    if task.shares is not None and len(task.shares) == size:
        share = task.shares[place]
    sent, received = {
        "all_gather": (share, task.nbytes),
        "reduce_scatter": (task.nbytes, share),
        "gather": (share, task.nbytes),
        "scatter": (task.nbytes, share),
    }.get(task.kind, (task.nbytes, task.nbytes))
    about = _about(name, sent, received, task.group.name)
    if isinstance(task, AllToAll) and task.shares is not None:
        about |= _splits(task.shares, size, place)
    about |= {
        "Group size": size,
        "Process Group Name": str(numbers[task.group]),
        "Process Group Ranks": str(list(task.group.ranks)),
    }
    return ProfiledTransfer(call, kernel, "kernel", about)


def _splits(shares: Sequence[float], size: int, place: int) -> dict[str, Any]:
    """Return what an all-to-all of unequal shares says of the rank at this place: what it sends to each, what each sends."""
    sent = [round(to_each(shares, place, other, size)) for other in range(size)]
    received = [round(to_each(shares, other, place, size)) for other in range(size)]
    return {
        "In msg nelems": sum(sent),
        "Out msg nelems": sum(received),
        "In split size": str(sent),
        "Out split size": str(received),
    }


def _about(name: str, sent: float, received: float, axis: str) -> dict[str, Any]:
    """Return what PyTorch says of a collective; sizes are known in bytes, so the elements are bytes."""
    return {
        "Collective name": name,
        "dtype": "Byte",
        "In msg nelems": round(sent),
        "Out msg nelems": round(received),
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Description": axis,
    }
