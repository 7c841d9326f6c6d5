"""A calibration: the fitted times of collectives on one kind of machine, inside a node and between nodes.

Inside a node a time comes from the curves of the collective's kind. A group over several nodes takes both tiers at once, as
NCCL's pipelines do: their latencies one after the other, and the slower of them for the bytes (TorchSim, table 10,
adds the two up, which would be right for whole messages stored and forwarded).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from triosim.networks.calibration.curves import LIKE, KindCurves, Sigmoid, Straggler, TimeParts, features, sent

ANY = "any"  # the kind whose figures between nodes stand for all that have none of their own


@dataclass(frozen=True, slots=True)
class InterNodeTimes:
    """Times between nodes: seconds per hop, and the bandwidth that a GPU's network card achieves by the bytes it sends."""

    latency: float
    sigmoid: Sigmoid
    assumed: bool = False

    def parts(self, kind: str, nodes: int, gpus: int, nbytes: float) -> TimeParts:
        """Return the time of this tier for a collective of ``gpus`` spread over some nodes."""
        card = on_card(kind, nodes, gpus, nbytes)
        return TimeParts(self.latency * hops(kind, nodes), self.sigmoid.seconds(card))


def on_card(kind: str, nodes: int, gpus: int, nbytes: float) -> float:
    """Return the bytes that each GPU's network card sends.

    NCCL lays a ring for each card, so that all of them share what crosses between nodes; of an all-to-all each GPU sends
    what is for other nodes.
    """
    if kind in ("all_to_all", "gather", "scatter"):
        return nbytes * (nodes - 1) / nodes
    return nbytes * sent(kind, gpus) * nodes / gpus


def hops(kind: str, nodes: int) -> int:
    """Return how many times a first byte crosses between nodes: up and down a tree, along a chain, or straight."""
    if kind == "all_reduce":
        return 2 * math.ceil(math.log2(nodes))
    return 1 if kind in ("all_to_all", "gather", "scatter") else nodes - 1


@dataclass(frozen=True)
class Calibration:
    """Fitted times of collectives: ``kinds`` inside a node of ``gpus_per_node``, ``between`` nodes, ``stragglers``.

    ``note`` says what it was fitted to. ``wait`` is how many seconds every collective takes longer than in the measurements,
    whatever its size: in a training step its ranks do not arrive at one moment, whereas those of a benchmark do.
    """

    gpus_per_node: int
    kinds: Mapping[str, KindCurves]
    between: Mapping[str, InterNodeTimes] = field(default_factory=dict)
    stragglers: Mapping[str, Straggler] = field(default_factory=dict)
    note: str = ""
    wait: float = 0.0

    def parts(self, kind: str, gpus: int, nbytes: float, nodes: int = 1) -> TimeParts | None:
        """Return the time of a collective of ``gpus`` over so many nodes; None for what was neither measured nor assumed."""
        wide: TimeParts | None = None
        if nodes > 1:
            tier = self.between.get(kind) or self.between.get(LIKE.get(kind, "")) or self.between.get(ANY)
            if tier is None:
                return None
            wide = tier.parts(kind, nodes, gpus, nbytes)
        inside = math.ceil(gpus / nodes)
        near = self._inside(kind, inside, nbytes) if inside > 1 else TimeParts(0.0, 0.0)
        parts = [part for part in (near, wide) if part is not None]
        if not parts:
            return None
        ratio = self.stragglers.get(kind, Straggler()).ratio(gpus, nbytes)
        latency, moving = sum(part.latency for part in parts), max(part.moving for part in parts)
        return TimeParts(latency * ratio + self.wait, moving * ratio)

    def _inside(self, kind: str, gpus: int, nbytes: float) -> TimeParts | None:
        curves = self.kinds.get(kind)
        if curves is not None:
            return curves.parts(gpus, nbytes)
        like = self.kinds.get(LIKE.get(kind, ""))
        if like is None:
            return None
        known = like.parts(gpus, nbytes)
        return TimeParts(known.latency, known.moving * sent(kind, gpus) / sent(like.kind, gpus))

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


#: What is assumed between nodes, where nothing was measured. NVIDIA's own figure for a card of 400 Gb/s is 46 to 48 GB/s
#: (nccl-tests, issue 290); latency and bend fit the tree of two H100s on two nodes, 2 MB to 32 MB (issue 232).
ASSUMED_SHARE = 0.94
ASSUMED_HOP = 12e-6
ASSUMED_STEEPNESS = 0.8
ASSUMED_MIDDLE = math.log(2.0**20)


def assumed(card: float) -> InterNodeTimes:
    """Return what is assumed of a card of a bandwidth, in bytes per second and for each GPU."""
    return InterNodeTimes(ASSUMED_HOP, Sigmoid(ASSUMED_SHARE * card, ASSUMED_STEEPNESS, ASSUMED_MIDDLE), assumed=True)
