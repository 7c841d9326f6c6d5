"""Meetings of running ranks: a barrier holds the process of each until the others have come, as what they do next may need it.

A script saves on one rank, waits at a barrier, and loads on all. Exchanges of Python objects hold ranks too: they have what
another rank has made. Simulated hosts wait as the processes do, for no rank can say what it does after a barrier before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from triosim.tracer.distributed.rank_messages import RankMessages
from triosim.tracer.patches import Patch

#: Calls at which ranks meet, and the position of the group among their arguments.
_MEETINGS = {
    "barrier": 0,
    "monitored_barrier": 0,
    "all_gather_object": 2,
    "gather_object": 3,
    "broadcast_object_list": 2,
    "scatter_object_list": 3,
}


def patches(messages: RankMessages, running: Collection[int]) -> Iterator[Patch]:
    """Yield patches by which the ``running`` ranks of a group meet."""
    for owner in (dist, distributed_c10d):
        for name, position in _MEETINGS.items():
            yield Patch(owner, name, _held(getattr(owner, name), position, messages, running))


def _held(original: Any, position: int, messages: RankMessages, running: Collection[int]) -> Any:
    @wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        group = options.get("group", args[position] if len(args) > position else None)
        members = _members(group)
        others = [] if options.get("async_op") else [one for one in members if one in running and one != messages.rank]
        subject = f"meeting-{hash(members):x}"
        if others:
            messages.announce(subject)
        result = original(*args, **options)
        for other in others:
            messages.hear(other, subject)
        return result

    return call


def _members(group: Any) -> tuple[int, ...]:
    """Return the ranks of a group; none where this rank is not in it."""
    if not dist.is_initialized() or group is dist.GroupMember.NON_GROUP_MEMBER:
        return ()
    return tuple(dist.get_process_group_ranks(group))
