"""What a network is: something that delivers bytes from one node to another, and that takes its time.

A plug-in writes ``transfer`` and has collectives too, because they are lowered to transfers by a collective
algorithm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import simpy
from simpy.events import EventPriority

from triosim import plugins
from triosim.errors import AsymmetryError, OptionError, PluginError, nearest
from triosim.networks.collectives.algorithm import CollectiveAlgorithm, Pipeline, Place, check, checked, latency_of
from triosim.networks.collectives.execution import Chart, Run, run_pipeline
from triosim.networks.topology import Topology
from triosim.networks.topology.link_symmetry import LinkClasses
from triosim.tasks import CollectiveKind, Communicator

Form = Literal["pipelined", "steps"]
_LAID_OUT = 4_000_000  # transfers of collectives kept for the next time
_LATE = EventPriority(2)  # after everything else of the same instant


@dataclass(frozen=True, slots=True)
class FlowRecord:
    """A transfer that is over: bytes, when it was asked for and when the last byte was there, the links it crossed."""

    source: str
    destination: str
    nbytes: float
    started: float
    finished: float
    links: tuple[str, ...]


class LinkRate(NamedTuple):
    """From a time on a link carries so many bytes per second, and so much of its bandwidth is taken (0 to 1)."""

    time: float
    link: str
    rate: float
    share: float


class Network(ABC):
    """Delivers bytes between the nodes of a topology, on the clock of a SimPy environment.

    ``algorithm`` says how a collective becomes transfers: the name of a plug-in, or a ``CollectiveAlgorithm``.
    ``form`` is ``steps`` (each transfer of the algorithm by itself, a rank goes on when its own data came in) or
    ``pipelined`` (the steady state of a chunked algorithm: all its edges at once, after the fill latency). With
    ``record``, a network that can tell fills ``flows`` and ``rates``, for the timeline and for what each link carried when.
    """

    #: Whether what is sent at once slows each other down.
    contention: ClassVar[bool] = True

    def __init__(
        self,
        env: simpy.Environment,
        topology: Topology,
        *,
        algorithm: str | CollectiveAlgorithm = "ring",
        form: Form = "pipelined",
        record: bool = False,
    ) -> None:
        if form not in get_args(Form):
            raise OptionError(f"unknown form of collectives '{form}'", fix=nearest(str(form), get_args(Form)))
        self.env = env
        self.topology = topology
        self.algorithm: CollectiveAlgorithm = (
            plugins.load("collective_algorithms", algorithm)() if isinstance(algorithm, str) else algorithm
        )
        self.form = form
        self.record = record
        self.flows: list[FlowRecord] = []
        self.rates: list[LinkRate] = []
        self.link_classes: LinkClasses | None = None  # of links, where what is sent stands for its copies
        self._laid_out: dict[tuple[Any, ...], tuple[Pipeline | Chart, int]] = {}
        self._kept = 0  # transfers in all that is laid out

    @abstractmethod
    def transfer(self, source: Place, destination: Place, nbytes: float) -> simpy.Event:
        """Send bytes between two nodes, given by rank or name; the event fires when the last byte is delivered."""

    def collective(
        self,
        kind: CollectiveKind,
        group: Sequence[int] | Communicator,
        nbytes: float,
        *,
        root: int | None = None,
        shares: Sequence[float] | None = None,
    ) -> simpy.Event:
        """Run a collective of the ranks of a group; the event fires when all of them are through.

        ``nbytes`` is the tensor for all-reduce, broadcast and reduce, all ranks' shares together for the others;
        ``shares`` divide it unequally, in the group's order; in an all-to-all they are what each rank sends to every one
        in turn, or N x N sizes, by sender, of which ``nbytes`` is a sender's mean. ``root`` is a rank of the group, the
        first one unless it is said. Raises ``TriosimError`` for what cannot be: an unknown or repeated rank, a negative
        size, a root outside the group.
        """
        ranks = group.ranks if isinstance(group, Communicator) else tuple(group)
        root = check(kind, ranks, nbytes, self.topology, root=root, shares=shares)
        if len(ranks) == 1:
            return self.env.timeout(0)
        event = self.env.event()
        plan, factor = self._plan(kind, ranks, nbytes, root, None if shares is None else tuple(shares))
        if isinstance(plan, Pipeline):
            run_pipeline(self._send, self._once(plan, ranks), factor, event)
        else:
            self._check_whole(ranks)
            Run(self._send, plan, factor, event).start()
        return event

    def _once(self, pipeline: Pipeline, ranks: tuple[int, ...]) -> Pipeline:
        """The edges of a collective that are simulated: one of those that stand for each other."""
        if self.link_classes is None:
            return pipeline
        return pipeline._replace(edges=self.link_classes.representatives(pipeline.edges, ranks))

    def _check_whole(self, ranks: tuple[int, ...]) -> None:
        """Raise ``AsymmetryError`` where the steps of a collective, of which each is sent, stand for each other."""
        if self.link_classes is not None and self.link_classes.spans(ranks):
            raise AsymmetryError(f"the steps of {ranks} are sent one by one")

    def _plan(
        self,
        kind: CollectiveKind,
        ranks: tuple[int, ...],
        nbytes: float,
        root: int | None,
        shares: tuple[float, ...] | None,
    ) -> tuple[Pipeline | Chart, float]:
        """Return the transfers of a collective, laid out now or before, and what to multiply their bytes by."""
        algorithm = self.algorithm
        proportional = algorithm.proportional or (algorithm.steady and self.form == "pipelined")
        proportional = proportional and shares is None
        size = 1.0 if proportional else nbytes
        key = (kind, ranks, size, root, shares)
        found = self._laid_out.get(key)
        if found is None:
            if self.form == "pipelined":
                pipeline = algorithm.pipeline(kind, ranks, size, self.topology, root=root, shares=shares)
                found = pipeline, len(pipeline.edges)
            else:
                transfers = algorithm.transfers(kind, ranks, size, self.topology, root=root, shares=shares)
                chart = Chart(checked(algorithm, transfers, ranks, self.topology))
                found = chart, len(chart)
            while self._laid_out and self._kept + found[1] > _LAID_OUT:
                oldest = next(iter(self._laid_out))
                self._kept -= self._laid_out.pop(oldest)[1]
            self._laid_out[key] = found
            self._kept += found[1]
        return found[0], nbytes if proportional else 1.0

    def edges(
        self, kind: CollectiveKind, ranks: tuple[int, ...], nbytes: float, *, root: int | None = None
    ) -> Iterable[tuple[Place, Place]] | None:
        """Return from where to where a collective sends, in an order that depends on the ranks' places alone.

        It is asked where ranks that do the same are to be simulated once. What shares no links with it must not change what
        a collective takes. None: they cannot be simulated once, on this network.
        """
        return None

    def fold(self, link_classes: LinkClasses | None) -> bool:
        """Simulate one representative of each link class from now on; return False where the network cannot."""
        return False

    def bytes_by_link(self) -> dict[str, float]:
        """Return how many bytes each link has carried; empty for a network that does not count them."""
        return {}

    def set_bandwidth(self, source: Place, destination: Place, bandwidth: float) -> None:
        """Let the links from one node to another have a bandwidth from now on, in bytes per second; with 0 they carry nothing.

        Raises ``OptionError`` unless the network says how.
        """
        raise OptionError(
            f"{type(self).__name__} cannot change links while it runs", where="events", fix="take the network 'packet'"
        )

    def figures(self) -> Mapping[str, float]:
        """Return what else the network has counted, by name (seconds under names that end in ``_s``), for the result."""
        return {}

    def _late(self, callback: Callable[[], None]) -> None:
        """Call back when everything else of this instant has happened."""
        event = simpy.Event(self.env)
        event._ok = True
        event._value = None
        event.callbacks.append(lambda _: callback())
        self.env.schedule(event, _LATE)

    def _send(
        self, source: Place, destination: Place, nbytes: float, done: Callable[[], object], latency: float | None = None
    ) -> None:
        """Send one transfer of a collective and call back on delivery; ``latency`` takes the place of the route's."""
        if latency is not None:
            early = latency - latency_of(self.topology, source, destination)
            if early > 0:
                self.env.timeout(early).callbacks.append(lambda _: self._send(source, destination, nbytes, done))
                return
        event = self.transfer(source, destination, nbytes)
        if isinstance(event, simpy.Event) and event.callbacks is None:  # a plug-in that delivers at once
            event = self.env.timeout(0)
        when(event, lambda _: done())


def when(event: simpy.Event, callback: Callable[[simpy.Event], object]) -> None:
    """Call back when the event, which a network returned, has happened, also when that was before."""
    if not isinstance(event, simpy.Event):
        raise PluginError(
            f"the network returned {event!r:.40}", fix="return a SimPy event from transfer and collective"
        )

    def happened(_: simpy.Event) -> None:
        if not event.ok:
            raise PluginError(f"the network failed: {event.value!r}")
        callback(event)

    if event.callbacks is None:
        happened(event)
    else:
        event.callbacks.append(happened)
