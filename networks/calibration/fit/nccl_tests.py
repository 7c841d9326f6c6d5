"""Parses the output of nccl-tests (github.com/NVIDIA/nccl-tests).

A file holds one run or several, one after the other, with whatever else a launcher printed between. The devices that a run
lists say how many GPUs it used, and on how many hosts. Newer versions name the test; for older ones the file's name
does, the command line if it is in the text, or what follows from the ratio of bus to algorithm bandwidth.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from triosim.input_files.reading import MOST_DIGITS
from triosim.networks.calibration.stored import KINDS

NAMES = {kind.replace("all_to_all", "alltoall"): kind for kind in KINDS}  # as nccl-tests writes them
_TEST = re.compile(r"(?:^|[\s/])(" + "|".join(sorted(NAMES, key=len, reverse=True)) + r")_perf(?:_mpi)?\b")
_DEVICE = re.compile(r"#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+\S")
_THREADS = re.compile(r"#\s*nThread\s+(\d+)\s+nGpus\s+(\d+)")
_HEADER = re.compile(r"#\s*size\s+count\s+.*\btime\s+algbw\s+busbw")
_TYPES = r"(?:u?int\d*|u?char|float\d*\w*|half|double|b?fp?\w*|bfloat16|f\d\w*)"
_ROW = re.compile(rf"(?:^|[^\d.\w])\s*(\d+)\s+(\d+)\s+({_TYPES})\s+(\S.*)$")


@dataclass(slots=True)
class TestRow:
    """One row of a run: bytes, seconds, and the columns that identify the collective."""

    number: int
    nbytes: int
    seconds: float
    ratio: float  # of bus to algorithm bandwidth
    reduces: bool
    rooted: bool


@dataclass(slots=True)
class TestRun:
    """One run of a test: its devices and its rows."""

    test: str | None = None
    processes_gpus: int = 0  # what the first line says; of one process
    hosts: dict[int, str] = field(default_factory=dict)  # by rank
    lines: list[TestRow] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)  # numbers of rows without times
    wrong: list[int] = field(default_factory=list)  # of rows whose results were wrong

    @property
    def gpus(self) -> int:
        """Return how many GPUs took part."""
        return len(self.hosts) or self.processes_gpus

    @property
    def nodes(self) -> int:
        """Return on how many hosts they were."""
        return len(set(self.hosts.values())) or 1

    def collective(self) -> str | None:
        """Return which collective it was, or None where the text leaves it open."""
        if self.test is not None:
            return NAMES[self.test]
        telling = [line for line in self.lines if line.ratio > 0.0]
        if not telling or self.gpus < 3:
            return None
        last = max(telling, key=lambda line: line.nbytes)
        n = self.gpus
        if last.rooted:
            return "reduce" if last.reduces else "broadcast"
        if last.reduces and math.isclose(last.ratio, 2 * (n - 1) / n, rel_tol=0.02):
            return "all_reduce"
        if last.reduces and math.isclose(last.ratio, (n - 1) / n, rel_tol=0.02):
            return "reduce_scatter"
        return None


def is_output(text: str) -> bool:
    """Return whether a text has the header of a table of nccl-tests."""
    return any(_HEADER.search(line) for line in text.splitlines())


def parse(text: str) -> list[TestRun]:
    """Return the runs of a text that have rows, whole ones or such as are cut off."""
    runs = [TestRun()]
    outside_first, rooted = True, False
    for number, line in enumerate(text.splitlines(), 1):
        if (named := _TEST.search(line)) and "concluded" not in line:
            _begin(runs).test = named[1]
        if threads := _THREADS.search(line):
            _begin(runs).processes_gpus = int(threads[1]) * int(threads[2])
        elif device := _DEVICE.search(line):
            _begin(runs).hosts[int(device[1])] = device[2]
        elif "out-of-place" in line and "in-place" in line.replace("out-of-place", ""):
            outside_first = line.index("out-of-place") < line.replace("out-of-place", "############").index("in-place")
        elif _HEADER.search(line):
            rooted = " root " in line
        elif row := _ROW.search(line):
            found = _line(number, row, outside_first, rooted)
            if found is not None:
                runs[-1].lines.append(found)
                if _has_wrong_results(row):
                    runs[-1].wrong.append(number)
            elif _is_cut(row):
                runs[-1].cut.append(number)
    return [run for run in runs if run.lines or run.cut]


def _begin(runs: list[TestRun]) -> TestRun:
    """Return the run that a heading belongs to: a new one, if the last has rows."""
    if runs[-1].lines or runs[-1].cut:
        runs.append(TestRun())
    return runs[-1]


def _is_cut(row: re.Match[str]) -> bool:
    """Whether a row has sizes as nccl-tests writes them, and no times."""
    if max(len(row[1]), len(row[2])) > MOST_DIGITS:
        return True
    return int(row[1]) > 0 < int(row[2]) and int(row[1]) % int(row[2]) == 0


def _has_wrong_results(row: re.Match[str]) -> bool:
    """Whether the last column, of wrong values in the results, has any; it is N/A where they were not checked."""
    last = row[4].split()[-1]
    return last.isdecimal() and int(last) > 0 and len(row[4].split()) >= 8


def _line(number: int, row: re.Match[str], outside_first: bool, rooted: bool) -> TestRow | None:
    if len(row[1]) > MOST_DIGITS:
        return None
    words = row[4].split()
    reduces, has_root = False, False
    if words and not _is_figure(words[0]):
        reduces = words.pop(0) not in ("none", "-")
    if rooted and words:
        has_root = words.pop(0) not in ("-1",)
    sets = [words[:4], words[4:8]] if len(words) >= 8 else [words[:4]]
    if not outside_first:
        sets.reverse()
    for figures in sets:
        if len(figures) >= 3 and all(_is_figure(word) for word in figures[:3]):
            time, algorithm, bus = (float(word) for word in figures[:3])
            if time > 0.0 and int(row[1]) > 0:
                return TestRow(
                    number, int(row[1]), time * 1e-6, bus / algorithm if algorithm else 0.0, reduces, has_root
                )
    return None


def _is_figure(word: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d*)?(e[+-]?\d+)?", word) is not None
