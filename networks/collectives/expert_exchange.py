"""What DeepEP's kernels send: how many GPUs and nodes a token reaches, and the bytes from each GPU to each.

The kernels for training send a token once to each GPU that has one of its experts. Between nodes it goes once to each such
node, over the network card to the GPU of the same index there, which forwards it over NVLink; combine goes the same way back
and sums up on the way. The low-latency kernels, for decoding, send a token once to each of its experts, straight to their
GPU. (DeepEP's README and docs/legacy.md.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from triosim.networks.collectives.algorithm import Edge
from triosim.tasks import DeepEP

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one kernel moves: ``inside`` nodes and ``between`` them, edge by edge, and per GPU the most messages and forwards.

    ``messages`` counts (token, GPU) pairs, ``forwards`` (token, node) pairs, both with a GPU's own.
    """

    inside: tuple[Edge, ...]
    between: tuple[Edge, ...]
    ranks: int
    nodes: int
    messages: float
    forwards: float


def reached(experts: float, kernel: DeepEP) -> float:
    """Return the probability that one of a token's experts is among so many that are next to each other.

    All choices of experts are equally likely, and so are those of groups where routing is limited to some. A number of experts
    may be a fraction: where experts are not equally popular, it is the number that would get as many tokens.
    """
    group = kernel.experts / kernel.groups
    if kernel.kept_groups >= kernel.groups:
        return _one_of(experts, kernel.top_k, kernel.experts)
    within = group * kernel.kept_groups
    if experts <= group:
        return kernel.kept_groups / kernel.groups * _one_of(experts, kernel.top_k, within)
    low = math.floor(experts / group)
    chances = [
        sum(
            math.comb(whole, kept) * math.comb(kernel.groups - whole, kernel.kept_groups - kept)
            * _one_of(kept * group, kernel.top_k, within)
            for kept in range(min(whole, kernel.kept_groups) + 1)
        ) / math.comb(kernel.groups, kernel.kept_groups)
        for whole in (low, min(low + 1, kernel.groups))
    ]  # fmt: skip
    return chances[0] + (experts / group - low) * (chances[1] - chances[0])


def _one_of(experts: float, chosen: int, total: float) -> float:
    """Return the probability that one of ``chosen`` different experts of a total is among so many (hypergeometric)."""
    missed = 1.0
    for number in range(min(chosen, math.ceil(total))):
        missed *= max(0.0, 1.0 - experts / (total - number))
    return 1.0 - missed


def tokens_sent(kernel: DeepEP, ranks: int) -> Matrix:
    """Return the tokens that each rank of a group sends to each, its own included (an array: sender, receiver).

    The low-latency kernels send a token to each of its experts, the others once to each rank that has one of them.
    """
    rows = rows_of(kernel, ranks)
    return rows if kernel.low_latency else kernel.tokens * _reached(rows, kernel)


def exchange(kernel: DeepEP, nodes: Sequence[Sequence[int]]) -> Exchange:
    """Return what a kernel sends between the ranks of some nodes, given by node in the order of the group."""
    members = [rank for node in nodes for rank in node]
    rows = rows_of(kernel, len(members))
    sent = tokens_sent(kernel, len(members))
    messages = float(max(sent.sum(axis=0).max(), sent.sum(axis=1).max()))
    starts = np.cumsum([0, *map(len, nodes)])
    spans = [slice(int(a), int(b)) for a, b in pairwise(starts)]
    forwards = 0.0
    if kernel.low_latency:
        inside, between = _straight(sent * kernel.token_bytes, members, spans)
    else:
        by_node = np.stack([rows[:, span].sum(axis=1) for span in spans], axis=1)
        to_node = kernel.tokens * _reached(by_node, kernel)
        forwards = float(to_node.sum(axis=1).max())
        inside, between = _forwarded(sent * kernel.token_bytes, to_node * kernel.token_bytes, members, spans)
    edges = _in_direction(kernel, inside), _in_direction(kernel, between)
    return Exchange(*edges, len(members), len(nodes), messages, forwards)


def rows_of(kernel: DeepEP, ranks: int) -> Matrix:
    """Return how often tokens of each rank choose an expert of each rank."""
    if kernel.rows is None:
        return np.full((ranks, ranks), kernel.tokens * kernel.top_k / ranks)
    return np.array(kernel.rows).reshape(ranks, ranks)


def _reached(rows: Matrix, kernel: DeepEP) -> Matrix:
    """Return the probability that a token of a rank reaches each rank (or node) to which it sends so many rows."""
    experts = rows * (kernel.experts / (kernel.tokens * kernel.top_k))
    known = {value: reached(value, kernel) for value in np.unique(experts).tolist()}
    found: Matrix = np.vectorize(known.__getitem__, otypes=[np.float64])(experts)
    return found


def _straight(nbytes: Matrix, members: Sequence[int], spans: Sequence[slice]) -> tuple[list[Edge], list[Edge]]:
    """Return the edges inside nodes and between them where each rank sends straight to each."""
    inside: list[Edge] = []
    between: list[Edge] = []
    node_of = [number for number, span in enumerate(spans) for _ in range(span.start, span.stop)]
    for source, row in enumerate(nbytes.tolist()):
        for destination, size in enumerate(row):
            if source != destination:
                found = inside if node_of[source] == node_of[destination] else between
                found.append(Edge(members[source], members[destination], size))
    return inside, between


def _forwarded(
    nbytes: Matrix, to_node: Matrix, members: Sequence[int], spans: Sequence[slice]
) -> tuple[list[Edge], list[Edge]]:
    """Return the edges inside nodes and between them where the GPU of the sender's index receives for its node."""
    inside: list[Edge] = []
    between: list[Edge] = []
    index_of = np.concatenate([np.arange(span.stop - span.start) for span in spans])
    for number, span in enumerate(spans):
        size = span.stop - span.start
        for index in range(size):
            receiver = members[span.start + index]
            senders = np.flatnonzero(index_of % size == index)
            for other, forwarded in enumerate(nbytes[senders, span].sum(axis=0).tolist()):
                if other != index:
                    inside.append(Edge(receiver, members[span.start + other], forwarded))
            for sender in senders.tolist():
                if not span.start <= sender < span.stop:
                    between.append(Edge(members[sender], receiver, float(to_node[sender, number])))
    return inside, between


def _in_direction(kernel: DeepEP, edges: list[Edge]) -> tuple[Edge, ...]:
    """Return the edges of a dispatch as they are, those of a combine reversed."""
    if kernel.step == "dispatch":
        return tuple(edges)
    return tuple([Edge(to, source, nbytes) for source, to, nbytes in edges])
