"""Messages between ranks: the n-th send and the n-th receive of a pair, tag and size belong together.

A send starts on its way at once, whether or not the receive is posted, and is over when it arrives. With the rendezvous
protocol a receiver first sends 8,192 bytes to the sender, on whose arrival the message starts and the receive is posted.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeAlias

from triosim.engine.astra_sim.clock import Clock
from triosim.engine.astra_sim.networks import AstraNetwork

_REQUEST = 8192
_TAGS = 500_000_000
_FINISHED = object()

Call: TypeAlias = tuple[Callable[[Any], None], Any]


class Tags(IntEnum):
    """Whose tags they are: nodes and collectives do not meet, each has five hundred million."""

    NODE = 0
    COLLECTIVE = 1
    REQUEST = 2


class Messages:
    """All messages of a run that are sent or awaited."""

    def __init__(self, clock: Clock, network: AstraNetwork, *, rendezvous: bool) -> None:
        self.clock, self._network, self._rendezvous = clock, network, rendezvous
        self._numbers: dict[tuple[Any, ...], list[int]] = {}
        self._entries: dict[tuple[Any, ...], list[Any]] = {}

    def send(self, source: int, destination: int, size: int, tag: tuple[Tags, int], sent: Call | None) -> None:
        """Send a message; ``sent`` is called when it has arrived."""
        tag = (tag[0], tag[1] % _TAGS)
        if self._rendezvous:
            later = (self._send, (source, destination, size, tag, sent))
            self._receive((destination, source, _REQUEST, (Tags.REQUEST, tag), later))
        else:
            self._send((source, destination, size, tag, sent))

    def receive(self, source: int, destination: int, size: int, tag: tuple[Tags, int], received: Call) -> None:
        """Await a message; ``received`` is called when it is there."""
        tag = (tag[0], tag[1] % _TAGS)
        if self._rendezvous:
            later = (self._receive, (source, destination, size, tag, received))
            self._send((destination, source, _REQUEST, (Tags.REQUEST, tag), later))
        else:
            self._receive((source, destination, size, tag, received))

    def _send(self, message: tuple[int, int, int, Any, Call | None]) -> None:
        source, destination, size, tag, sent = message
        key = self._numbered((tag, source, destination, size), 0)
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = [sent, None]
        else:
            entry[0] = sent
        self._network.send(source, destination, size, self._arrived, key)

    def _receive(self, message: tuple[int, int, int, Any, Call]) -> None:
        source, destination, size, tag, received = message
        key = self._numbered((tag, source, destination, size), 1)
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = [None, received]
        elif entry[1] is _FINISHED:
            del self._entries[key]
            self.clock.at(self.clock.now, *received)
        else:
            entry[1] = received

    def _numbered(self, key: tuple[Any, ...], side: int) -> tuple[Any, ...]:
        numbers = self._numbers.get(key)
        if numbers is None:
            numbers = self._numbers[key] = [0, 0]
        numbers[side] += 1
        return key, numbers[side]

    def _arrived(self, key: tuple[Any, ...]) -> None:
        """Tell the sender, then the receiver; one that has not asked yet is told when it does."""
        entry = self._entries[key]
        sent, received = entry
        entry[1] = _FINISHED
        if sent is not None:
            sent[0](sent[1])
        if received is not None:
            del self._entries[key]
            received[0](received[1])
