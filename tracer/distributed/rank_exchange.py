"""What the ranks of a group have sent, as each of them receives it in a collective.

Of a rank that runs beside this one it is what that rank has sent; of one that does not run, what the running rank that it
follows has sent in the same group, or else what this rank has sent itself.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from triosim.tracer.distributed.rank_messages import RankMessages
from triosim.tracer.distributed.rank_numbers import RankNumbers, differ
from triosim.tracer.recorder.script_lines import is_asked_by_pytorch, script_line


class RankExchange:
    """Exchanges of a rank with those that run beside it, by ``messages``; without any, all are taken to send the same.

    ``note`` is told where those that do not run are assumed to send what depends on their rank.
    """

    def __init__(
        self, rank: int, messages: RankMessages | None = None, note: Callable[[str], None] = lambda what: None
    ) -> None:
        self.rank = rank
        self._messages = messages
        self._like = None if messages is None else messages.like
        self._alike = None if messages is None else messages.alike
        self._note = note
        self.taken: dict[str, None] = {}  # lines at which the script got numbers of ranks that do not run

    def holder(self, members: Sequence[int], rank: int) -> int:
        """Return the running rank that stands for one of the members of a group."""
        found = self.rank if self._like is None else self._like[rank]
        return found if found in members else self.rank

    @property
    def all_run(self) -> bool:
        """Whether each rank of the world runs, and stands for itself alone."""
        return self._like is not None and all(one == rank for rank, one in enumerate(self._like))

    def is_alone(self, members: Sequence[int]) -> bool:
        """Whether this rank stands for all members of a group."""
        return all(self.holder(members, one) == self.rank for one in members)

    def take(self, members: Sequence[int], senders: Sequence[int] | None = None) -> None:
        """Keep the line of the script where it gets numbers of ``senders``, all members by default, that do not run."""
        if self._like is None:
            return
        if (
            any(self._like[one] != one for one in (members if senders is None else senders))
            and not is_asked_by_pytorch()
        ):
            self.taken[script_line()] = None

    def _others(self, members: Sequence[int]) -> list[int]:
        """Return the running ranks whose contributions this one gets."""
        return sorted({self.holder(members, one) for one in members} - {self.rank})

    def contributions(self, members: Sequence[int], subject: str, mine: Any) -> list[Any]:
        """Return what each member of a group sends, in order; wait for those that run. ``mine`` can be written as JSON."""
        holders = [self.holder(members, one) for one in members]
        others = self._others(members)
        found = {self.rank: mine}
        if others and self._messages is not None:
            subject = _name(subject, members)
            self._messages.announce(subject, mine)
            found.update((other, self._messages.hear(other, subject)) for other in others)
        return [found[one] for one in holders]

    def of_all(self, members: Sequence[int], sent: Sequence[Any]) -> list[Any]:
        """Return what each member of a group sends; ``sent`` has what those that run do, also in the places of their followers.

        What grows with the rank is worked out (``rank_numbers``); where other numbers differ the script is told.
        """
        if self._like is None or self._alike is None:
            return list(sent)
        self.take(members)
        running = {one: value for one, value in zip(members, sent, strict=True) if self.holder(members, one) == one}
        if len(running) in (1, len(members)) or not differ(list(running.values())):
            return list(sent)
        numbers, found = RankNumbers(), []
        for one, value in zip(members, sent, strict=True):
            alike = {r: given for r, given in running.items() if self._alike[r] == self._alike[one]}
            seen = alike if len(alike) > 1 else running
            found.append(value if one in running else numbers.of_rank(one, seen, value))
        if numbers.unclear:
            self._note(
                f"ranks {', '.join(map(str, running))} send different numbers, and the {len(members) - len(running)} that "
                "do not run are taken to send those of the rank that they follow; --ranks all runs them"
            )
        return found

    def contribute_nothing(self, members: Sequence[int], subject: str) -> None:
        """Send None as this rank's contribution, and wait for no other's."""
        if self._messages is not None:
            subject = _name(subject, members)
            self._messages.announce(subject, None)
            for other in self._others(members):
                self._messages.skip(other, subject)

    def of_root(self, members: Sequence[int], subject: str, root: int, mine: Any) -> Any:
        """Return what the root, a position in the group, sends, for whom each other waits. ``mine`` can be written as JSON."""
        holder = self.holder(members, members[root])
        self.take(members, [members[root]])
        if self._messages is None or self.is_alone(members):
            return mine
        subject = _name(f"{subject}-of-{root}", members)
        if holder != self.rank:
            return self._messages.hear(holder, subject)
        self._messages.announce(subject, mine)
        return mine

    def objects(self, members: Sequence[int], mine: Any) -> list[Any]:
        """Return the Python object that each member of a group sends; of ranks with one holder it is the same object."""
        if self.is_alone(members):
            self.take(members)
            return [mine] * len(members)
        holders = [self.holder(members, one) for one in members]
        sent = dict(zip(holders, self.contributions(members, "objects", encoded(mine)), strict=True))
        found = {one: mine if one == self.rank else decoded(text) for one, text in sent.items()}
        return self.of_all(members, [found[one] for one in holders])

    def object_of_root(self, members: Sequence[int], root: int, mine: Any) -> Any:
        """Return the Python object that the root, a position in the group, sends."""
        is_mine = self.holder(members, members[root]) == self.rank
        if is_mine and self.is_alone(members):
            self.take(members, [members[root]])
            return mine
        sent = self.of_root(members, "object", root, encoded(mine) if is_mine else None)
        return mine if is_mine else decoded(sent)

    def send(self, receiver: int, value: Any) -> None:
        """Send a Python object to a rank."""
        if self._like is not None:
            self.tell(receiver, "object", encoded(value))

    def receive(self, sender: int, otherwise: Any) -> Any:
        """Return the Python object that a rank has sent to this one, if it or one that sends the same runs; wait for it."""
        found = self.told(sender, "object")()
        return otherwise if found is None else decoded(found)

    def tell(self, receiver: int, subject: str, value: Any) -> None:
        """Send a message to a rank, which it or another one gets. ``value`` can be written as JSON."""
        if self._messages is not None and self._like is not None:
            self._messages.send(receiver, subject, value)

    def told(self, sender: int, subject: str) -> Callable[[], Any]:
        """Return a function that waits for the next message from a rank, and returns it.

        That of a rank that does not run is what the one that it follows sends to its own partner; None where there is none.
        """
        if self._messages is None or self._like is None:
            return lambda: None
        self.take([sender])
        return self._messages.expect(sender, subject) if self._messages.comes_from(sender) else lambda: None


def _name(subject: str, members: Sequence[int]) -> str:
    return f"{subject}-{hash(tuple(members)):x}"


def encoded(value: Any) -> str:
    """Return a Python object as text, its fake tensors by shape."""
    into = io.BytesIO()
    torch.save(value, into)
    return base64.b64encode(into.getvalue()).decode()


def decoded(text: str) -> Any:
    """Return the Python object of a text."""
    return torch.load(io.BytesIO(base64.b64decode(text)), weights_only=False)


def members_of(group: Any) -> tuple[int, ...]:
    """Return the ranks of a group; none where this rank is not in it."""
    if not dist.is_initialized() or group is dist.GroupMember.NON_GROUP_MEMBER:
        return ()
    return tuple(dist.get_process_group_ranks(group))
