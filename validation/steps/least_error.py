"""The least mean error that predictions of a table can have: what its own rows contradict.

    python -m validation.steps.least_error

*Repeats*: rows of one command, which nothing that a user could type tells apart, have the one figure that is nearest to all.
*Work*: Megatron's rows on one node without a pipeline are sums of what M micro-batches, L layers and replicas take,

    M (L layer + rest) + L update + fixed (+ replicas),

with five constants for each width, micro-batch and tensor parallelism (docs/end-to-end.md). All are chosen freely for each
of these, but none may fall where features or samples grow and the same kernels are launched.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from validation.steps import formats
from validation.steps.errors import source_of
from validation.steps.rows import Row

_OF_WORK = "megatron-one-node"
_SIZE = re.compile(r"\b(h|L|dp|tp|pp)=(\d+)")
_BATCH = re.compile(r"batch=(\d+)/(\d+)")
_CONSTANTS = 5

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Work:
    """What a step has to do: features, tensor parallelism, samples of a micro-batch, and how often it needs each constant.

    ``unfused``: its softmax takes more kernels.
    """

    features: int
    tp: int
    samples: int
    unfused: bool
    amounts: tuple[float, ...]

    @classmethod
    def of(cls, row: Row) -> Work:
        """Return that of a row without a pipeline."""
        sizes = {name: int(size) for name, size in _SIZE.findall(row.label)}
        found = _BATCH.search(row.label)
        assert found is not None
        batch, samples = (int(size) for size in found.groups())
        layers, replicas = sizes["L"], sizes.get("dp", 1)
        passes = batch // samples // replicas
        amounts = (passes * layers, passes, layers, 1, float(replicas > 1))
        unfused = "fused_softmax=false" in str(row.case)
        return cls(sizes["h"], sizes.get("tp", 1), samples, unfused, amounts)

    @property
    def cell(self) -> tuple[int, int, int, bool]:
        """The steps that have the same constants."""
        return self.features, self.tp, self.samples, self.unfused


def of_repeats(measured: Iterable[tuple[str, float]]) -> float:
    """Return the least mean error of figures by their command, where each command has one prediction."""
    groups: dict[str, list[float]] = defaultdict(list)
    for command, figure in measured:
        groups[command].append(figure)
    least = [min(sum(abs(said / one - 1.0) for one in found) for said in found) for found in groups.values()]
    return sum(least) / sum(map(len, groups.values()))


def of_work(works: Sequence[Work], measured: Sequence[float]) -> float:
    """Return the least mean error of sums whose constants do not fall where the work grows."""
    cells = sorted({work.cell for work in works})
    constants, count = _CONSTANTS * len(cells), len(works)
    shares = np.zeros((count, constants))
    for place, (work, figure) in enumerate(zip(works, measured, strict=True)):
        begin = _CONSTANTS * cells.index(work.cell)
        shares[place, begin : begin + _CONSTANTS] = np.array(work.amounts) / figure
    errors, order = np.eye(count), np.array(list(_order(cells))).reshape(-1, constants)
    rows = np.block([[shares, -errors], [-shares, -errors], [order, np.zeros((len(order), count))]])
    limits = np.concatenate([np.ones(count), -np.ones(count), np.zeros(len(order))])
    cost = np.concatenate([np.zeros(constants), np.full(count, 1.0 / count)])
    return float(linprog(cost, A_ub=rows, b_ub=limits).fun)


def _order(cells: Sequence[tuple[int, int, int, bool]]) -> Iterator[Floats]:
    """Yield a row for each constant of two cells of which the second has more to do: the first's less the second's."""
    for one, (features, tp, samples, unfused) in enumerate(cells):
        for two, (more_features, its_tp, more_samples, its_unfused) in enumerate(cells):
            if one == two or (tp, unfused) != (its_tp, its_unfused):
                continue
            if features <= more_features and samples <= more_samples:
                for constant in range(_CONSTANTS):
                    row = np.zeros(_CONSTANTS * len(cells))
                    row[_CONSTANTS * one + constant], row[_CONSTANTS * two + constant] = 1.0, -1.0
                    yield row


def main() -> None:
    print("| source | rows | repeated | least mean error |\n|---|--:|--:|--:|")
    for kind, name, found in formats.shared(refuse=lambda *_: None):
        sources: dict[str, list[Row]] = defaultdict(list)
        for row in found:
            if row.quantity in ("step time", "training step"):
                sources[source_of(name, row.part)].append(row)
        for source, rows in sources.items():
            commands = [str(kind.command(row)) for row in rows]
            repeated = sum(commands.count(one) > 1 for one in commands)
            if repeated:
                error = of_repeats((one, row.measured) for one, row in zip(commands, rows, strict=True))
                print(f"| {source} | {len(rows)} | {repeated} | {error:.1%} |")
            if kind.name == _OF_WORK:
                alone = [row for row in rows if "pp=" not in row.label]
                error = of_work([Work.of(row) for row in alone], [row.measured for row in alone])
                print(f"| {source}, without pipelines, by work | {len(alone)} |  | {error:.1%} |")


if __name__ == "__main__":
    main()
