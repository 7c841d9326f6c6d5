"""The configurations of repeated runs with other random seeds, for the distribution of step times.

Drawn at random are the loads of experts (``ep``), stragglers and slow links.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from triosim.conditions import Stragglers
from triosim.config import RunConfig
from triosim.pipeline.planning import PlannedRun, tokens_are_drawn


def other_draws(config: RunConfig, planned: PlannedRun) -> Iterator[RunConfig]:
    """Yield the configurations of the second and further draws: each has every seed one higher than the one before.

    The subject is priced already, and neither a timeline nor link loads are kept of them.
    """
    for number in range(1, config.draws):
        conditions = {**config.conditions, **_stragglers(planned, number)}  # which may be the topology file's
        options = dict(config.options)
        if tokens_are_drawn(planned.plan):
            options["seed"] = str(int(options.get("seed", 0)) + number)
        yield config.replaced(
            topology=planned.system.nominal,
            conditions=conditions,
            options=options,
            draws=1,
            timeline=False,
            links=False,
        )


def _stragglers(planned: PlannedRun, number: int) -> dict[str, dict[str, object]]:
    drawn: dict[str, dict[str, object]] = {}
    conditions = planned.system.conditions
    for key, stragglers in (("stragglers", conditions.stragglers), ("slow_links", conditions.slow_links)):
        if isinstance(stragglers, Stragglers):
            drawn[key] = {**asdict(stragglers), "seed": stragglers.seed + number}
    drawn.get("slow_links", {}).pop("every", None)
    return drawn
