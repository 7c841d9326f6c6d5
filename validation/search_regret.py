"""The regret of a choice among measured configurations: what the one predicted to be the fastest takes beyond the fastest.

``python -m validation search_regret --table FILE`` reads a table that ``validation/end_to_end.py`` knows. The rows that train
the same model (layers, hidden, heads) at the same sequence, on as many GPUs of one kind, with the same global batch and number
formats, are a group, from three configurations on: the points of a search whose answer is measured. A row is predicted by its
plain command. One that is refused, or said not to fit in memory, is ranked last, though it ran.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, islice
from pathlib import Path
from typing import Any

from triosim.configuration_search.answer.likelihood import CORRELATION, chance
from triosim.errors import TriosimError
from triosim.extrapolators.core.parallelisms import Parallelisms
from triosim.extrapolators.core.plan import batches
from triosim.models import catalogue
from triosim.pipeline.reading import gpus_for, with_batch
from validation.end_to_end import predicted
from validation.report import Row as Claim
from validation.report import data
from validation.steps import formats
from validation.steps.command import Command
from validation.steps.errors import Predicted, Refused
from validation.steps.rows import Format, Row, spaced

NAME = "search_regret"
TAKES_LONG = True

#: The table of which some groups are judged by ``python -m validation``, how many, and what is claimed of them: the mean
#: regret, and how often the choice is not the fastest.
_TABLE, _SAMPLE = "end_to_end/megatron_a100_single_node.csv.gz", 12
MEAN_REGRET, MISSES = 0.035, 0.30
_LEAST = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """What the configurations of one group have in common."""

    model: str
    sequence: int | None
    gpus: int
    global_batch: int
    gpu: str
    formats: str


@dataclass(frozen=True, slots=True)
class Point:
    """A measured configuration; its predicted time is infinite where it is refused, or said not to fit.

    ``doubts`` are the expected errors of the prediction by source, as parts of it.
    """

    row: Row
    predicted: float
    doubts: Mapping[str, float] = field(default_factory=dict)

    @property
    def possible(self) -> bool:
        """Whether it is said to run."""
        return math.isfinite(self.predicted)


@dataclass(frozen=True, slots=True)
class Judged:
    """A group, the configuration that is chosen and the one that is the best, and what the choice costs: 0.02 is 2%.

    ``rank_correlation`` is Spearman's, of predicted and measured times; None where either are all equal.
    """

    choice: Choice
    points: tuple[Point, ...]
    chosen: Point
    best: Point
    regret: float
    rank_correlation: float | None
    best_in_first_five: bool

    def plain(self) -> dict[str, Any]:
        """Return the group as JSON holds it; ``points`` are the rows, the first predicted first."""
        said = {**asdict(self.choice), "configurations": len(self.points)}
        said |= {"chosen": self.chosen.row.label, "best": self.best.row.label, "regret": self.regret}
        said |= {"rank_correlation": self.rank_correlation, "unit": self.best.row.unit}
        return said | {
            "points": [
                {
                    **{"line": one.row.line, "row": one.row.label, "measured": one.row.measured},
                    **{"predicted": one.predicted if one.possible else None, "doubts": dict(one.doubts)},
                }
                for one in self.points
            ]
        }


def judged(choice: Choice, points: Sequence[Point]) -> Judged:
    """Judge what is chosen of a group; of equal predictions the one that comes first, of none that is possible the worst."""
    order = sorted(points, key=lambda one: one.predicted)
    chosen = order[0] if order[0].possible else max(points, key=lambda one: one.row.measured)
    best = min(points, key=lambda one: one.row.measured)
    return Judged(
        choice,
        tuple(order),
        chosen,
        best,
        chosen.row.measured / best.row.measured - 1.0,
        rank_correlation([one.predicted for one in points], [one.row.measured for one in points]),
        any(one.row.measured == best.row.measured for one in order[:5]),
    )


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's: the correlation of ranks, of which equal values share the mean."""
    ranks = [_ranks(first), _ranks(second)]
    return None if any(len(set(one)) == 1 for one in ranks) else statistics.correlation(*ranks)


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(other < one for other in values) + sum(other == one for other in values) / 2 for one in values]


def groups(table: Sequence[Row]) -> dict[Choice, list[Row]]:
    """Return the rows of a table that are choices of one another; rows of which that cannot be said are left out."""
    found: dict[Choice, list[Row]] = {}
    for row in table:
        if isinstance(row.case, Command) and row.case.verb == "simulate" and (choice := _choice(row)) is not None:
            found.setdefault(choice, []).append(row)
    return {choice: rows for choice, rows in found.items() if len({str(row.case) for row in rows}) >= _LEAST}


def _choice(row: Row) -> Choice | None:
    try:
        run = row.case.run()
        model = catalogue.find(run.subject)
        parallelisms = Parallelisms.of(run.config.parallel, gpus_for(run.config.parallel, run.config.gpus), run.config)
        samples, _ = batches(parallelisms, with_batch(run.config), 1)
    except TriosimError:
        return None
    sizes = [f"{name}={size}" for name in ("layers", "hidden", "heads") if (size := getattr(model, name, None))]
    name = run.subject.partition("(")[0]
    precision = filter(None, (run.config.dtype, run.config.products))
    return Choice(
        f"{name}({', '.join(sizes)})" if sizes else name,
        run.config.seq or getattr(model, "sequence", None),
        parallelisms.mesh.world,
        samples * parallelisms.replicas,
        row.gpu,
        ", ".join(map(str, precision)),
    )


@dataclass(frozen=True, slots=True)
class StatedChance:
    """Of so many ``pairs``, with what mean chance the first is ``stated`` to be faster, and how often it is."""

    stated: float
    right: float
    pairs: int


def _chance(first: Point, second: Point, correlation: float = CORRELATION) -> float:
    return chance(second.predicted / first.predicted, first.doubts, second.doubts, correlation)


def _is_right(first: Point, second: Point) -> bool:
    return first.row.measured <= second.row.measured


@dataclass(frozen=True, slots=True)
class Regret:
    """The groups of a table or of several, and the rows of them that were not predicted."""

    judged: Sequence[Judged]
    refused: Sequence[Refused]

    @property
    def mean(self) -> float:
        """What the choice costs on the average group."""
        return statistics.fmean(one.regret for one in self.judged)

    @property
    def hit_rate(self) -> float:
        """In how many groups the best is chosen."""
        return statistics.fmean(one.regret == 0 for one in self.judged)

    def chances(self) -> list[StatedChance]:
        """Return how often the point of a pair that is predicted to be faster is, by the stated chance, in steps of 10%."""
        classes: dict[int, list[tuple[float, bool]]] = {}
        for pair in self._pairs():
            stated = _chance(*pair)
            classes.setdefault(min(9, int(10 * stated)), []).append((stated, _is_right(*pair)))
        return [
            StatedChance(
                statistics.fmean(one for one, _ in pairs), statistics.fmean(one for _, one in pairs), len(pairs)
            )
            for _, pairs in sorted(classes.items())
        ]

    def correlation(self) -> float:
        """Return the correlation of errors under which the measured order of all pairs is the most likely."""
        pairs = list(self._pairs())

        def likelihood(correlation: float) -> float:
            return math.fsum(
                math.log(max(1e-9, stated if _is_right(*pair) else 1.0 - stated))
                for pair in pairs
                for stated in [_chance(*pair, correlation)]
            )

        return max((step / 20 for step in range(20)), key=likelihood)

    def _pairs(self) -> Iterator[tuple[Point, Point]]:
        """Yield the pairs of points of a group, the one that is predicted to be faster first."""
        for one in self.judged:
            yield from combinations([point for point in one.points if point.possible], 2)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {
            "groups": [one.plain() for one in self.judged],
            "mean_regret": self.mean,
            "worst_regret": max(one.regret for one in self.judged),
            "hit_rate": self.hit_rate,
            "top5_hit_rate": statistics.fmean(one.best_in_first_five for one in self.judged),
            "chances": [asdict(one) for one in self.chances()],
            "correlation": self.correlation(),
            "refused": [one.plain() for one in self.refused],
        }


def regret(kind: Format, table: str, found: Mapping[Choice, Sequence[Row]], jobs: int = 1) -> Regret:
    """Predict every row of some groups of a table, in several processes if asked for, and judge the choices."""
    rows = [row for members in found.values() for row in members]
    alone = [(kind, table, [replace(row, also=())]) for row in rows]
    said = list(predicted(alone, jobs))
    points = map(_point, rows, said)
    refused = [one for one in said if isinstance(one, Refused)]
    return Regret([judged(choice, list(islice(points, len(members)))) for choice, members in found.items()], refused)


def _point(row: Row, said: Predicted | Refused) -> Point:
    is_possible = isinstance(said, Predicted) and said.fits
    return Point(row, said.value, said.doubts) if is_possible else Point(row, math.inf)


def rows() -> list[Claim]:
    """Of some groups of a table, evenly spaced: the mean regret, and how often the choice is not the fastest."""
    path = data(_TABLE)
    kind, table = formats.read(path)
    found = regret(kind, path.name.partition(".")[0], dict(spaced(list(groups(table).items()), _SAMPLE)), jobs=2)
    against = "the fastest measured configuration"
    return [
        Claim("configurations chosen on one node of A100s: mean regret", against, _SAMPLE, found.mean, MEAN_REGRET),
        Claim("choices that are not the fastest", against, _SAMPLE, 1 - found.hit_rate, MISSES),
    ]


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m validation {NAME}", description=__doc__)
    parser.add_argument(
        "--table", metavar="FILE", required=True, help="a csv or csv.gz file whose header says its format"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="what is printed (text)")
    options = parser.parse_args(given)
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: give 1 or more")
    table, broken = Path(options.table).name.partition(".")[0], list[Refused]()
    try:
        kind, read = formats.read(options.table, lambda *one: broken.append(Refused(table, *one)))
        found = groups(read)
        if not found:
            fix = f"a group has the same model, sequence, GPUs and batch, and {_LEAST} configurations or more"
            raise TriosimError("no rows that could be chosen from", where=options.table, fix=fix)
        answer = regret(kind, table, found, options.jobs)
    except TriosimError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    answer = Regret(answer.judged, [*broken, *answer.refused])
    for one in answer.refused:
        print(one.error, file=sys.stderr)
    if options.format == "json":
        print(json.dumps(answer.plain(), indent=2))
    else:
        print_text(answer)
    return 0


def print_text(found: Regret) -> None:
    for one in sorted(found.judged, key=lambda one: -one.regret):
        choice = f"{one.choice.model} on {one.choice.gpus}, batch {one.choice.global_batch}: {len(one.points)} rows"
        said = f"chosen '{one.chosen.row.label}'" + ("" if one.regret else ", the best")
        print(f"{choice}, {said}" + (f", {one.regret:.1%} slower than '{one.best.row.label}'" if one.regret else ""))
    plain = found.plain()
    rates = f"the best is chosen in {found.hit_rate:.0%}, among the first five in {plain['top5_hit_rate']:.0%}"
    print(f"{len(found.judged)} groups: regret {found.mean:.2%}, worst {plain['worst_regret']:.1%}; {rates}; ", end="")
    print(f"{len(found.refused)} rows refused")
    for one in found.chances():
        print(f"{one.pairs} pairs: the first is faster with a chance of {one.stated:.0%}, and is in {one.right:.0%}")
    print(
        f"the correlation of errors that fits these pairs best: {found.correlation():.2f} (triosim has {CORRELATION})"
    )


if __name__ == "__main__":
    sys.exit(main())
