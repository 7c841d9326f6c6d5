"""Every collective algorithm, executed symbolically: each rank ends with exactly what the collective promises.

The transfers run in a random order among those that they allow. What is sent is what the source has when it begins; a
contribution is counted, so that what comes twice shows as much as what is missing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import pytest
import simpy

from triosim import plugins
from triosim.networks import CollectiveAlgorithm, PacketNetwork, Topology, Transfer
from triosim.networks.collectives.algorithm import Chunks, CollectiveOperation, checked_transfers
from triosim.networks.collectives.algorithms.hierarchical import Hierarchical
from triosim.networks.topology import NodeRef
from triosim.tasks import CollectiveKind

KINDS = get_args(CollectiveKind)
ALGORITHMS = tuple(plugins.BUILT_IN["collective_algorithms"])
SIZES = (*range(2, 18), 32, 64)
ROOTED = ("broadcast", "reduce", "gather", "scatter")
SUMS = ("all_reduce", "reduce_scatter", "reduce")
SHARED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
DIGIT = 16  # bits for the number of times that a rank's contribution is in a sum

Held = dict[tuple[NodeRef, int], int]  # (who, piece) -> a digit for each rank


class Case(NamedTuple):
    """A collective of a group, the pieces of its data in ``base`` x ``copies``, and what belongs to whom."""

    kind: CollectiveKind
    group: Sequence[int]
    root: int | None
    copies: int

    @property
    def base(self) -> int:
        if self.kind in SHARED:
            return len(self.group) ** (2 if self.kind == "all_to_all" else 1)
        return 1

    def of(self, rank: int) -> int:
        return 1 << (DIGIT * self.group.index(rank))

    @property
    def everybody(self) -> int:
        return sum(self.of(rank) for rank in self.group)

    def at_first(self) -> Held:
        n = len(self.group)
        held: Held = {}
        for piece in range(self.base * self.copies):
            if self.kind in SUMS:
                owners: Sequence[int] = self.group
            elif self.kind in ("broadcast", "scatter"):
                assert self.root is not None
                owners = (self.root,)
            else:
                owners = (self.group[piece % self.base // (n if self.kind == "all_to_all" else 1)],)
            held.update({(rank, piece): self.of(rank) for rank in owners})
        return held

    def promised(self) -> Held:
        n = len(self.group)
        found: Held = {}
        for piece in range(self.base * self.copies):
            own = self.group[piece % n]
            if self.kind in ("all_reduce", "broadcast", "all_gather"):
                receivers: Sequence[int] = self.group
            elif self.kind in ("reduce", "gather"):
                assert self.root is not None
                receivers = (self.root,)
            else:
                receivers = (own,)
            if self.kind in SUMS:
                value = self.everybody
            elif self.root is not None and self.kind in ("broadcast", "scatter"):
                value = self.of(self.root)
            else:
                value = self.of(self.group[piece % self.base // n] if self.kind == "all_to_all" else own)
            found.update({(rank, piece): value for rank in receivers})
        return found


def pieces_of(chunk: Chunks) -> Sequence[int]:
    return (chunk,) if isinstance(chunk, int) else chunk


def execute(transfers: Sequence[Transfer], held: Held, rng: random.Random) -> None:
    """Run the transfers in a random order of those that they allow; every order is possible."""
    unmet = [len(transfer.after) for transfer in transfers]
    followers: list[list[int]] = [[] for _ in transfers]
    for number, transfer in enumerate(transfers):
        for earlier in transfer.after:
            followers[earlier].append(number)
    ready = [number for number, waits in enumerate(unmet) if not waits]
    under_way: list[tuple[int, list[int]]] = []
    while ready or under_way:
        queue: list[Any] = ready if ready and (not under_way or rng.random() < 0.5) else under_way
        place = rng.randrange(len(queue))
        queue[place], queue[-1] = queue[-1], queue[place]
        if queue is ready:
            number = ready.pop()
            source, chunk = transfers[number].source, transfers[number].chunk
            under_way.append((number, [held.get((source, piece), 0) for piece in pieces_of(chunk)]))
            continue
        number, data = under_way.pop()
        _, destination, chunk, _, action, _ = transfers[number]
        for piece, value in zip(pieces_of(chunk), data, strict=True):
            mine = held.get((destination, piece), 0) if action == "reduce" else 0
            held[destination, piece] = mine + value
        for follower in followers[number]:
            unmet[follower] -= 1
            if not unmet[follower]:
                ready.append(follower)


def prove(
    algorithm: CollectiveAlgorithm,
    kind: CollectiveKind,
    group: Sequence[int],
    topology: Topology,
    rng: random.Random,
    shares: Sequence[float] | None = None,
) -> None:
    """Check what everyone ends with, and that the transfers carry the bytes of their pieces."""
    root = rng.choice(group) if kind in ROOTED else None
    nbytes = sum(shares) if shares else 3e6
    operation = CollectiveOperation(kind, tuple(group), nbytes, root, None if shares is None else tuple(shares))
    transfers = list(checked_transfers(algorithm, operation, topology))
    numbers = {piece for transfer in transfers for piece in pieces_of(transfer.chunk)}
    case = Case(kind, group, root, max(numbers) // Case(kind, group, root, 1).base + 1)
    held = case.at_first()
    execute(transfers, held, rng)
    wrong = {ends: held.get(ends) for ends, value in case.promised().items() if held.get(ends) != value}
    assert not wrong
    for transfer in transfers:
        assert transfer.nbytes == pytest.approx(bytes_of(transfer, case, nbytes, shares), rel=1e-9)


def bytes_of(transfer: Transfer, case: Case, nbytes: float, shares: Sequence[float] | None) -> float:
    n = len(case.group)
    if case.kind in SHARED:
        each = shares or [nbytes / n] * n
        return sum(each[piece % n] for piece in pieces_of(transfer.chunk)) / case.copies
    return nbytes / case.copies * len(pieces_of(transfer.chunk))


def system(kind: str, gpus: int) -> Topology:
    return Topology.from_dict({"topology": kind, "gpus": gpus, "bandwidth": 1e10, "latency": 1e-6})


def algorithm_of(name: str) -> CollectiveAlgorithm:
    found: CollectiveAlgorithm = plugins.load("collective_algorithms", name)()
    if isinstance(found, Hierarchical):
        found.chunks = 2  # as good as 64
    return found


SYSTEMS: Mapping[int, tuple[Topology, Topology]] = {
    n: (system("switch", n + 1), system("ring", n + 1)) for n in (*SIZES, 1)
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_rank_ends_with_exactly_what_the_collective_promises(name: str, kind: CollectiveKind) -> None:
    """Groups of 2 to 17, 32 and 64 ranks, some of those that there are, in any order, any of them the root."""
    for n in SIZES:
        for topology in SYSTEMS[n] if n in (5, 8) and name not in ("in-switch", "nvls") else SYSTEMS[n][:1]:
            rng = random.Random(n)
            prove(algorithm_of(name), kind, rng.sample(range(n + 1), n), topology, rng)


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_unequal_shares_reach_everyone_too(name: str, kind: CollectiveKind) -> None:
    for n in (2, 3, 6, 8, 13):
        rng = random.Random(n)
        shares = [float(rng.choice((0, 1, 7, 100))) + 1 for _ in range(n)]
        group = rng.sample(range(n + 1), n)
        prove(algorithm_of(name), kind, group, SYSTEMS[n][0], rng, shares)


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("name", ["direct", "ring", "hierarchical"])
def test_edges_have_the_bytes_of_their_transfers_whatever_shares_were_before(name: str, kind: CollectiveKind) -> None:
    topology, rng, algorithm = multi_node(3, 2), random.Random(1), algorithm_of(name)
    for group in (range(6), range(3), range(6)):
        n = len(group)
        for count in (n, n * n if kind == "all_to_all" else n):
            shares = tuple(float(rng.choice((0, 1, 7, 100))) + 1 for _ in range(count))
            operation = CollectiveOperation(kind, group, sum(shares) / (count // n), None, shares)
            expected: dict[tuple[NodeRef, NodeRef], float] = {}
            for one in checked_transfers(algorithm_of(name), operation, topology):
                ends = one.source, one.destination
                expected[ends] = expected.get(ends, 0.0) + one.nbytes
            found = algorithm.steady_state(operation, topology).edges
            assert {(one.source, one.destination): one.nbytes for one in found} == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_group_of_one_is_through_at_once(name: str) -> None:
    for kind in KINDS:
        env = simpy.Environment()
        network = PacketNetwork(env, SYSTEMS[1][0], algorithm=name)
        env.run(network.collective(kind, [1], 1e6))
        assert env.now == 0


def multi_node(gpus: int, nodes: int) -> Topology:
    return Topology.from_dict(
        {
            "topology": "switch",
            "gpus_per_node": gpus,
            "nodes": nodes,
            "bandwidth": 4e10,
            "inter_node": {"bandwidth": 1e10, "latency": 2e-6},
        }
    )


GRIDS = {
    "torus 4x3": Topology.load("torus(4x3, bandwidth=10 GB/s)"),
    "torus 3x2x4": Topology.load("torus(3x2x4, bandwidth=10 GB/s)"),
    "mesh 3x5": Topology.load("mesh(3x5, bandwidth=10 GB/s)"),
    "4 nodes of 3": multi_node(3, 4),
    "2 nodes of 8": multi_node(8, 2),
    "5 nodes of 2": multi_node(2, 5),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", GRIDS)
def test_along_several_dimensions_each_rank_ends_with_what_is_promised(where: str, kind: CollectiveKind) -> None:
    """All GPUs, in any order, and the boxes that a stride or the first of each line make."""
    topology = GRIDS[where]
    n, inner = len(topology.gpus), topology.dimensions[0].size
    for group in (range(n), random.Random(1).sample(range(n), n), range(0, n, inner), range(inner, 2 * inner)):
        rng = random.Random(n)
        for name in ("hierarchical", "double-binary-tree"):
            prove(algorithm_of(name), kind, list(group), topology, rng)
        if kind in SHARED:
            shares = [float(1 + place % 5) for place in range(len(group))]
            prove(algorithm_of("hierarchical"), kind, list(group), topology, rng, shares)


def test_switches_of_several_levels_add_up_on_the_way() -> None:
    for topology in (
        Topology.load("tree(9, fanout=3, bandwidth=10 GB/s)"),
        Topology.load("fat_tree(k=4, bandwidth=1 GB/s)"),
    ):
        for kind in KINDS:
            for name in ("in-switch", "nvls"):
                rng = random.Random(3)
                group = rng.sample(range(len(topology.gpus)), 7)
                prove(algorithm_of(name), kind, group, topology, rng)
