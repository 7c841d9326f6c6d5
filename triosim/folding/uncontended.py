"""Memoises collectives that share no link with others: each size is simulated once, on an idle network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import simpy

from triosim.errors import AsymmetryError
from triosim.folding.dry_run import TransferPattern
from triosim.networks.base import Network
from triosim.networks.extensions import LinkCounter


@dataclass(slots=True)
class _IdleRun:
    """A collective on the idle network: its seconds, the bytes on its links, and how often it has ended."""

    seconds: float
    bytes_by_link: Mapping[str, float]
    count: int = 0

    def ended(self, _: simpy.Event) -> None:
        """Count its bytes, as a network does."""
        self.count += 1


class UncontendedCollectives:
    """Runs collectives whose links nobody else uses, at the times that they take on an idle network.

    ``env`` is the clock of the run; ``idle`` is an equal network, on a clock of its own, on which nothing else is sent;
    ``links`` are the names of the links of each pattern.
    """

    def __init__(self, env: simpy.Environment, idle: Network, links: Mapping[TransferPattern, Iterable[str]]) -> None:
        self._env = env
        self._idle = idle
        self._links = links
        self._idle_runs: dict[tuple[TransferPattern, float], _IdleRun] = {}
        self._ends: dict[tuple[int, ...], float] = {}
        self._idle_bytes: Mapping[str, float] | None = None  # over each link of the idle network so far

    def __contains__(self, pattern: TransferPattern) -> bool:
        return pattern in self._links

    def run(self, pattern: TransferPattern, nbytes: float, start: Callable[[Network], simpy.Event]) -> simpy.Event:
        """Run a collective that ``start`` starts on a network. Raises ``AsymmetryError`` if the last one has not ended."""
        found = self._idle_runs.get((pattern, nbytes))
        if found is None:
            found = self._idle_runs[pattern, nbytes] = self._run_on_idle_network(pattern, start)
        now = self._env.now
        if now < self._ends.get(pattern.ranks, now):
            raise AsymmetryError(f"one {pattern} starts before the last one has ended")
        event = self._env.timeout(found.seconds)
        event.callbacks.append(found.ended)
        self._ends[pattern.ranks] = now + found.seconds
        return event

    def bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that went over each link."""
        found: dict[str, float] = {}
        for run in self._idle_runs.values():
            for name, nbytes in run.bytes_by_link.items():
                found[name] = found.get(name, 0.0) + nbytes * run.count
        return found

    def _run_on_idle_network(self, pattern: TransferPattern, start: Callable[[Network], simpy.Event]) -> _IdleRun:
        idle, links = self._idle, self._links[pattern]
        began, before = idle.env.now, self._idle_bytes or _bytes_by_link(idle)
        idle.env.run(until=start(idle))
        after = self._idle_bytes = _bytes_by_link(idle)
        return _IdleRun(idle.env.now - began, {name: after[name] - before[name] for name in links if name in after})


def _bytes_by_link(network: Network) -> Mapping[str, float]:
    return network.bytes_by_link() if isinstance(network, LinkCounter) else {}
