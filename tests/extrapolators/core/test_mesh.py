"""Ranks on a mesh: who stands where, and who talks to whom."""

from __future__ import annotations

import pytest

from triosim.errors import OptionError
from triosim.extrapolators.core.mesh import Mesh, layout


def test_the_first_axis_is_the_fastest() -> None:
    mesh = Mesh.of(tp=4, dp=2, pp=3)
    assert mesh.world == 24
    assert [mesh.coordinate(axis, 0) for axis in ("tp", "dp", "pp")] == [0, 0, 0]
    assert [mesh.coordinate(axis, 13) for axis in ("tp", "dp", "pp")] == [1, 1, 1]
    assert [mesh.coordinate(axis, 7) for axis in ("tp", "dp", "pp")] == [3, 1, 0]


def test_a_group_holds_the_ranks_that_differ_along_its_axis_alone() -> None:
    mesh = Mesh.of(tp=4, dp=2)
    assert mesh.group("tp", 5).ranks == (4, 5, 6, 7)
    assert mesh.group("dp", 5).ranks == (1, 5)
    assert mesh.group("dp", 5).name == "dp"
    assert mesh.group("dp", 5) is mesh.group("dp", 1)


def test_every_rank_is_in_one_group_of_each_axis() -> None:
    mesh = Mesh.of(tp=2, dp=3, pp=4)
    for axis in ("tp", "dp", "pp"):
        groups = {mesh.group(axis, rank) for rank in range(mesh.world)}
        assert sorted(rank for group in groups for rank in group.ranks) == list(range(24))


def test_a_neighbour_stands_where_the_rank_does_along_the_other_axes() -> None:
    mesh = Mesh.of(tp=2, dp=2, pp=3)
    assert mesh.neighbour("pp", 3, 2) == 11
    with pytest.raises(IndexError):
        mesh.neighbour("pp", 3, 3)


def test_an_axis_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OptionError, match="no axis 'tpp'; did you mean 'tp'"):
        Mesh.of(tp=2).group("tpp", 1)


def test_axes_are_laid_out_by_their_order_whatever_the_user_wrote_first() -> None:
    assert [axis.name for axis in layout([(30, "pp", 2), (20, "dp", 4), (0, "tp", 8)]).axes] == ["tp", "dp", "pp"]


def test_an_axis_given_twice_or_of_no_gpus_is_refused() -> None:
    with pytest.raises(OptionError, match="twice"):
        layout([(20, "dp", 2), (20, "dp", 2)])
    with pytest.raises(OptionError, match="0 GPUs"):
        Mesh.of(dp=0)


def test_several_axes_are_one_of_which_the_fastest_counts_first() -> None:
    mesh = Mesh.of(tp=2, cp=2, dp=3)
    group = mesh.group(("dp", "cp"), 1)
    assert group.ranks == (1, 3, 5, 7, 9, 11)
    assert group.name == "cp+dp"
    assert mesh.group(("cp", "dp"), 11) is group
    assert mesh._position(("cp", "dp"), 9) == 4
    assert mesh.group(("cp", "dp"), 7, parts=3).ranks == (5, 7)
    assert mesh.group(("tp", "dp"), 2).ranks == (2, 3, 6, 7, 10, 11)
