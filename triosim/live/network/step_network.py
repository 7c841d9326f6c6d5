"""The network of a run as one step of a script used it: what its links carried, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from triosim.folding.finished_network import FinishedNetwork
from triosim.networks.base import Network
from triosim.networks.extensions import FigureReporter, FlowRecord, LinkRate, LinkRecorder


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """The transfers of a step, and the rates of its links, on a clock that begins with it."""

    flows: list[FlowRecord] = field(default_factory=list)
    rates: list[LinkRate] = field(default_factory=list)


class LinkClock:
    """Cuts what a network records of its links over time where a step ends, and forgets it. Most networks record nothing."""

    def __init__(self, network: Network) -> None:
        self._recorder = network if isinstance(network, LinkRecorder) and network.record else None
        self._last: dict[str, LinkRate] = {}  # by link, where the step began

    def cut(self, began: float, ended: float) -> LinkTimes:
        """Return what was recorded of a step."""
        if self._recorder is None:
            return LinkTimes()
        recorded, flows = self._recorder.rates, self._recorder.flows
        now = [one for one in recorded if one.time <= ended]
        recorded[:] = [one for one in recorded if one.time > ended]  # circuits say beforehand when they will be through
        carried = [one._replace(time=max(one.time - began, 0.0)) for one in (*self._last.values(), *now)]
        self._last.update((one.link, one) for one in sorted(now, key=lambda one: one.time))
        self._last = {link: one for link, one in self._last.items() if one.rate}
        sent = [replace(one, started=one.started - began, finished=one.finished - began) for one in flows]
        flows.clear()
        return LinkTimes(sent, carried)


class StepNetwork(FinishedNetwork, LinkRecorder, FigureReporter):
    """The network of a run, with the bytes that its links ``carried`` in one step, what else it ``counted``, and when."""

    def __init__(
        self, network: Network, carried: Mapping[str, float], counted: Mapping[str, float], times: LinkTimes
    ) -> None:
        super().__init__(network)
        self._carried, self._counted = dict(carried), counted
        self.record, self.flows, self.rates = bool(times.rates), times.flows, times.rates

    def bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that each link carried in the step."""
        return self._carried

    def figures(self) -> Mapping[str, float]:
        """Return what the network counted in the step."""
        return self._counted
