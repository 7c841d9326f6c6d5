"""Classes of ranks that do the same, and the network on which one group stands for those that do what it does."""

from __future__ import annotations

import pytest
import simpy
import traces

from triosim.errors import AsymmetryError
from triosim.extrapolators.captured.groups import classes_of
from triosim.extrapolators.captured.rank_classes import GroupUse, RankClasses
from triosim.folding.class_network import ClassNetwork
from triosim.folding.dry_run import PatternUse, TransferPattern
from triosim.networks.flow.packet import PacketNetwork
from triosim.networks.topology import Topology
from triosim.tasks import Communicator
from triosim.trace.task_streams import TaskStreams

ROWS = tuple(tuple(range(4 * row, 4 * row + 4)) for row in range(4))
COLUMNS = tuple(tuple(range(column, 16, 4)) for column in range(4))
MESH = (GroupUse("tp", ROWS), GroupUse("dp", COLUMNS))


def test_ranks_that_differ_are_classes_while_all_communicate_as_one_world() -> None:
    classes = RankClasses((0, 5, 5, 5, 5, 5, 0, 7))
    assert classes.representatives == (0, 1, 7)
    assert [classes.representative(rank) for rank in range(8)] == [0, 1, 1, 1, 1, 1, 0, 7]
    assert classes.group_multiplicity(range(8)) == 1
    assert not classes.has_copies


def test_a_rank_apart_sets_its_row_and_its_column_apart() -> None:
    classes = RankClasses((0, *[15] * 15), MESH)
    assert classes.representatives == (0, 1, 4, 5)
    assert [classes.representative(rank) for rank in ROWS[2]] == [4, 5, 5, 5]
    assert classes.copies(ROWS[0]) == (ROWS[0],)
    assert classes.copies(ROWS[1]) == ROWS[1:]
    assert classes.group_multiplicity(COLUMNS[1]) == 3


def test_two_ranks_apart_make_three_classes_of_each_axis() -> None:
    classes = RankClasses((0, *[1] * 14, 15), MESH)
    assert len(classes.representatives) == 9
    assert classes.copies(ROWS[1]) == ROWS[1:3]


def test_equal_ranks_of_equal_groups_are_one() -> None:
    assert RankClasses([0] * 16, MESH).representatives == (0,)


def test_groups_of_one_kind_may_differ() -> None:
    """The last four ranks have no group of their row: their columns are none of the others'."""
    classes = RankClasses([0] * 16, (GroupUse("tp", ROWS[:3]), GroupUse("dp", COLUMNS)))
    assert classes.representatives == (0, 12)


def test_representatives_of_a_group_are_in_one() -> None:
    """Of pairs (0, 2) and (1, 3) whose ranks are alike crosswise, 0 and 1 stand for the ranks, and share no pair."""
    with pytest.raises(AsymmetryError, match="are in different groups"):
        RankClasses((0, 1, 1, 0), (GroupUse("pair", ((0, 2), (3, 1))),))


def test_streams_of_equal_ranks_are_classes_by_their_groups() -> None:
    trace = traces.mlp()
    streams = TaskStreams({0: trace, 1: trace}, (0, 1, 1, 1), {"tp": ((0, 1), (2, 3)), "own": ((0,), (1,), (2,), (3,))})
    assert classes_of(streams).representatives == (0, 1, 2)
    assert classes_of(streams, (0, 0, 0, 0)).copies((0, 1)) == ((0, 1), (2, 3))


def network_of(classes: RankClasses, topology: str, *groups: tuple[int, ...]) -> ClassNetwork:
    sent = {
        TransferPattern("all_reduce", ranks): PatternUse(1e6, {Communicator(ranks, f"of {len(ranks)}")})
        for ranks in groups
    }
    return ClassNetwork(lambda: PacketNetwork(simpy.Environment(), Topology.load(topology)), classes, sent)


def seconds_of(network: ClassNetwork | PacketNetwork, *groups: tuple[int, ...]) -> float:
    network.env.run(until=network.env.all_of([network.collective("all_reduce", ranks, 1e6) for ranks in groups]))
    return float(network.env.now)


@pytest.mark.parametrize("together", [False, True])
def test_a_group_stands_for_its_copies_on_the_links(together: bool) -> None:
    """Rows lie in machines; columns go from machine to machine. With both at once they share the links of the GPUs."""
    topology = "dgx-h100(nodes=4, gpus_per_node=4)"
    classes = RankClasses([0] * 16, MESH)
    used = (ROWS[0], COLUMNS[0]) if together else (ROWS[0],)
    folded = network_of(classes, topology, *used)
    whole = PacketNetwork(simpy.Environment(), Topology.load(topology))
    every = [one for ranks in used for one in classes.copies(ranks)]
    assert seconds_of(folded, *used) == pytest.approx(seconds_of(whole, *every), rel=1e-12)
    sent = {name: nbytes for name, nbytes in whole.bytes_by_link().items() if nbytes}
    assert {name: nbytes for name, nbytes in folded.bytes_by_link().items() if nbytes} == pytest.approx(sent)


def test_groups_on_different_links_are_not_folded() -> None:
    """Of four pairs in machines of three GPUs, some lie in one machine and some in two."""
    pairs = tuple((rank, rank + 1) for rank in range(0, 8, 2))
    classes = RankClasses([0] * 8, (GroupUse("pair", pairs),))
    with pytest.raises(AsymmetryError, match="the routes of the all_reduce of ranks 0-1 and of ranks"):
        network_of(classes, "dgx-h100(nodes=3, gpus_per_node=3)", pairs[0])
