"""A calibration: the fitted times of collectives on one kind of machine, inside a node and between nodes.

Inside a node a time comes from the curves of the collective's kind. Between nodes it comes from the model of the kind of
network (:mod:`~triosim.networks.calibration.internode`), or from curves that were fitted to this very cluster: then a group
over several nodes takes both tiers at once, as NCCL's pipelines do: their latencies one after the other, and the slower of
them for the bytes (TorchSim, table 10, adds the two up, which would be right for whole messages stored and forwarded).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from triosim.networks.calibration.curves import LIKE, KindCurves, Sigmoid, Straggler, TimeParts, features, sent
from triosim.networks.calibration.internode import InterNodeModel, algorithms, card_share, hops_of

NodeLink = Literal["nvlink", "pcie"]
REACHED = 0.75  # of a GPU's links, by the largest collectives on the machines that were measured (0.66 to 0.90)
ANY = "any"  # the kind whose figures between nodes stand for all that have none of their own


@dataclass(frozen=True, slots=True)
class InterNodeTimes:
    """Times between nodes: seconds per hop, and the bandwidth that a GPU's network card achieves by the bytes it sends.

    Where NCCL has a ring and a tree, the bytes are those of the ring, and the hops those of the tree.
    """

    latency: float
    sigmoid: Sigmoid

    def parts(self, kind: str, nodes: int, gpus: int, nbytes: float, inside: TimeParts) -> TimeParts:
        """Return the time of a collective of ``gpus`` over some nodes, given what its share inside a node takes alone."""
        large, small = algorithms(kind)[0], algorithms(kind)[-1]
        moving = self.sigmoid.seconds(nbytes * card_share(kind, large, nodes, gpus))
        latency = inside.latency + self.latency * hops_of(kind, small, nodes)
        return TimeParts(latency, max(inside.moving, moving), large)


@dataclass(frozen=True, slots=True)
class MeasuredNode:
    """The inside of a node that was measured: bytes per second from a GPU to the others in one direction, and its links.

    ``latency`` is that of one link in seconds, of which a message between two GPUs crosses two. ``gpus_per_switch`` is how many
    PCIe boards share a switch.
    """

    bandwidth: float
    latency: float
    link: NodeLink = "nvlink"
    reduces: bool = False  # the switch adds up and multicasts (NVLS)
    gpus_per_switch: int = 0

    def wire_seconds(self, kind: str, gpus: int, nbytes: float) -> float:
        """Return what the bytes of a collective need on a GPU's links, at the share of their bandwidth that is reached."""
        each = sent(kind, gpus)
        if self.reduces and kind == "all_reduce":
            each = min(each, (gpus + 1) / gpus)
        return each * nbytes / (REACHED * self.bandwidth)


@dataclass(frozen=True, slots=True)
class NodeScale:
    """How the inside of a node differs from the one that was measured.

    ``speed`` is the bandwidth of a GPU to the others by that of the measured node, ``delay`` the seconds that a hop takes
    longer, ``shares`` the part of that bandwidth in a group of 2, 3 ... GPUs, where a smaller group has fewer links.
    ``gpus_per_switch`` is set where PCIe boards share switches otherwise than in the measured server.
    """

    speed: float = 1.0
    delay: float = 0.0
    shares: tuple[float, ...] = ()
    gpus_per_switch: int = 0

    def of_boards(self, kind: str, gpus: int, group: TimeParts, pair: TimeParts) -> TimeParts:
        """Return the time of a group of PCIe boards, given those of the group and of a pair on the measured server.

        How far a larger group falls behind a pair is a matter of that server's host, and says nothing of others. So a group has
        the latency of the measured one, and the rate of a pair, all of which is the link's. What an all-to-all sends from one
        switch to another shares the link between them.
        """
        near = min(self.gpus_per_switch, gpus)
        sharing = max(near * (gpus - near) / (gpus - 1), 1.0) if kind == "all_to_all" else 1.0
        moving = pair.moving * sent(kind, gpus) / sent(kind, 2) * sharing / self.speed
        return TimeParts(self._delayed(kind, gpus, group.latency), moving)

    def scaled(self, kind: str, gpus: int, parts: TimeParts, on_wire: float) -> TimeParts:
        """Return the time of a collective of some GPUs on this node, given that on the measured one.

        Of the time of the bytes, the bandwidth changes what they need ``on_wire``; the rest is the protocols'.
        """
        moving = parts.moving + min(on_wire, parts.moving) * (1.0 / self.speed_of(gpus) - 1.0)
        return TimeParts(self._delayed(kind, gpus, parts.latency), moving)

    def _delayed(self, kind: str, gpus: int, latency: float) -> float:
        """Return a latency with what its hops take longer."""
        hops = (2 if kind == "all_reduce" else 1) * math.ceil(math.log2(gpus))
        return max(latency + self.delay * hops, latency / 2)

    def speed_of(self, gpus: int) -> float:
        """Return the bandwidth of a GPU to the others of a group by that within the measured node."""
        return self.speed * (self.shares[gpus - 2] if 2 <= gpus < len(self.shares) + 2 else 1.0)


@dataclass(frozen=True, slots=True)
class FasterMachine:
    """A measured machine with faster links than a node: its ``calibration``, and how far the node is towards it (0 to 1).

    The times of a node between two machines are between theirs, in logarithms, and never more than the slower machine's: a
    launch of a later generation may cost more, but faster links never do.
    """

    calibration: Calibration
    share: float

    def mixed(self, kind: str, gpus: int, nbytes: float, slower: TimeParts) -> TimeParts:
        """Return the time of a collective inside the node, given that on the slower machine."""
        known = self.calibration.inside(kind, gpus, nbytes)
        if known is None or not slower.total:
            return slower
        total = slower.total * min(known.total / slower.total, 1.0) ** self.share
        latency = min(slower.latency, total)
        return TimeParts(latency, total - latency)


@dataclass(frozen=True)
class Calibration:
    """Fitted times of collectives: ``kinds`` inside a node of ``gpus_per_node``, ``between`` nodes, ``stragglers``.

    ``note`` says what it was fitted to, ``node`` what the inside of that node is, and ``scale`` how this one differs.
    ``faster`` is a second machine, between which and this one the node is.
    ``internode`` is the model between nodes for kinds that ``between`` does not have. ``wait`` is how many seconds every
    collective takes longer than in the measurements, whatever its size: in a training step its ranks do not arrive at one
    moment, whereas those of a benchmark do.
    """

    gpus_per_node: int
    kinds: Mapping[str, KindCurves]
    between: Mapping[str, InterNodeTimes] = field(default_factory=dict)
    stragglers: Mapping[str, Straggler] = field(default_factory=dict)
    note: str = ""
    wait: float = 0.0
    node: MeasuredNode | None = None
    scale: NodeScale = NodeScale()
    faster: FasterMachine | None = None
    internode: InterNodeModel | None = None

    def parts(
        self, kind: str, gpus: int, nbytes: float, nodes: int = 1, algorithm: str | None = None
    ) -> TimeParts | None:
        """Return the time of a collective of ``gpus`` over so many nodes; None for what was neither measured nor modelled.

        ``algorithm`` (ring, tree) between nodes is the quickest by default.
        """
        inside = math.ceil(gpus / nodes)
        near = self.inside(kind, inside, nbytes) if inside > 1 else TimeParts(0.0, 0.0)
        found = near
        if nodes > 1:
            own = self.own_between(kind)
            if own is not None:
                found = own.parts(kind, nodes, gpus, nbytes, near or TimeParts(0.0, 0.0))
            elif near is not None:
                model = self.internode
                found = None if model is None else model.parts(kind, nodes, gpus, nbytes, near, algorithm)
        if found is None:
            return None
        ratio = self.stragglers.get(kind, Straggler()).ratio(gpus, nbytes)
        return replace(found, latency=found.latency * ratio + self.wait, moving=found.moving * ratio)

    def own_between(self, kind: str) -> InterNodeTimes | None:
        """Return the curves between nodes that were fitted to this cluster, or None where there are none for a kind."""
        return self.between.get(kind) or self.between.get(LIKE.get(kind, "")) or self.between.get(ANY)

    @property
    def transferred(self) -> bool:
        """Whether its times inside a node were measured on another node."""
        return self.scale != NodeScale() or self.faster is not None

    def inside(self, kind: str, gpus: int, nbytes: float) -> TimeParts | None:
        """Return the time of a collective inside a node, or None for a kind of which nothing was measured."""
        curves = self.kinds.get(kind) or self.kinds.get(LIKE.get(kind, ""))
        if curves is None:
            return None
        known = _of_kind(kind, gpus, curves, nbytes)
        found = known
        if self.scale.gpus_per_switch:
            found = self.scale.of_boards(kind, gpus, known, _of_kind(kind, 2, curves, nbytes))
        elif self.node is not None:
            found = self.scale.scaled(kind, gpus, known, self.node.wire_seconds(kind, gpus, nbytes))
        return found if self.faster is None else self.faster.mixed(kind, gpus, nbytes, found)

    def observed(self, kind: str, gpus: int, nbytes: float, seconds: float, rate: float = 0.1) -> Calibration:
        """Return the calibration after one collective inside a node was observed (TorchSim, equation 14).

        The weights of the linear correction move against the error of the logarithm of the time, along the features
        x, which equation 14 leaves out: w' = w - rate (w x - y) x / (x x). With ``rate`` 1 this very collective is then
        right; kinds without curves are left as they are.
        """
        curves, known = self.kinds.get(kind), self.parts(kind, gpus, nbytes)
        if curves is None or known is None:
            return self
        x = features(gpus, nbytes)
        error = math.log(known.total / seconds)
        step = rate * error / sum(one * one for one in x)
        weights = tuple(weight - step * one for weight, one in zip(curves.weights, x, strict=True))
        return replace(self, kinds={**self.kinds, kind: KindCurves(kind, curves.curves, weights)})


def _of_kind(kind: str, gpus: int, curves: KindCurves, nbytes: float) -> TimeParts:
    """Return the time of a collective by the curves of its kind, or of the kind that is most like it."""
    known = curves.parts(gpus, nbytes)
    if curves.kind == kind:
        return known
    return TimeParts(known.latency, known.moving * sent(kind, gpus) / sent(curves.kind, gpus))
