"""``search``: finds the best configuration for a model and a cluster, with proof that none is better.

The command line does the same in the same steps: a space is declared, every point of it is judged by the rules, and the valid
ones are weighed and simulated.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from triosim import plugins
from triosim.config import COMMON, RunConfig, flags
from triosim.config.signature import with_keywords
from triosim.configuration_search.answer.result import SearchResult
from triosim.configuration_search.evaluation import Simulate, Weigh
from triosim.configuration_search.exact import Evaluate, Search, Searched, Tell, searched_by_study
from triosim.configuration_search.memory_order import shards
from triosim.configuration_search.objectives import Objectives
from triosim.configuration_search.options import SEARCH, SearchOptions, share
from triosim.configuration_search.outcome import Outcome
from triosim.configuration_search.point import Point
from triosim.configuration_search.ray_workers import on_ray
from triosim.configuration_search.sampling.attempt import Try
from triosim.configuration_search.sampling.budget import DEFAULT_BUDGET, Budget
from triosim.configuration_search.sampling.sampled import SampledSearch
from triosim.configuration_search.sampling.sampler import TPE, Sampler
from triosim.configuration_search.spaces.declaration import (
    Declaration,
    of_arguments,
    of_mapping,
    of_texts,
    of_topology,
    read_space,
    space_of,
    space_of_fingerprint,
)
from triosim.configuration_search.spaces.rules import Validity, validity_of
from triosim.configuration_search.spaces.script import Script, varied_arguments
from triosim.configuration_search.spaces.space import MEMORY_ERROR, Space
from triosim.configuration_search.spaces.subject import SearchSubject, subject_of, subject_of_script
from triosim.configuration_search.study import damage_named, opened, shown
from triosim.configuration_search.workers import Evaluate as EvaluateAll
from triosim.configuration_search.workers import One, Task, processes
from triosim.errors import OptionError
from triosim.pipeline.reading import TraceLike

#: Options of which Python may be given several values: the numbers and kinds of GPUs, and clusters.
_SEVERAL = ("gpus", "gpu", "topology")


@with_keywords(*SEARCH, *COMMON.values(), *flags().values())
def search(trace: TraceLike | None = None, *, tell: Tell | None = None, **options: Any) -> SearchResult:
    """Find the best configuration for a model and a cluster, and prove that no other one is better.

    trace: a ``Trace``, the path of one, or the name of a model; None for a ``script``.
    gpus, gpu, topology: also several, in a list: numbers and kinds of GPUs, and clusters to choose from.
    tell: called with the phase of the search, how many of how many points are done at most, and the best points so far: those
        that none is better than in all objectives, the best by the first objective first.

    Points that do not fit are never timed, the others are simulated in the order of what their steps take at least, until none
    that is left can be better. An interrupt ends it in what is known so far. Raises ``TriosimError`` for whatever is wrong with
    the input, in one line. All options:
    """
    own = {option.name for option in SEARCH}
    chosen = SearchOptions.of({name: value for name, value in options.items() if name in own})
    said = {name: value for name, value in options.items() if name not in own}
    several = {name: said.pop(name) for name in _SEVERAL if isinstance(said.get(name), (list, tuple))}
    declared = declaration_of(chosen).merged(of_mapping(several))
    with declared_space(trace, RunConfig.of(**said), declared, chosen) as space:
        validity = None if chosen.sampler else validity_of(space)
        return SearchResult(run_search(space, validity, chosen, tell or _silent, jobs=chosen.jobs or 1))


def declaration_of(options: SearchOptions) -> Declaration:
    """Return what is said to vary: in a file, and in the options, which override it. Raises ``OptionError``."""
    vary, without = options.vary or (), options.without_rule or ()
    declared = of_mapping(vary, without) if isinstance(vary, Mapping) else of_texts(vary, without)
    return declared if options.space is None else read_space(options.space).merged(declared)


@contextmanager
def declared_space(
    trace: TraceLike | None, base: RunConfig, declared: Declaration, options: SearchOptions
) -> Iterator[Space]:
    """Give the space of a search, while the folder is there that keeps what is captured of a script.

    Raises ``TriosimError`` for a subject that cannot be read, and ``OptionError`` for a space that cannot be, or for options of
    a sampler where none is.
    """
    _check_sampler(options)
    margin = MEMORY_ERROR if options.memory_margin is None else share(str(options.memory_margin), "--memory-margin")
    with tempfile.TemporaryDirectory(prefix="triosim-") as folder:
        arguments = varied_arguments(options.vary_argument or ())
        if options.script is not None and options.executor != "local":
            raise OptionError("captures are files of this machine", where="--executor", fix="leave it out for a script")
        subject = _subject(trace, base, options.script, tuple(arguments), folder)
        if options.vary_topology:
            declared = declared.merged(of_topology(options.vary_topology, _topology_of(base, declared)))
        space = space_of(subject, base, declared.merged(of_arguments(arguments)), margin)
        if options.screen is not None:
            _check_screen(options.screen, space)
            if options.sampler is not None:
                raise OptionError("a sampler simulates what it draws", where="--screen", fix="leave one of them out")
        yield replace(space, network_budget=options.network_budget)


def _check_sampler(options: SearchOptions) -> None:
    """Raise ``OptionError`` for options that only a sampler reads, where an exact search is asked for."""
    for name in ("budget", "seed"):
        if options.sampler is None and getattr(options, name) is not None:
            raise OptionError("has no effect without a sampler", where=f"--{name}", fix="add --sampler tpe")


def _topology_of(base: RunConfig, declared: Declaration) -> Any:
    """Return the topology whose keys vary: of several, the first."""
    axis = declared.axes.get("topology")
    return base.topology if axis is None else axis.values[0]


def _check_screen(network: Any, space: Space) -> None:
    """Raise ``TriosimError`` for a network that there is not, or that points run on already."""
    plugins.find("networks", network)
    if space.axis("network") or network == space.base.network:
        fix = "give a coarser network, such as analytical, than the one that is simulated"
        raise OptionError("points run on it, or on several", where="--screen", fix=fix)


def _subject(
    trace: TraceLike | None, base: RunConfig, script: str | None, varied: tuple[str, ...], folder: str
) -> SearchSubject:
    if script is not None and trace is not None:
        raise OptionError(f"'{trace}' is given besides a script", where="--script", fix="leave out one of them")
    if script is not None:
        return subject_of_script(Script.read(script).varying(varied, folder))
    if varied:
        raise OptionError("there is no script whose arguments could vary", where="--vary-argument", fix="give --script")
    if trace is None:
        raise OptionError("there is nothing to search", where="search", fix="give a trace, a model or a script")
    return subject_of(trace, base)


def run_search(space: Space, validity: Validity | None, options: SearchOptions, tell: Tell, *, jobs: int) -> Searched:
    """Search a space, from and into the study if there is one; ``validity`` is not known where a sampler draws the points.

    Raises ``OptionError`` for an objective that is not known.
    """
    objectives = objectives_of(options)
    if validity is None:
        return _sampled(space, objectives, options, tell, jobs)
    tasks: list[Task[Point]] = [Weigh(space), Simulate(space)]
    if options.screen is not None:
        tasks.append(Simulate(space, options.screen))
    with _executed(options, *tasks, jobs=jobs) as (weigh, simulate, *screens):
        in_runs: Evaluate = partial(weigh, shared=partial(shards, space))
        with _recorded(options.study, space, in_runs, simulate) as (weigh_all, simulate_all):
            screen = screens[0] if screens else None
            return Search(space, validity, objectives, weigh_all, simulate_all, options.top, tell, screen).run()


def _executed(
    options: SearchOptions, *tasks: Task[One], jobs: int
) -> AbstractContextManager[Sequence[EvaluateAll[One]]]:
    """Give what evaluates points by tasks: so many processes, or the workers of a Ray cluster."""
    if options.executor == "ray":
        return on_ray(*tasks, jobs=options.jobs)
    return processes(*tasks, jobs=jobs)


def _sampled(space: Space, objectives: Objectives, options: SearchOptions, tell: Tell, jobs: int) -> Searched:
    """Search a space by a sampler."""
    sampler = Sampler(options.sampler or TPE, space, len(objectives.all), options.seed or 0)
    budget = Budget.read(DEFAULT_BUDGET if options.budget is None else options.budget)
    search = partial(SampledSearch, space, objectives, sampler, budget, top=options.top, tell=tell)
    with _executed(options, Try(space, objectives), jobs=jobs) as (try_all,):
        if options.study is None:
            return search(try_all).run()
        with opened(options.study, space.fingerprint) as study:
            return search(partial(study.evaluate, try_all, is_enough=_is_timed), study.known).run()


@contextmanager
def _recorded(
    path: str | None, space: Space, weigh: Evaluate, simulate: Evaluate
) -> Iterator[tuple[Evaluate, Evaluate]]:
    """Give what weighs and simulates points, from and into the study at a path if there is one."""
    if path is None:
        yield weigh, simulate
        return
    with opened(path, space.fingerprint) as study:
        yield partial(study.evaluate, weigh), partial(study.evaluate, simulate, is_enough=_is_timed)


def _is_timed(outcome: Outcome) -> bool:
    return outcome.state != "excluded"


def objectives_of(options: SearchOptions) -> Objectives:
    """Return what is best. Raises ``OptionError`` for an objective that there is not, or a share that is none."""
    return Objectives.read(options.objective, share(str(options.within), "--within"))


def search_of_study(path: str, objectives: Objectives) -> Searched:
    """Return what a study has found so far. Raises ``StudyError`` where there is none."""
    with shown(path) as study:
        with damage_named(path):
            space, outcomes = space_of_fingerprint(study.space), {one.key: one for one in study.outcomes()}
            for key in outcomes:
                Point.read(key)
        return searched_by_study(space, objectives, outcomes)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _silent(phase: str, done: int, most: int, front: Sequence[Outcome]) -> None:
    """Show no progress."""
