"""``advise``: simulates a job and its changes, of one option and then of two; says which gain most, and where to make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from triosim.config import RunConfig
from triosim.configuration_search.advice.changes import OF_AXIS, Change, changes
from triosim.configuration_search.advice.edits import as_trained, edits, framework_of, is_expressible
from triosim.configuration_search.answer.likelihood import chance_of_being_better
from triosim.configuration_search.outcome import Figures
from triosim.errors import TriosimError
from triosim.launch_files.job import Job, job_of, on_system_of
from triosim.launch_files.reading import LaunchFile
from triosim.launch_files.writing import Exported
from triosim.results.result import Result
from triosim.simulation import simulate_config

#: How many changes of one option are tried in pairs: those that gain most.
_PAIRED = 5
SCHEMA = "triosim-advice/1"


@dataclass(frozen=True, slots=True)
class Advised:
    """A changed job: the changes in words, its step's seconds, by which share it is faster than the job (0.1: 10% less time).

    ``chance`` is how likely it is faster, by the doubts about both steps; ``peak_bytes`` the memory of the fullest rank, which
    ``fits`` or not; ``edits`` the lines of the launch file, or the options of triosim where its framework is not written.
    """

    changes: tuple[str, ...]
    step_time_s: float
    gain: float
    chance: float | None
    peak_bytes: int | None
    fits: bool
    edits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Advice:
    """A job's own step and memory, and its changes, those that fit and gain most first; ``refused`` is how many cannot be."""

    subject: str
    path: str
    step_time_s: float
    peak_bytes: int | None
    fits: bool
    found: tuple[Advised, ...]
    refused: int

    def to_dict(self) -> dict[str, Any]:
        """Return the advice as JSON holds it."""
        return {"schema": SCHEMA, **asdict(self)}


@dataclass(frozen=True, slots=True)
class _Tried:
    """A changed job that was simulated."""

    parts: tuple[Change, ...]
    job: Job
    result: Result

    @property
    def fits(self) -> bool:
        return self.result.memory is None or self.result.memory.fits


def advise(
    subject: str, config: RunConfig, launch: LaunchFile, node: int, started: Callable[[str], None] | None = None
) -> Advice:
    """Return the advice about the job of a launch file on nodes of so many GPUs; ``started`` is told of each step.

    Raises ``TriosimError`` where the job itself cannot be simulated.
    """
    return _Adviser(subject, config, launch, node, started or (lambda shown: None)).advice()


class _Adviser:
    """Simulates a job and its changes, each once."""

    def __init__(
        self, subject: str, config: RunConfig, launch: LaunchFile, node: int, started: Callable[[str], None]
    ) -> None:
        self._subject, self._launch, self._node, self._started = subject, launch, node, started
        started("the job as it is")
        self._config = config
        self._base = simulate_config(subject, config)
        traced = self._base.inputs["trace"]["batch_size"]
        self._job = job_of(subject, config, self._base.world, traced)
        self._framework = framework_of(launch)
        self._refused = 0

    def advice(self) -> Advice:
        """Return what changes gain, of one option and of two."""
        single = [tried for one in changes(self._job, self._node) if (tried := self._tried((one,))) is not None]
        best = sorted(single, key=lambda one: one.result.step_time_s)
        kept = [one for one in best if one.fits][:_PAIRED] + [one for one in best if not one.fits][:1]
        pairs = [
            tried
            for one, other in combinations(kept, 2)
            if one.parts[0].option != other.parts[0].option
            and (tried := self._tried((*one.parts, *other.parts))) is not None
        ]
        found = sorted(
            map(self._advised, (*single, *_better(pairs, single))), key=lambda one: (not one.fits, -one.gain)
        )
        fits, peak = _memory(self._base)
        path, seconds = self._launch.path, self._base.step_time_s
        return Advice(self._subject, path, seconds, peak, fits, tuple(found), self._refused)

    def _tried(self, parts: tuple[Change, ...]) -> _Tried | None:
        """Return a changed job, simulated; None for one that cannot be, or that the framework has no keys for."""
        try:
            job = self._job
            for part in parts:
                settings = part.apply(job)
                if settings is None:
                    return None
                job = self._as_trained(settings)
            config = self._config_of(job.settings)
            exported = [Exported(one, self._node, config) for one in (self._job, job)]
            if job.settings == self._job.settings or job.global_batch_size != self._job.global_batch_size:
                return None
            if self._framework is not None and not is_expressible(self._framework, *exported):
                return None
            self._started(" and ".join(part.shown for part in parts))
            return _Tried(parts, job, simulate_config(self._subject, config))
        except TriosimError:
            self._refused += 1
            return None

    def _as_trained(self, settings: Mapping[str, Any]) -> Job:
        """Return the job that settings make, with what the framework decides of an axis that the job has not."""
        job = job_of(self._subject, self._config_of(settings), self._job.gpus)
        new = [axis for axis in OF_AXIS if job.size(axis) > 1 and self._job.size(axis) == 1]
        names = [name for axis in new for name in OF_AXIS[axis]]
        if self._framework is None or not names:
            return job
        exported = Exported(job, self._node, self._config_of(job.settings))
        chosen = as_trained(self._framework, exported, names)
        return job_of(self._subject, self._config_of(chosen), self._job.gpus)

    def _config_of(self, settings: Mapping[str, Any]) -> RunConfig:
        """Return the options of a changed job, on the system of the job as it is."""
        return on_system_of(self._config, settings, self._job.gpus)

    def _advised(self, tried: _Tried) -> Advised:
        fits, peak = _memory(tried.result)
        before, after = Figures.of(self._base), Figures.of(tried.result)
        gain = 1.0 - after.step_time_s / before.step_time_s
        doubted = bool(before.doubts or after.doubts)
        chance = chance_of_being_better(after, before, before.step_time_s / after.step_time_s) if doubted else None
        shown = tuple(part.shown for part in tried.parts)
        return Advised(shown, after.step_time_s, gain, chance, peak, fits, tuple(self._edits(tried.job)))

    def _edits(self, job: Job) -> Iterator[str]:
        if self._framework is not None:
            yield from edits(self._framework, self._launch, self._job, job)
            return
        for name in dict.fromkeys((*self._job.settings, *job.settings)):
            if self._job.settings.get(name) != job.settings.get(name):
                yield f"{name.removeprefix('options.')}: {job.get(name)}"


def _better(pairs: list[_Tried], single: list[_Tried]) -> Iterator[_Tried]:
    """Yield the pairs that take less time than each of their parts, or fit where one of these does not."""
    alone = {one.parts[0].shown: one for one in single}
    for pair in pairs:
        parts = [alone[part.shown] for part in pair.parts]
        if pair.fits and pair.result.step_time_s < min(
            part.result.step_time_s for part in parts if part.fits or len(parts) < 2
        ):
            yield pair


def _memory(result: Result) -> tuple[bool, int | None]:
    """Return whether a step fits, and the bytes of its fullest rank."""
    if result.memory is None:
        return True, None
    return result.memory.fits, result.memory.fullest.peak_bytes
