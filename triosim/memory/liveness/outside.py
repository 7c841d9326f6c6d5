"""What a rank holds in memories outside of its GPU, by tier and category, and the peak of each tier."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from triosim.memory.liveness.residents import Resident

#: Bytes by category, by tier.
TierBytes = Mapping[str, Mapping[str, int]]


class OutsideMemory:
    """Follows the allocations of one rank; ``now`` is the action that runs, as in ``RankMemory``.

    ``peaks`` has each tier's categories when it holds most, which is ``during`` an action.
    """

    def __init__(self, residents: Iterable[tuple[str, Resident]] = ()) -> None:
        self._live: dict[str, dict[str, int]] = {}
        self._held: dict[Hashable, tuple[str, str, int]] = {}
        self.peaks: dict[str, dict[str, int]] = {}
        self.during: dict[str, str] = {}
        self.now: object = "start"
        for number, (tier, one) in enumerate(residents):
            self.allocate(("resident", number), one.nbytes, one.category, tier)

    def allocate(self, key: Hashable, nbytes: float, category: str, tier: str) -> None:
        """Allocate memory of a tier under a key, unless there is an allocation under it already."""
        if key in self._held or not nbytes:
            return
        size = round(nbytes)
        self._held[key] = tier, category, size
        live = self._live.setdefault(tier, {})
        live[category] = live.get(category, 0) + size
        if sum(live.values()) > sum(self.peaks.get(tier, {}).values()):
            self.peaks[tier], self.during[tier] = dict(live), str(self.now)

    def free(self, key: Hashable) -> bool:
        """Free what was allocated under a key; return whether anything was."""
        if key not in self._held:
            return False
        tier, category, size = self._held.pop(key)
        self._live[tier][category] -= size
        return True
