"""The network of a live run in which ranks are folded: transfers of the step that was compared are folded as in a simulation.

What else a script sends, such as the broadcast of its weights before the first step, or a barrier, is not known in advance. It
is simulated whole on an idle network, once for each size, and takes the same time again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import simpy

from triosim.extrapolators.core.symmetry import Symmetry
from triosim.folding.dry_run import PatternUse, TransferPattern
from triosim.folding.folded_network import FoldedNetwork
from triosim.live.network.idle_network import IdleNetwork
from triosim.networks.base import Network
from triosim.networks.topology import NodeRef
from triosim.tasks import CollectiveKind, Communicator


class LiveNetwork(FoldedNetwork):
    """A folded network on which other transfers than the known ``patterns`` take the time of an idle network."""

    def __init__(
        self, new_network: Callable[[], Network], symmetry: Symmetry, patterns: Mapping[TransferPattern, PatternUse]
    ) -> None:
        super().__init__(new_network, symmetry, patterns)
        self._patterns = patterns
        self._idle = IdleNetwork(self.env, new_network)

    def transfer(self, source: NodeRef, destination: NodeRef, nbytes: float) -> simpy.Event:
        """Send bytes between two ranks."""
        pattern = TransferPattern(None, (int(source), int(destination)))
        if pattern in self._patterns:
            return super().transfer(source, destination, nbytes)
        return self._idle.run(pattern, nbytes, lambda idle: idle.transfer(source, destination, nbytes))

    def collective(
        self,
        kind: CollectiveKind,
        group: Sequence[int] | Communicator,
        nbytes: float,
        *,
        root: int | None = None,
        shares: Sequence[float] | None = None,
    ) -> simpy.Event:
        """Run a collective of a group."""
        ranks = group.ranks if isinstance(group, Communicator) else tuple(group)
        pattern = TransferPattern(kind, ranks, root, shares is not None)
        if pattern in self._patterns:
            return super().collective(kind, group, nbytes, root=root, shares=shares)

        def start(idle: Network) -> simpy.Event:
            return idle.collective(kind, ranks, nbytes, root=root, shares=shares)

        return self._idle.run(pattern, nbytes, start)
