"""The names and arguments of transfers in a profile: the calls of c10d, and kernels named like NCCL's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triosim.reports.kineto.activity import Transfer
from triosim.tasks import Batch, Collective, CollectiveKind, Communicator, Copy, Send
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
    """A transfer in a profile: its call, its work on the GPU, and the arguments of both. A copy is no communication."""

    call: str
    work: str
    category: WorkCategory
    arguments: Mapping[str, Any]

    @property
    def communicates(self) -> bool:
        """Whether it is NCCL's."""
        return self.category == "kernel"


def profiled(task: Transfer, rank: int, numbers: Mapping[Communicator, int], received: float) -> ProfiledTransfer:
    """Return a transfer of a rank as a profile shows it.

    ``numbers`` are those of the process groups, ``received`` the bytes that sends bring to it.
    """
    if isinstance(task, Copy):
        to_host = task.source == "device"
        name = "Memcpy DtoH (Device -> Pinned)" if to_host else "Memcpy HtoD (Pinned -> Device)"
        return ProfiledTransfer("aten::copy_", name, "gpu_memcpy", {"bytes": round(task.nbytes)})
    if isinstance(task, Collective):
        return _collective(task, rank, numbers)
    if isinstance(task, Batch):
        sent = sum(part.nbytes for part in task.parts if isinstance(part, Send))
        peers = sorted({part.destination if isinstance(part, Send) else part.source for part in task.parts})
        about = _about("coalesced", sent, received, task.label) | {"Peers": peers}
        return ProfiledTransfer("nccl:coalesced", _POINT_TO_POINT, "kernel", about)
    if isinstance(task, Send):
        about = _about("send", task.nbytes, 0.0, task.label) | {"Dst Rank": task.destination}
        return ProfiledTransfer("c10d::send", _POINT_TO_POINT, "kernel", about)
    about = _about("recv", 0.0, received, task.label) | {"Src Rank": task.source}
    return ProfiledTransfer("c10d::recv_", _POINT_TO_POINT, "kernel", about)


def _collective(task: Collective, rank: int, numbers: Mapping[Communicator, int]) -> ProfiledTransfer:
    call, name, kernel = _COLLECTIVES[task.kind]
    size = len(task.group.ranks)
    share = task.nbytes / size
    if task.shares is not None and len(task.shares) == size:
        share = task.shares[task.group.ranks.index(rank)]
    sent, received = {
        "all_gather": (share, task.nbytes),
        "reduce_scatter": (task.nbytes, share),
        "all_to_all": (share, share),
        "gather": (share, task.nbytes),
        "scatter": (task.nbytes, share),
    }.get(task.kind, (task.nbytes, task.nbytes))
    about = _about(name, sent, received, task.group.name) | {
        "Group size": size,
        "Process Group Name": str(numbers[task.group]),
        "Process Group Ranks": str(list(task.group.ranks)),
    }
    return ProfiledTransfer(call, kernel, "kernel", about)


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
