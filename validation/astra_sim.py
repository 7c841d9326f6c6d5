"""ASTRA-sim's studies by its own rules, against its own results: the ranks that end at the same nanosecond.

``python -m validation astra_sim [--cases FILE] [--results FILE] [--format json] [--predictions FILE]``. ``--cases`` is an
archive, or a folder, with ``workloads/`` and ``cases/NAME/cmd.txt``: a command line of ASTRA-sim for each of its networks.
``--results`` has a row for each rank that reports, or one without a rank where none does. The exit status is 0 where 98% of the
ranks are exact.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import shlex
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from triosim.engine.astra_sim.run import FinishedRank, Outcome, Settings, run
from triosim.engine.astra_sim.study import StudyFiles, read_study
from triosim.errors import TriosimError
from validation.report import Row, data, relative

NAME = "astra_sim"
_ASKED = 0.98
_CASES, _RESULTS = "astra_sim/cases.tar.gz", "astra_sim/results.csv.gz"
_SAMPLE = 8  # every so many cases, where all checks run

#: A run is a case on one of ASTRA-sim's networks.
RunName = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Difference:
    """A rank that ends at another tick, or in one of the two simulators alone; without a rank it is the whole run."""

    case: str
    backend: str
    rank: int | None
    expected_ns: int | None
    predicted_ns: int | None
    reason: str


@dataclass(slots=True)
class Judged:
    """How many ranks of which runs are exact."""

    cases: int = 0
    runs: int = 0
    ranks: int = 0
    exact: int = 0
    within_1_percent: int = 0
    worst: float = 0.0
    not_run: list[Difference] = field(default_factory=list)
    mismatches: list[Difference] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether as many ranks are exact as is asked."""
        return self.exact >= _ASKED * self.ranks


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    began = time.perf_counter()
    expected = read_results(options.results or data(_RESULTS))
    with _folder(options.cases or data(_CASES)) as root:
        names = {case for case, _ in expected} if options.predictions is None else None
        outcomes = dict(outcomes_of(root, names))
    judged = judge(expected, outcomes)
    judged.seconds = round(time.perf_counter() - began, 1)
    if options.predictions is not None:
        _write(options.predictions, outcomes)
    if options.format == "json":
        print(json.dumps(asdict(judged), indent=2))
    else:
        _show(judged)
    return 0 if judged.holds else 1


def rows() -> list[Row]:
    """Judge a sample of the cases, for ``python -m validation``."""
    expected = read_results(data(_RESULTS))
    names = sorted({case for case, _ in expected})[::_SAMPLE]
    with _folder(data(_CASES)) as root:
        outcomes = dict(outcomes_of(root, set(names)))
    judged = judge({name: ranks for name, ranks in expected.items() if name[0] in names}, outcomes)
    error = 1 - judged.exact / judged.ranks
    return [Row("ranks of graphs that end at another nanosecond", "ASTRA-sim", judged.ranks, error, 1 - _ASKED)]


def read_results(path: Path) -> dict[RunName, dict[int, int]]:
    """Return the finish tick of each rank by run; of a run in which no rank reports, nothing."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found: dict[RunName, dict[int, int]] = {}
    for row in csv.DictReader(io.StringIO(text.decode())):
        ranks = found.setdefault((row["case"], row["backend"]), {})
        if row["rank"]:
            ranks[int(row["rank"])] = int(row["cycles"])
    return found


def outcomes_of(root: Path, names: set[str] | None) -> Iterator[tuple[RunName, Outcome | str]]:
    """Yield the outcome of each run of some cases, or of all, or why it cannot be run."""
    for folder in sorted((root / "cases").iterdir()):
        if names is not None and folder.name not in names:
            continue
        for line in (folder / "cmd.txt").read_text(encoding="utf-8").splitlines():
            program, *words = shlex.split(line)
            backend = "congestion_unaware" if "Unaware" in program else "congestion_aware"
            asked = dict(word.removeprefix("--").split("=", 1) for word in words)
            try:
                yield (folder.name, backend), _outcome(folder, backend, asked)
            except (TriosimError, ArithmeticError, LookupError, ValueError, TypeError, AssertionError) as error:
                yield (
                    (folder.name, backend),
                    f"{type(error).__name__}: {error}",
                )  # the other cases are judged nevertheless


def _outcome(folder: Path, backend: str, asked: Mapping[str, str]) -> Outcome:
    def path(option: str) -> Path | None:
        return folder / asked[option] if option in asked else None

    files = StudyFiles(
        folder / asked["workload-configuration"],
        folder / asked["network-configuration"],
        folder / asked["system-configuration"],
        path("remote-memory-configuration"),
        path("comm-group-configuration"),
        folder,
    )
    settings = Settings(
        backend.replace("_", "-"),
        int(asked.get("num-queues-per-dim", 1)),
        float(asked.get("injection-scale", 1)),
        asked.get("rendezvous-protocol", "false") in ("true", "1"),
    )
    study = read_study(files)
    return run(study.graphs, study.inputs, settings)


def judge(expected: Mapping[RunName, Mapping[int, int]], outcomes: Mapping[RunName, Outcome | str]) -> Judged:
    """Compare outcomes with results."""
    judged = Judged(len({case for case, _ in expected}), len(expected))
    for name, ranks in expected.items():
        outcome = outcomes.get(name, "there is no such case")
        found = {} if isinstance(outcome, str) else outcome.ranks
        judged.ranks += len(ranks)
        for rank, cycles in ranks.items():
            _judge_rank(judged, Difference(*name, rank, cycles, None, _why(outcome, rank)), found.get(rank))
        for rank in sorted(found.keys() - ranks.keys()):
            late = "ASTRA-sim does not report this rank"
            judged.mismatches.append(Difference(*name, rank, None, found[rank].cycles, late))
    return judged


def _judge_rank(judged: Judged, asked: Difference, found: FinishedRank | None) -> None:
    assert asked.expected_ns is not None
    if found is None:
        judged.not_run.append(asked)
        return
    error = relative(found.cycles, asked.expected_ns)
    judged.within_1_percent += error <= 0.01
    judged.worst = max(judged.worst, error)
    if found.cycles == asked.expected_ns:
        judged.exact += 1
    else:
        late = f"{found.cycles - asked.expected_ns:+} ns"
        judged.mismatches.append(
            Difference(asked.case, asked.backend, asked.rank, asked.expected_ns, found.cycles, late)
        )


def _why(outcome: Outcome | str, rank: int) -> str:
    return outcome if isinstance(outcome, str) else outcome.unfinished.get(rank, "the network has no such rank")


def _write(path: Path, outcomes: Mapping[RunName, Outcome | str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("case", "backend", "rank", "cycles", "exposed_comm"))
        for name, outcome in outcomes.items():
            for rank, found in () if isinstance(outcome, str) else sorted(outcome.ranks.items()):
                table.writerow((*name, rank, found.cycles, found.exposed))


def _show(judged: Judged) -> None:
    print(f"{judged.cases} cases, {judged.runs} runs, {judged.ranks} ranks in {judged.seconds} s")
    print(f"exact {judged.exact}, within 1% {judged.within_1_percent}, worst {100 * judged.worst:.3g}%")
    for name, found in (("not run", judged.not_run), ("differs", judged.mismatches)):
        for one in found:
            print(
                f"{name}: {one.case} {one.backend} rank {one.rank}: {one.expected_ns} {one.predicted_ns} {one.reason}"
            )


@contextmanager
def _folder(cases: Path) -> Iterator[Path]:
    """Give the folder of cases, unpacked where it is an archive."""
    if cases.is_dir():
        yield cases
        return
    with tempfile.TemporaryDirectory() as folder, tarfile.open(cases) as archive:
        archive.extractall(folder, filter="data")
        yield Path(folder)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m validation {NAME}", description=__doc__)
    parser.add_argument("--cases", type=Path, metavar="FILE", help="an archive of cases, or its folder")
    parser.add_argument("--results", type=Path, metavar="FILE", help="ASTRA-sim's results, a csv, gzipped or not")
    parser.add_argument("--predictions", type=Path, metavar="FILE", help="write what every rank of every case takes")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    return parser.parse_args(arguments)
