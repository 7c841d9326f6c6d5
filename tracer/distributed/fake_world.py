"""Makes this process one rank of a fake world: ``torchrun``'s environment, and process groups that do not communicate.

The groups say that they are "nccl". Each is PyTorch's own fake one (``torch.testing._internal.distributed.fake_pg``); what the
script asks of it is recorded (``triosim.tracer.distributed.communication_calls``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from triosim.errors import CaptureError
from triosim.tracer.device.dispatch_mode import DeviceMode
from triosim.tracer.distributed.communication_calls import CommunicationCalls, FakeWork
from triosim.tracer.distributed.process_groups import ProcessGroups
from triosim.tracer.distributed.rank_exchange import RankExchange, members_of
from triosim.tracer.distributed.rank_messages import RankMessages
from triosim.tracer.distributed.wrappers import context_parallel, ddp, dtensor, fsdp, pipelining
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.pytorch_version import missing_api
from triosim.tracer.recorder.recorder import Recorder
from triosim.tracer.recorder.script_lines import script_line

#: The most GPUs of one machine: PyTorch's fake devices are no more than that.
LOCAL_RANKS = 8
_BACKEND = "fake"


def environment(rank: int, world: int, local: int) -> dict[str, str]:
    """Return the environment variables that ``torchrun`` sets for a rank, where ``local`` of them are on a machine."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank % local),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(rank // local),
        "GROUP_WORLD_SIZE": str(-(-world // local)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def install(
    patches: Patches,
    recorder: Recorder,
    mode: DeviceMode,
    *,
    world: int,
    exchange: RankExchange,
    messages: RankMessages | None = None,
) -> ProcessGroups:
    """Make this process one rank of a world until the patches are undone; return the groups that it will make.

    Through ``exchange`` it gets what others send. Through ``messages`` the stages of a pipeline, each a process, tell each
    other their shapes.
    """
    if FakeWork is None:
        raise missing_api("torch.distributed's FakeWork")
    rank = exchange.rank
    groups = ProcessGroups(world)
    calls = CommunicationCalls(recorder, mode, groups, exchange)
    mode.replace(dict(calls.operators()))
    recorder.call_on_begin(calls.forget)
    patches.callback(_leave_groups)
    patches.make(_process_groups(groups, rank, world))
    patches.make(_works(calls))
    patches.make(_objects(exchange))
    ddp.install(patches, recorder, calls)
    fsdp.install(patches, recorder, mode, calls)
    dtensor.install(patches, mode)
    pipelining.install(patches, messages)
    context_parallel.install(patches, groups)
    return groups


def set_environment(patches: Patches, rank: int, world: int, local: int) -> None:
    """Set what ``torchrun`` sets for a rank, until the patches are undone; of several on a machine, each has one thread."""
    before, threads = dict(os.environ), torch.get_num_threads()

    def undo() -> None:
        os.environ.clear()
        os.environ.update(before)
        torch.set_num_threads(threads)

    patches.callback(undo)
    os.environ.update(environment(rank, world, local))
    if local > 1 and "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)


def _leave_groups() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _process_groups(groups: ProcessGroups, own: int, world: int) -> Iterator[Patch]:
    """Yield patches by which every group that is made is one that does not communicate."""
    make_world, make = distributed_c10d.init_process_group, distributed_c10d._new_group_with_tag

    def init_process_group(
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *_: Any,
        **__: Any,
    ) -> None:
        _check_world(int(world_size), world)
        make_world(_BACKEND, store=FakeStore(), rank=own, world_size=world)

    def _new_group_with_tag(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *_: Any, **options: Any
    ) -> Any:
        members = list(range(world)) if ranks is None else list(ranks)
        if options.get("sort_ranks", True):
            members = sorted(members)
        axis = groups.add(members, options.get("group_desc") or "")
        options = {name: value for name, value in options.items() if name in ("group_desc", "pg_tag", "sort_ranks")}
        group = make(members, None, _BACKEND, **options)
        if own in members:
            groups.join(group.group_name, axis)
        return group

    def split_group(parent_pg: Any = None, split_ranks: Any = None, *_: Any, group_desc: Any = None, **__: Any) -> Any:
        parent = list(range(world)) if parent_pg is None else dist.get_process_group_ranks(parent_pg)
        mine = None
        for part in split_ranks:
            members = [parent[position] for position in part]
            group = _new_group_with_tag(members, group_desc=group_desc)
            mine = group if own in members else mine
        return mine

    for owner in (dist, distributed_c10d, device_mesh):
        yield Patch(owner, "init_process_group", init_process_group)
        yield Patch(owner, "split_group", split_group, "leave")
    yield Patch(distributed_c10d, "_new_group_with_tag", _new_group_with_tag)
    for owner in (dist, distributed_c10d, device_mesh):
        yield Patch(owner, "get_backend", lambda group=None: "nccl")
    for owner in (dist, distributed_c10d):
        yield Patch(owner, "is_nccl_available", lambda: True)
        if not hasattr(owner, "ProcessGroupNCCL"):  # a build without CUDA
            yield Patch(owner, "ProcessGroupNCCL", _ProcessGroupNccl, "add")
    yield Patch(distributed_c10d, "_set_pg_timeout", lambda timeout, group=None: None, "leave")
    yield Patch(torch.cuda.nccl, "version", lambda: (2, 27, 5))


class _NcclOptions:
    """What a script asks of NCCL for a group. Nothing reads it here."""

    def __init__(self, *_: Any, is_high_priority_stream: bool = False, **__: Any) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config = SimpleNamespace()


class _ProcessGroupNccl:
    """The name of NCCL's groups, of which there are none here."""

    Options = _NcclOptions


def _check_world(asked: int, world: int) -> None:
    """Raise ``CaptureError`` where a script makes another world than this one; -1 or 0 is whatever there is."""
    launched = "WORLD_SIZE" in os.environ
    if asked in (-1, 0, world) and (launched or asked == world):
        return
    what = (
        f"makes process groups of {asked} ranks"
        if asked > 0
        else "makes process groups, and nobody says of how many ranks"
    )
    raise CaptureError(
        f"the script {what}, where {world} {'are' if world > 1 else 'is'} run",
        where=script_line(),
        fix=f"run as many: --world {max(asked, 1)}"
        if asked > 0
        else "say how many there are: --world N (1 is a world too)",
    )


def _works(calls: CommunicationCalls) -> Iterator[Patch]:
    """Yield patches that record waiting for a work."""

    def wait(self: Any, *_: Any, **__: Any) -> bool:
        calls.wait(self.seq_id)
        return True

    def get_future(self: Any) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(calls.results(self.seq_id))
        return future

    for name in ("wait", "synchronize", "block_current_stream"):
        yield Patch(FakeWork, name, wait)
    for name in ("get_future", "getFuture"):
        yield Patch(FakeWork, name, get_future, "leave")
    for owner in (dist, distributed_c10d):
        original = owner.batch_isend_irecv

        def batch_isend_irecv(p2p_op_list: Any, _original: Any = original) -> Any:
            with calls.batch():
                return _original(p2p_op_list)

        yield Patch(owner, "batch_isend_irecv", wraps(original)(batch_isend_irecv))


def _objects(exchange: RankExchange) -> Iterator[Patch]:
    """Yield patches of exchanges of Python objects, and of barriers, which hold the ranks that run until all have come."""

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        if members := members_of(group):
            object_list[:] = exchange.objects(members, obj)

    def gather_object(
        obj: Any, object_gather_list: list[Any] | None = None, dst: Any = None, group: Any = None, group_dst: Any = None
    ) -> None:
        found = exchange.objects(members_of(group), obj)
        if object_gather_list is not None:
            object_gather_list[:] = found

    def broadcast_object_list(
        object_list: list[Any], src: Any = None, group: Any = None, device: Any = None, group_src: Any = None
    ) -> None:
        if members := members_of(group):
            object_list[:] = exchange.object_of_root(members, _position(members, src, group_src), object_list)

    def scatter_object_list(
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: Any = None,
        group: Any = None,
        group_src: Any = None,
    ) -> None:
        if members := members_of(group):
            root = _position(members, src, group_src)
            given = exchange.object_of_root(members, root, scatter_object_input_list)
            scatter_object_output_list[0] = given[members.index(exchange.rank)] if given else None

    def send_object_list(
        object_list: list[Any], dst: Any = None, group: Any = None, device: Any = None, group_dst: Any = None, **_: Any
    ) -> None:
        members = members_of(group)
        exchange.send(members[_position(members, dst, group_dst)], object_list)

    def recv_object_list(
        object_list: list[Any], src: Any = None, group: Any = None, device: Any = None, group_src: Any = None, **_: Any
    ) -> int:
        members = members_of(group)
        sender = members[_position(members, src, group_src)]
        object_list[:] = exchange.receive(sender, object_list)
        return sender

    for owner in (dist, distributed_c10d):
        yield Patch(owner, "all_gather_object", all_gather_object)
        yield Patch(owner, "gather_object", gather_object)
        yield Patch(owner, "broadcast_object_list", broadcast_object_list)
        yield Patch(owner, "scatter_object_list", scatter_object_list)
        yield Patch(owner, "send_object_list", send_object_list)
        yield Patch(owner, "recv_object_list", recv_object_list)
        yield Patch(owner, "barrier", _held(owner.barrier, exchange))
        yield Patch(owner, "monitored_barrier", _held(lambda *_, **__: None, exchange))


def _position(members: Sequence[int], rank: int | None, position: int | None) -> int:
    """Return a rank's position in a group, of which one of both is given, else the first one's."""
    if position is not None:
        return position
    return 0 if rank is None else members.index(rank)


def _held(original: Any, exchange: RankExchange) -> Any:
    """Return a barrier: a script saves on one rank, waits at a barrier, and loads on all."""

    def barrier(group: Any = None, *args: Any, **options: Any) -> Any:
        result = original(group, *args, **options)
        if not options.get("async_op"):
            exchange.contributions(members_of(group), "barrier", None)
        return result

    return barrier
