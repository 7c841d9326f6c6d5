"""The mean of the times of several ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from triosim.results.values import RankTimes


def mean_of_ranks(ranks: Sequence[RankTimes], row: int) -> RankTimes:
    """Return the mean of the ranks' figures, as a rank of its own."""
    names = ("compute_s", "communication_s", "exposed_communication_s", "idle_s", "waiting_s")
    return RankTimes(row, *(math.fsum(getattr(rank, name) for rank in ranks) / len(ranks) for name in names))
