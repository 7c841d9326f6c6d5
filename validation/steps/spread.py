"""What steps that nobody measured are off by beside their operators and transfers, and how often intervals hold, by source.

    python validation/end_to_end.py --table FILE --format json > rows.json          (for each table, or a sample of it)
    python -m validation.steps.spread rows.json ...

A source is a table. What is fitted is the least ``triosim.results.uncertainty.STEP_ERROR`` with which, on the average
source, nine in ten measured steps lie within their interval: to all sources but one, judged on that one, and to all.
Intervals so wide say little; the one that triosim has keeps the median half-width under 20%.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from triosim.results.uncertainty import STEP_ERROR, WIDTH

#: Of nine in ten.
WANTED = 0.9
_STEP = 0.005


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """A step of a table: predicted / measured as a logarithm, and the interval's half-width without ``STEP_ERROR``."""

    off: float
    half_width: float

    def width(self, step_error: float) -> float:
        """Return the half-width of the interval with another ``STEP_ERROR``."""
        return math.hypot(self.half_width, WIDTH * step_error)

    def inside(self, step_error: float) -> bool:
        """Whether the measured time is within the interval."""
        return abs(self.off) <= math.log1p(self.width(step_error))


def read(path: Path) -> dict[str, list[JudgedStep]]:
    """Return the steps of a file that ``end_to_end.py`` wrote, by table."""
    found: dict[str, list[JudgedStep]] = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        if row["quantity"] == "step time" and row.get("high") is not None:
            half = row["high"] / row["predicted"] - 1.0
            without = math.sqrt(max(half * half - (WIDTH * STEP_ERROR) ** 2, 0.0))
            found.setdefault(row["table"], []).append(JudgedStep(math.log1p(row["error"]), without))
    return found


def covered(steps: Sequence[JudgedStep], step_error: float) -> float:
    """Return the share of steps within their interval."""
    return sum(one.inside(step_error) for one in steps) / len(steps)


def fit(sources: Mapping[str, Sequence[JudgedStep]]) -> float:
    """Return the least ``STEP_ERROR`` with which the average source is covered as wanted."""
    value = 0.0
    while statistics.mean(covered(steps, value) for steps in sources.values()) < WANTED:
        value += _STEP
    return round(value, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    sources: dict[str, list[JudgedStep]] = {}
    files = parser.parse_args().files
    for path in files:
        for table, steps in read(path).items():
            sources.setdefault(table, []).extend(steps)
    if not sources:
        parser.error("no step in these files has an interval")
    print("| source | steps | mean error | within, now | fitted without it | within | median half-width |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for table, steps in sorted(sources.items()):
        others = (
            fit({name: rows for name, rows in sources.items() if name != table}) if len(sources) > 1 else STEP_ERROR
        )
        error = statistics.mean(abs(math.expm1(one.off)) for one in steps)
        width = statistics.median(one.width(others) for one in steps)
        shares = f"{covered(steps, STEP_ERROR):.0%} | {others:.1%} | {covered(steps, others):.0%} | {width:.0%}"
        print(f"| {table} | {len(steps)} | {error:.1%} | {shares} |")
    print(f"fitted to all: {fit(sources):.1%}; triosim has {STEP_ERROR:.1%}")


if __name__ == "__main__":
    main()
