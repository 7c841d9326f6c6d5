"""Activations that are away from the GPU for a while: their lifetimes are divided in two, between which they take no memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from copy import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triosim.memory.liveness.micro_batch_lifetimes import MicroBatchLifetime


class AwayTensors:
    """Follows which lifetimes leave the GPU and come back, by the positions of operators."""

    def __init__(self) -> None:
        self._leaving: dict[Hashable, list[MicroBatchLifetime]] = {}
        self._away: dict[int, tuple[MicroBatchLifetime, int, int | None]] = {}  # by id()

    def begin_to_leave(self, key: Hashable, lifetimes: list[MicroBatchLifetime]) -> None:
        """Note that tensors are copied to another memory; they are gone when ``left`` is called with the key."""
        self._leaving[key] = lifetimes

    def left(self, key: Hashable, last: int) -> None:
        """Note that tensors are gone after operator ``last``, if the key is theirs."""
        for lifetime in self._leaving.pop(key, ()):
            self._away[id(lifetime)] = lifetime, last, None

    def come_back(self, lifetimes: Iterable[MicroBatchLifetime], first: int) -> None:
        """Note that tensors take memory again from operator ``first`` on."""
        for lifetime in lifetimes:
            if id(lifetime) in self._away:
                self._away[id(lifetime)] = lifetime, self._away[id(lifetime)][1], first

    def divide(self) -> list[MicroBatchLifetime]:
        """End the lifetimes of what was away when it left, and return those that begin when it came back."""
        found = []
        for lifetime, last, first in self._away.values():
            if first is None or not lifetime.born <= last < first <= lifetime.last:
                continue
            again = copy(lifetime)
            again.born, again.birth_clock = first, None
            lifetime.last, lifetime.death_clock = last, None
            lifetime.category = again.category = "activation"
            found.append(again)
        return found
