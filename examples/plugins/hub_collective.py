"""An all-reduce through one rank: all send to the first, which adds up and sends back. A parameter server, in short.

triosim simulate TRACE --parallel ddp --gpus 8 --collective examples/plugins/hub_collective.py:Hub --collective-form steps
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from triosim import Topology, TriosimError
from triosim.networks import CollectiveAlgorithm, Transfer
from triosim.tasks import CollectiveKind


class Hub(CollectiveAlgorithm):
    proportional = True  # the transfers' bytes grow with the size, and nothing else changes

    def transfers(
        self,
        kind: CollectiveKind,
        group: Sequence[int],
        nbytes: float,
        topology: Topology,
        *,
        root: int | None = None,
        shares: Sequence[float] | None = None,
    ) -> Iterator[Transfer]:
        if kind != "all_reduce":
            raise TriosimError(f"the hub cannot do {kind}", fix="use it for all_reduce, as dp and ddp do")
        hub, *others = group
        for rank in others:
            yield Transfer(rank, hub, 0, nbytes, "reduce")
        arrived = tuple(range(len(others)))
        for rank in others:
            yield Transfer(hub, rank, 0, nbytes, "copy", arrived)
