"""The error for task streams that can never go on: it names each stuck rank, its task, and the ranks that it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from triosim.engine.doing import doing, named_ranks
from triosim.errors import DeadlockError
from triosim.tasks import Communicator, Handle

if TYPE_CHECKING:
    from triosim.engine.rank_state import Channel, RankState, TransferEnd
    from triosim.extrapolators.core.symmetry import Symmetry

_SHOWN = 16


def deadlock_error(
    stuck: Sequence[RankState],
    arriving: Mapping[tuple[Communicator, int], Sequence[Handle]],
    posted: Mapping[tuple[Channel, int], TransferEnd],
    failures: Sequence[str] = (),
    symmetry: Symmetry | None = None,
) -> DeadlockError:
    """Return the error for ranks that can never go on; ranks that wait for the same task are named together.

    ``arriving`` are the collectives that miss members, ``posted`` the sends and receives without a partner, ``failures`` what
    has failed, where that is why. With a ``symmetry`` the ranks are those that stand for all.
    """
    representative = int if symmetry is None else symmetry.representative
    everyone = range(max(rank.index for rank in stuck) + 1 if symmetry is None else symmetry.world)
    ranks_by_reason: dict[str, list[int]] = {}
    for rank in stuck:
        members = [one for one in everyone if representative(one) == rank.index]
        ranks_by_reason.setdefault(doing(rank, arriving, posted, representative).text, []).extend(members)
    reasons = [f"{named_ranks(sorted(ranks))} in {reason}" for reason, ranks in ranks_by_reason.items()]
    number = sum(map(len, ranks_by_reason.values()))
    count = "1 rank" if number == 1 else f"{number} ranks"
    more = f" and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
    if failures:
        return DeadlockError(
            f"{', '.join(failures)}: {count} can never go on: {'; '.join(reasons[:_SHOWN])}{more}",
            fix="let it recover later, or slow it down",
        )
    return DeadlockError(
        f"deadlock: {count} can never go on: {'; '.join(reasons[:_SHOWN])}{more}",
        fix="check the order in which these ranks issue their tasks",
    )
