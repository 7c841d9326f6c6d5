"""The tasks of a rank's commands, in the groups that the rank is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from triosim.extrapolators.captured.commands import CommandWait, GroupCollective, PointToPoint
from triosim.tasks import (
    COLLECTIVES,
    Batch,
    Collective,
    CollectiveKind,
    Communicator,
    Handle,
    Recv,
    Send,
    Synchronize,
    Wait,
)
from triosim.trace import Communication

#: A barrier is an all-reduce of one float (PyTorch, ProcessGroupNCCL::barrier).
BARRIER_BYTES = 4.0

#: Tags of families of groups are kept apart by multiples of this, because two ranks may be peers in several.
TAGS_OF_A_FAMILY = 2**31


def wait_task(command: CommandWait, handles: Mapping[int, Handle] | Sequence[Handle]) -> Wait | Synchronize:
    """Return a wait, given the ``handles`` of the commands before it."""
    awaited = tuple([handles[other] for other in command.commands])
    return Synchronize(awaited) if command.stream is None else Wait(awaited, command.stream)


def collective_task(group: Communicator, command: GroupCollective) -> Collective:
    """Return a collective of a group."""
    communication = command.communication
    barrier = communication.kind == "barrier"
    kind = COLLECTIVES["all_reduce" if barrier else cast(CollectiveKind, communication.kind)]
    return kind(
        max(communication.nbytes, BARRIER_BYTES) if barrier else communication.nbytes,
        group,
        command.stream,
        command.issuer,
        None if communication.root is None else group.ranks[communication.root],
        communication.shares,
        layers=command.layers,
        line=communication.line,
    )


def uneven_exchange(
    rank: int, group: Communicator, command: GroupCollective, sent: Sequence[Sequence[float]], tag: int
) -> Batch:
    """Return an all-to-all of unequal parts as NCCL does it: a batch of sends and receives, none of no bytes.

    ``sent`` are the bytes from each member of the group to each.
    """
    family, stream, issuer = command.communication.group, command.stream, command.issuer
    own = group.ranks.index(rank)
    parts: list[Send | Recv] = []
    for index, other in enumerate(group.ranks):
        if index != own and sent[own][index]:
            parts.append(Send(other, sent[own][index], tag, stream, issuer, family, layers=command.layers))
        if index != own and sent[index][own]:
            parts.append(Recv(other, tag, stream, issuer, family))
    return Batch(tuple(parts), stream, issuer, family, command.layers)


def exchange_task(
    command: PointToPoint, groups: Mapping[str, Communicator], tags: Mapping[str, int]
) -> Send | Recv | Batch:
    """Return sends and receives with peers in the rank's ``groups``; ``tags`` are where those of each family begin."""
    parts = tuple([_send_or_receive(one, command, groups[one.group], tags[one.group]) for one in command.parts])
    if len(parts) == 1:
        return parts[0]
    first = command.parts[0]
    return Batch(parts, command.stream, command.issuer, first.group, command.layers, line=first.line)


def _send_or_receive(part: Communication, command: PointToPoint, group: Communicator, tag: int) -> Send | Recv:
    assert part.peer is not None
    peer = group.ranks[part.peer]
    if part.kind == "send":
        size = part.nbytes
        return Send(
            peer, size, part.tag + tag, command.stream, command.issuer, part.group, command.layers, line=part.line
        )
    return Recv(peer, part.tag + tag, command.stream, command.issuer, part.group, line=part.line)
