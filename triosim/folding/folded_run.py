"""The folded run: the task streams of the representatives on a folded network."""

from __future__ import annotations

from collections.abc import Callable

from triosim.engine import Engine, Recording
from triosim.errors import AsymmetryError
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.folding.dry_run import dry_run
from triosim.folding.folded_network import FoldedNetwork
from triosim.networks.base import Network
from triosim.tasks import TaskStream

#: From how many ranks on folding saves time.
FOLDED_RANKS = 16


def should_fold(asked: bool | None, world: int) -> bool:
    """Whether to fold ranks: as the user says, by default where there are many."""
    return world >= FOLDED_RANKS if asked is None else asked


def run_folded(
    symmetry: Symmetry,
    tasks: Callable[[int], TaskStream],
    new_network: Callable[[], Network],
    new_engine: Callable[[Network, Symmetry], Engine],
) -> tuple[Recording, Network]:
    """Run the task streams of the representatives; return the recording of all ranks, and the network.

    Where ranks along one axis turn out to differ, the symmetry along the other axes is tried. Raises ``AsymmetryError``.
    """
    first_error = None
    for tried in (symmetry, *symmetry.without_one_axis()):
        try:
            return _run(tried, tasks, new_network, new_engine)
        except AsymmetryError as error:
            first_error = first_error or error
    assert first_error is not None
    raise first_error


def _run(
    symmetry: Symmetry,
    tasks: Callable[[int], TaskStream],
    new_network: Callable[[], Network],
    new_engine: Callable[[Network, Symmetry], Engine],
) -> tuple[Recording, Network]:
    ranks = symmetry.representatives
    sent = dry_run({rank: tasks(rank) for rank in ranks})
    # What representatives receive has to be what they send, or a copy of it.
    transfers = {pattern.ranks for pattern in sent.patterns if pattern.collective is None and pattern.copy is None}
    if {symmetry.representative_transfer(*pair) for pair in sent.received} != transfers:
        raise AsymmetryError("receives do not match the sends of ranks that run the same tasks")
    network = FoldedNetwork(new_network, symmetry, sent.patterns)
    streams = {rank: sent.recorded[rank].stream() if rank in sent.recorded else tasks(rank) for rank in ranks}
    recording = new_engine(network, symmetry).run(streams)
    represented: dict[int, list[int]] = {}
    for rank in range(symmetry.world):
        represented.setdefault(symmetry.representative(rank), []).append(rank)
    return recording.expanded(represented), network
