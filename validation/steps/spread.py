"""How sure steps are that nobody measured: fits the errors that their intervals come from, leaving each source out in turn.

    python -m validation end_to_end --rows rows.json          (or end_to_end.py --table FILE --format json > rows.json)
    python -m validation.steps.spread rows.json ...

A source is a table, or a part of one of which something else is asked. Fitted are the constants of
``triosim.results.uncertainty`` that no measurement of an operator or a transfer tells: what launches, computing beside
communication, machines, experts and what frameworks fuse are off by. The 90% intervals that they make have the least mean
interval score: their width, and 20 times what a measured step lies outside of them (Gneiting and Raftery 2007, section 6.2),
in logarithms; and 4 times what a source has less than 85% of its steps inside, or its median half-width is more than 20%,
which is what is asked of each. Sources count alike, however many rows they have.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from triosim.results import uncertainty
from triosim.results.uncertainty import Waits, hidden_launches, interval
from triosim.results.values import Doubt
from validation.steps.sources import COVERED, HALF_WIDTH

#: The fitted constants by the source of doubt that they make, and the values that are tried.
CONSTANTS: Mapping[str, float] = {
    uncertainty.LAUNCHES: uncertainty.LAUNCH_ERROR,
    uncertainty.BESIDE: uncertainty.SLOWDOWN_ERROR,
    uncertainty.STEP: uncertainty.STEP_ERROR,
    uncertainty.EXPERTS: uncertainty.EXPERTS_ERROR,
    uncertainty.FUSION: uncertainty.FUSION_ERROR,
}
TRIED: Mapping[str, Sequence[float]] = {
    uncertainty.LAUNCHES: (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5),
    uncertainty.BESIDE: (0.05, 0.1, 0.2, 0.3, 0.4, 0.6),
    uncertainty.STEP: tuple(0.01 * percent for percent in range(4, 21)),
    uncertainty.EXPERTS: (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4),
    uncertainty.FUSION: tuple(0.05 * number for number in range(11)),
}
#: What a step outside of a 90% interval costs, for each unit that it is outside: 2 / (1 - 0.9).
_PENALTY = 20.0
#: What a source costs that is short of what is asked, for each unit that it lacks.
_SHORT = 4.0
_ROUNDS = 5
_QUANTITIES = ("step time", "training step")

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """A step of a table: measured / predicted, and what its interval comes from, as parts of what was predicted.

    ``launches`` is how long its busiest host launches.
    """

    measured: float
    doubts: tuple[Doubt, ...]
    launches: float = 0.0

    def ends(self, values: Values) -> tuple[float, float]:
        """Return the interval with other constants, as parts of what was predicted."""
        scaled = [
            replace(one, error_s=one.error_s * values[one.source] / CONSTANTS[one.source])
            if one.source in values
            else one
            for one in self.doubts
            if one.source != uncertainty.HIDDEN
        ]
        waited = sum(one.error_s / CONSTANTS[one.source] for one in self.doubts if one.source == uncertainty.LAUNCHES)
        waits = Waits(launches_s=waited, host_s=self.launches)
        hidden = hidden_launches(waits, 1.0, values[uncertainty.LAUNCHES])
        return interval(1.0, (*scaled, Doubt(uncertainty.HIDDEN, hidden, 0.0, ""))) or (1.0, 1.0)

    def score(self, values: Values) -> float:
        """Return the interval score: the width, and the distance outside of it times what that costs."""
        low, high = map(math.log, self.ends(values))
        off = math.log(self.measured)
        return high - low + _PENALTY * (max(0.0, low - off) + max(0.0, off - high))


@dataclass(frozen=True, slots=True)
class Judged:
    """How often the intervals of a source's steps hold, and half their width, the median."""

    covered: float
    half_width: float

    @classmethod
    def of(cls, steps: Sequence[JudgedStep], values: Values) -> Judged:
        """Judge steps with some constants."""
        ends = [one.ends(values) for one in steps]
        inside = [low <= one.measured <= high for one, (low, high) in zip(steps, ends, strict=True)]
        return cls(fmean(inside), median((high - low) / 2 for low, high in ends))

    @property
    def short_of_asked(self) -> float:
        """How much less than asked is inside, and how much wider the intervals are."""
        return max(0.0, COVERED - self.covered) + max(0.0, self.half_width - HALF_WIDTH)

    def __str__(self) -> str:
        return f"{self.covered:.0%}, {self.half_width:.0%} wide"


def read(path: Path) -> dict[str, list[JudgedStep]]:
    """Return the steps of a file of predicted rows, by table."""
    found: dict[str, list[JudgedStep]] = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        if row["quantity"] in _QUANTITIES and row.get("doubts"):
            doubts = tuple(Doubt(source, error, 0.0, "") for source, error in row["doubts"].items())
            step = JudgedStep(row["measured"] / row["predicted"], doubts, row.get("launches", 0.0))
            found.setdefault(row.get("source", row["table"]), []).append(step)
    return found


def fit(sources: Mapping[str, Sequence[JudgedStep]]) -> dict[str, float]:
    """Return the constants with the least mean score of the sources, changed one at a time."""

    def score(values: Values) -> float:
        return fmean(
            fmean(one.score(values) for one in steps) + _SHORT * Judged.of(steps, values).short_of_asked
            for steps in sources.values()
        )

    best = dict(CONSTANTS)
    for _ in range(_ROUNDS):
        before = dict(best)
        for name, tried in TRIED.items():
            best[name] = min(tried, key=lambda value: score({**best, name: value}))
        if best == before:
            break
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    sources: dict[str, list[JudgedStep]] = {}
    for path in parser.parse_args().files:
        for table, steps in read(path).items():
            sources.setdefault(table, []).extend(steps)
    if len(sources) < 2:
        parser.error("there are steps with intervals of less than two tables in these files")
    every = fit(sources)
    print("| source | steps | mean error | inside, as shipped | fitted | left out | constants without it |")
    print("|---|--:|--:|--:|--:|--:|---|")
    for table, steps in sorted(sources.items()):
        without = fit({name: rows for name, rows in sources.items() if name != table})
        error = fmean(abs(1.0 / one.measured - 1.0) for one in steps)
        judged = (str(Judged.of(steps, values)) for values in (CONSTANTS, every, without))
        print(f"| {table} | {len(steps)} | {error:.1%} | {' | '.join(judged)} | {_said(without)} |")
    for how, values in (("as shipped", CONSTANTS), ("fitted to all", every)):
        mean = fmean(Judged.of(steps, values).covered for steps in sources.values())
        whole = Judged.of([one for steps in sources.values() for one in steps], values)
        print(f"{how}: {mean:.0%} of the average source, {whole.half_width:.0%} wide; {_said(values)}")


def _said(values: Values) -> str:
    return ", ".join(f"{name} {value:.0%}" for name, value in values.items())


if __name__ == "__main__":
    main()
