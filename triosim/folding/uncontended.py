"""Collectives that have their links for themselves, so that each takes what it takes on an idle network: simulated once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import simpy

from triosim.errors import AsymmetryError
from triosim.folding.dry_run import Kind
from triosim.networks.base import Network
from triosim.networks.extensions import LinkCounter


@dataclass(slots=True)
class _Took:
    """What one collective took alone, what its links carried, and how many were run."""

    seconds: float
    carried: Mapping[str, float]
    count: int = 0


class Lone:
    """Runs collectives of which no two that share links are run at once. ``links`` are those that each kind goes over.

    ``idle`` is a network like the one on whose clock they are run, with nothing on it.
    """

    def __init__(self, env: simpy.Environment, idle: Network, links: Mapping[Kind, Iterable[str]]) -> None:
        self._env = env
        self._idle = idle
        self._links = links
        self._took: dict[tuple[Kind, float], _Took] = {}
        self._over: dict[tuple[int, ...], float] = {}
        self._carried: Mapping[str, float] | None = None  # by the idle network so far

    def run(self, kind: Kind, nbytes: float, start: Callable[[Network], simpy.Event]) -> simpy.Event:
        """Run a collective that ``start`` starts on a network. Raises ``AsymmetryError`` where the last one is not through."""
        took = self._took.get((kind, nbytes))
        if took is None:
            took = self._took[kind, nbytes] = self._tried(kind, start)
        now = self._env.now
        if now < self._over.get(kind.ranks, now):
            raise AsymmetryError(f"collectives of {kind.ranks} overlap")
        took.count += 1
        event = self._env.timeout(took.seconds)
        self._over[kind.ranks] = now + took.seconds
        return event

    def bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that links have carried."""
        found: dict[str, float] = {}
        for took in self._took.values():
            for name, nbytes in took.carried.items():
                found[name] = found.get(name, 0.0) + nbytes * took.count
        return found

    def _tried(self, kind: Kind, start: Callable[[Network], simpy.Event]) -> _Took:
        idle, links = self._idle, self._links[kind]
        began, before = idle.env.now, self._carried or _carried_by(idle)
        idle.env.run(until=start(idle))
        after = self._carried = _carried_by(idle)
        return _Took(idle.env.now - began, {name: after[name] - before[name] for name in links if name in after})


def _carried_by(network: Network) -> Mapping[str, float]:
    return network.bytes_by_link() if isinstance(network, LinkCounter) else {}
