"""Many draws of what is left to chance in a run: how its step times are spread.

Chance is where tokens go (``ep``), and which GPUs and links are slow (``stragglers``, ``slow_links``). Each is drawn from a
seed; one more draw is the same run with every seed one higher. Quantiles are interpolated between the two nearest step times
(Hyndman and Fan 1996, "Sample quantiles in statistical packages", definition 7); the deviation is that of a sample.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from triosim.conditions import Conditions, Stragglers
from triosim.errors import OptionError
from triosim.results.values import Draws, ResultData

if TYPE_CHECKING:
    from triosim.results.result import Result


def draws_of(step_times: Sequence[float]) -> Draws:
    """Return how two or more step times are spread."""
    ordered = sorted(step_times)

    def quantile(part: float) -> float:
        place = part * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    return Draws(
        tuple(step_times),
        mean_s=math.fsum(ordered) / len(ordered),
        deviation_s=statistics.stdev(ordered),
        min_s=ordered[0],
        p5_s=quantile(0.05),
        p50_s=quantile(0.5),
        p95_s=quantile(0.95),
        max_s=ordered[-1],
    )


@dataclass(frozen=True, slots=True)
class Draw:
    """What is kept of one run: its step time in seconds, and whether some rank does not fit its GPU."""

    step_time_s: float
    too_small: bool

    @classmethod
    def of(cls, result: Result) -> Draw:
        """Return what is kept of a result."""
        return cls(result.step_time_s, result.memory is not None and not result.memory.fits)


def spread(first: ResultData, drawn: Sequence[Draw]) -> ResultData:
    """Return the figures of the first draw with how all of them are spread, and a note where only some fit their GPUs."""
    notes = list(first.notes)
    many = sum(draw.too_small for draw in drawn)
    if 0 < many < len(drawn):
        notes.append(f"in {many} of {len(drawn)} draws a rank does not fit its GPU")
    return replace(first, draws=draws_of([draw.step_time_s for draw in drawn]), notes=tuple(notes))


def check(draws: int, conditions: Conditions, *, tokens: bool) -> None:
    """Raise ``OptionError`` for no draw at all, or several of a run without chance; ``tokens`` are drawn or not."""
    if draws < 1:
        raise OptionError(f"{draws} draws", where="--draws", fix="give 1 or more")
    if draws > 1 and not (tokens or conditions.stragglers or conditions.slow_links):
        raise OptionError(
            "nothing in this run is drawn by chance",
            where="--draws",
            fix="give --stragglers or --slow-links, or ep with a load that is not balanced",
        )


def reseeded(given: Mapping[str, Any], conditions: Conditions, number: int, *, tokens: bool) -> dict[str, Any]:
    """Return the arguments of ``simulate`` for another draw: those ``given``, with seeds that are ``number`` higher.

    Of ``conditions``, those that are drawn; they may be a topology file's.
    """
    said = dict(given["conditions"] or {})
    for key in ("stragglers", "slow_links"):
        drawn: Stragglers | None = getattr(conditions, key)
        if drawn is not None:
            said[key] = {**asdict(drawn), "seed": drawn.seed + number}
            if key == "slow_links":
                del said[key]["every"]
    options = dict(given["options"] or {})
    if tokens:
        options["seed"] = str(int(options.get("seed", 0)) + number)
    return {**given, "conditions": said, "options": options}
