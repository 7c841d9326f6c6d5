"""Records the calls of ``torch.distributed`` as communications of the trace.

The ``c10d`` operators are those of PyTorch's process groups; those of ``_c10d_functional`` and ``_dtensor`` are what
distributed tensors use. Nothing is sent: a result has its shape, and each asynchronous work has a number, for which a mark of
the trace waits. A collective without ``async_op`` runs on the stream that issues it, and needs no wait (PyTorch,
ProcessGroupNCCL.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed import ProcessGroup, ReduceOp

from triosim.trace import Communication, CommunicationKind
from triosim.tracer.device.dispatch_mode import DeviceMode
from triosim.tracer.device.operators.operator_info import flat
from triosim.tracer.distributed import known_values
from triosim.tracer.distributed.known_values import Exchange
from triosim.tracer.distributed.process_groups import ProcessGroups
from triosim.tracer.distributed.rank_exchange import RankExchange
from triosim.tracer.pytorch_version import required
from triosim.tracer.recorder.device_tensors import on_device
from triosim.tracer.recorder.recorder import Recorder

#: The work that PyTorch's fake process group returns.
FakeWork: Any = getattr(torch._C._distributed_c10d, "FakeWork", None)

#: By operator of a process group: the kind, and the positions of the tensors that give its size and of the root or peer. Of a
#: gather or a scatter the root alone has the whole: these give a rank's part.
_PROCESS_GROUP_CALLS: dict[str, tuple[CommunicationKind, int, int | None]] = {
    "allreduce_": ("all_reduce", 0, None),
    "allreduce_coalesced_": ("all_reduce", 0, None),
    "broadcast_": ("broadcast", 0, 2),
    "reduce_": ("reduce", 0, 3),
    "allgather_": ("all_gather", 0, None),
    "_allgather_base_": ("all_gather", 0, None),
    "allgather_coalesced_": ("all_gather", 0, None),
    "allgather_into_tensor_coalesced_": ("all_gather", 0, None),
    "reduce_scatter_": ("reduce_scatter", 1, None),
    "_reduce_scatter_base_": ("reduce_scatter", 1, None),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1, None),
    "alltoall_": ("all_to_all", 1, None),
    "alltoall_base_": ("all_to_all", 1, None),
    "gather_": ("gather", 1, 3),
    "scatter_": ("scatter", 0, 3),
    "send": ("send", 0, 2),
    "recv_": ("recv", 0, 2),
    "barrier": ("barrier", 0, None),
}
#: By functional operator: the kind, and whether its input or its output is the larger side.
_FUNCTIONAL: dict[str, tuple[CommunicationKind, str]] = {
    "all_reduce": ("all_reduce", "in"),
    "all_reduce_": ("all_reduce", "in"),
    "all_reduce_coalesced": ("all_reduce", "in"),
    "all_reduce_coalesced_": ("all_reduce", "in"),
    "broadcast": ("broadcast", "in"),
    "broadcast_": ("broadcast", "in"),
    "all_gather_into_tensor": ("all_gather", "out"),
    "all_gather_into_tensor_out": ("all_gather", "out"),
    "all_gather_into_tensor_coalesced": ("all_gather", "out"),
    "reduce_scatter_tensor": ("reduce_scatter", "in"),
    "reduce_scatter_tensor_out": ("reduce_scatter", "in"),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", "in"),
    "all_to_all_single": ("all_to_all", "in"),
}


#: The arguments of a process group's operator that hold what it reads, and what it writes.
_GIVEN = ("input_tensors", "input_tensor", "input", "inputs", "tensors")
_WRITTEN = ("output_tensors", "output_tensor", "output", "outputs", "tensors")


class CommunicationCalls:
    """The recorder of communications, and of the works that they return."""

    def __init__(self, recorder: Recorder, mode: DeviceMode, groups: ProcessGroups, ranks: RankExchange) -> None:
        self.recorder = recorder
        self.mode = mode
        self.groups = groups
        self._ranks = ranks
        self.pending: list[int] = []  # works that nobody has waited for yet, in order
        self._count = 0
        self._batch: int | None = None
        self._batches = 0
        self._by_block: dict[int, int] = {}  # works of functional operators, by the storage of their result
        self._results: dict[int, list[torch.Tensor]] = {}
        self._received: dict[int, Callable[[], None]] = {}  # by the work of what was received, and not awaited

    def operators(self) -> Iterator[tuple[Any, Callable[..., Any]]]:
        """Yield the operators of communication, and what runs them. Raises ``CaptureError`` where PyTorch lacks one."""
        for name in _PROCESS_GROUP_CALLS:
            yield required(torch.ops.c10d, name).default, self._call
        for name in _FUNCTIONAL:
            yield required(torch.ops._c10d_functional, name).default, self._functional
        yield required(torch.ops._c10d_functional, "wait_tensor").default, self._wait_tensor
        yield required(torch.ops._dtensor, "shard_dim_alltoall").default, self._shard_dim

    # ---- process groups ----------------------------------------------------------------------------------------

    def _call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an operator of a process group; nothing is sent, and the work is done at once."""
        named = _named(function, args, kwargs)
        name = function._schema.name.partition("::")[2]
        kind, sized, aimed = _PROCESS_GROUP_CALLS[name]
        group = ProcessGroup.unbox(named["process_group"])
        axis = self.groups.axis(group.group_name)
        given = list(flat(args))
        asynchronous = bool(named.get("async_op", True))  # sends and receives always return a work
        work = FakeWork()
        if kind == "barrier" or any(on_device(tensor) for tensor in given):
            target = None if aimed is None else args[aimed]
            number = self._number(given) if asynchronous else None
            if number is not None:
                work.seq_id = number
            exchange = kind in ("send", "recv")
            parts = group.size() if kind in ("gather", "scatter") else 1
            asked = Communication(
                kind,
                axis,
                0.0 if kind == "barrier" else parts * _bytes(flat(args[sized])),
                root=None if exchange else target,
                peer=target if exchange else None,
                tag=args[3] if exchange else 0,
                work=number,
                batch=self._batch if exchange else None,
                shares=_sent(named, args[sized], args[0]) if kind == "all_to_all" else None,
            )
            self._record(function, asked, given, [])
        exchanged = _contents_of(kind, named)
        known_values.follow(exchanged, _side(named, _GIVEN), _side(named, _WRITTEN), group, self._ranks)
        if kind in ("send", "recv"):
            self._exchange(kind, named["tensors"], group, (args[2], args[3]), work)
        boxed = work.boxed()
        first = function._schema.returns[0].type
        return (args[0], boxed) if len(function._schema.returns) == 2 else boxed if first is not None else None

    def _exchange(self, kind: str, tensors: Any, group: Any, aimed: tuple[int, int], work: Any) -> None:
        """Pass on what is known of tensors to a member of a group, with a tag, or await it from there."""
        members = dist.get_process_group_ranks(group)
        outline = hash(tuple([one - members[0] for one in members]))  # the same for ranks that do the same
        peer, subject = members[aimed[0]], f"tensors-{outline:x}-{aimed[1]}"
        if kind == "send":
            known_values.send(tensors, peer, subject, self._ranks)
            return
        if not any(map(on_device, flat(tensors))):
            self._count += 1
            work.seq_id = self._count
        self._received[work.seq_id] = known_values.receive(tensors, peer, subject, self._ranks)

    def _record(
        self, function: Any, asked: Communication, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> None:
        if self.mode.is_muted:
            return
        here = [tensor for tensor in inputs if on_device(tensor)]
        made = [tensor for tensor in outputs if on_device(tensor)] or here
        self.recorder.operator(function._schema.name, {}, here, made, asked)

    def _number(self, results: list[torch.Tensor]) -> int:
        self._count += 1
        self.pending.append(self._count)
        self._results[self._count] = results
        return self._count

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Record the sends and receives inside as one batch."""
        self._batches += 1
        self._batch = self._batches
        try:
            yield
        finally:
            self._batch = None

    def wait(self, number: int) -> None:
        """Record that the current stream waits for a work, and hold what is received; waiting again changes nothing."""
        if number in self._received:
            self._received.pop(number)()
        if number in self._results:
            del self._results[number]
            self.pending.remove(number)
            if not self.mode.is_muted:
                self.recorder.work_awaited(number)

    def results(self, number: int) -> list[torch.Tensor]:
        """Return the tensors of a work that nobody has waited for."""
        return self._results.get(number, [])

    def forget(self) -> None:
        """Forget the works of an earlier step: a step begins."""
        self._by_block.clear()
        self._results.clear()
        self.pending.clear()

    # ---- functional operators ----------------------------------------------------------------------------------

    def _functional(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        named = _named(function, args, kwargs)
        kind, side = _FUNCTIONAL[function._schema.name.partition("::")[2]]
        result = self.mode.shaped(function, args, kwargs)
        given, made = list(flat(args)), list(flat(result))
        if any(on_device(tensor) for tensor in given):
            number = self._number([])
            larger = [named["out"]] if "out" in named else made if side == "out" else given
            nbytes = _bytes(larger)
            shares = _sent(named, args[0], made) if kind == "all_to_all" else None
            root = named.get("src")
            axis = self._axis(named["group_name"])
            asked = Communication(kind, axis, nbytes, root=root, work=number, shares=shares)
            self._record(function, asked, given, made)
            for tensor in made:
                if on_device(tensor):
                    self._by_block[self.recorder.storages.of(tensor).number] = number
            group_name = named["group_name"]
            known_values.follow(_contents_of(kind, named), given, made, _resolve_process_group(group_name), self._ranks)
        return result

    def _wait_tensor(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if on_device(args[0]):
            number = self._by_block.get(self.recorder.storages.of(args[0]).number)
            if number is not None:
                self.wait(number)
        return args[0]

    def _shard_dim(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a change of the sharded dimension; it waits by itself (PyTorch, ``shard_dim_alltoall`` in Functional.cpp)."""
        named = _named(function, args, kwargs)
        result = self.mode.shaped(function, args, kwargs)
        asked = Communication("all_to_all", self._axis(named["group_name"]), _bytes([args[0]]))
        if on_device(args[0]):
            self._record(function, asked, [args[0]], [result])
        return result

    def _axis(self, group: Any) -> str:
        found = group if isinstance(group, str) else None
        return self.groups.axis(_resolve_process_group(group).group_name if found is None else found)


def _side(named: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Return the tensors that a process group's operator reads, or writes, by the names that its argument may have."""
    return next((named[name] for name in names if name in named), ())


def _contents_of(kind: CommunicationKind, named: dict[str, Any]) -> Exchange:
    """Return what is known of how a communication's results follow from its contents."""
    splits = tuple(named.get("input_split_sizes") or ())
    reduction = named.get("reduce_op")
    if reduction is not None and not isinstance(reduction, str):
        reduction = ReduceOp.RedOpType(reduction.op()).name.lower()
    if kind == "reduce_scatter" and "inputs" in named:
        reduction = None  # of several tensors at once
    whole = all(isinstance(one, int) for one in splits)
    return Exchange(kind, reduction, splits if whole else None, named.get("root_rank", named.get("src")))


def _bytes(tensors: Iterable[torch.Tensor]) -> float:
    return float(sum(tensor.nbytes for tensor in tensors))


def _sent(named: dict[str, Any], given: Any, received: Any) -> tuple[float, ...] | None:
    """Return the bytes that an all-to-all sends to each member; None where all seem to send the same."""
    if isinstance(given, torch.Tensor):
        splits = named.get("input_split_sizes") or ()
        row = given.nbytes / given.shape[0] if given.dim() and given.shape[0] else 0.0
        found = tuple([float(count) * row for count in splits])
    else:
        found = tuple([float(tensor.nbytes) for tensor in flat(given)])
    return found if len(set(found)) > 1 or _bytes(flat(received)) != _bytes(flat(given)) else None


def _named(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name."""
    names = [argument.name for argument in function._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}
