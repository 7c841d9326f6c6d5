"""Compares jobs, each with options of its own, such as those of launch files: the fastest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from triosim.comparison.strategies import Comparison, Strategy, StrategyResult
from triosim.config import RunConfig
from triosim.engine import Progress
from triosim.errors import TriosimError
from triosim.simulation import simulate_config


@dataclass(frozen=True, slots=True)
class ComparedJob:
    """The options of a job; in ``naming_places()`` errors about them name the lines of its file."""

    config: RunConfig
    naming_places: Callable[[], AbstractContextManager[None]] = nullcontext


def compare_jobs(
    subject: str, jobs: Mapping[str, ComparedJob], started: Callable[[str], None], progress: Progress | None = None
) -> Comparison:
    """Simulate each job, named by its file; speed-ups are those over the first that can run.

    ``started`` is told of each before it runs. Raises ``TriosimError`` where none can run.
    """
    found = []
    for path, job in jobs.items():
        label = Path(path).name if len({Path(one).name for one in jobs}) == len(jobs) else path
        started(label)
        found.append(_ran(subject, Strategy(str(job.config.parallel), name=label), job, progress))
    first = next((one for one in found if one.result is not None), None)
    if first is None or first.result is None:
        raise TriosimError(found[0].reason)
    runs = sorted(_with_speed_ups(found, first), key=lambda one: -one.throughput)
    inputs = first.result.inputs["trace"]
    gpus = max(one.result.world for one in found if one.result is not None)
    title = f"{inputs['model']} on {inputs['gpu']}: {len(found)} job{'s' if len(found) > 1 else ''}"
    return Comparison(title, gpus, tuple(runs), subject, first.label)


def _ran(subject: str, strategy: Strategy, job: ComparedJob, progress: Progress | None) -> StrategyResult:
    try:
        with job.naming_places():
            return StrategyResult(strategy, simulate_config(subject, job.config, progress))
    except TriosimError as error:
        return StrategyResult(strategy, None, str(error))


def _with_speed_ups(runs: list[StrategyResult], first: StrategyResult) -> Iterator[StrategyResult]:
    for run in runs:
        if run.result is None or first.result is None:
            yield run
        else:
            speed_up = run.throughput / first.throughput
            yield replace(run, speed_up=speed_up, efficiency=speed_up * first.result.world / run.result.world)
