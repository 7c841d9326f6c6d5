"""``remedies``: finds what makes a step fit that does not, and simulates what each would cost.

Changes are tried that are usual against a lack of memory: to shard more (``zero1``, ``zero2``, ``fsdp`` in place of ``ddp``),
to recompute activations, to compute the batch in smaller micro-batches, and to offload to memories that the topology has. Those
of one option come first; several are combined where no single one is enough, or where all that are need other memories.

The memory of each is worked out first, without a simulation. Of those that fit the ones are simulated that no other is better
than in both lower bound and bytes outside of the GPU, and then those with the least bounds. What another step rules out, which
needs no more memory and is clearly short of it, is not planned.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import Any, TypeVar

from triosim.config import RunConfig
from triosim.config.commands import simulate_command
from triosim.config.offload import Offload
from triosim.errors import OptionError, TriosimError
from triosim.extrapolators.core.parallelisms import Parallelisms
from triosim.extrapolators.core.plan import batches
from triosim.pipeline.bounds import IdleCollectives, lower_bound
from triosim.pipeline.planning import PlannedRun, plan
from triosim.pipeline.pricing import PricedSubject, price
from triosim.pipeline.reading import Subject, TraceLike, gpus_for, read, with_batch
from triosim.results.result import Result
from triosim.simulation import simulate_planned

#: What divides more of a rank's memory among ranks, by what the others have whole.
_SHARDED: Mapping[str, tuple[str, ...]] = {
    "dp": ("zero1", "zero2", "fsdp"),
    "ddp": ("zero1", "zero2", "fsdp"),
    "zero1": ("zero2", "fsdp"),
    "zero2": ("fsdp",),
}
_OFFLOADS = ("optimizer=host", "activations=host", "optimizer=host,parameters=host")
_RECOMPUTED = ("selective", "full")
_T = TypeVar("_T")
#: Options by name.
Change = Mapping[str, str | int]
#: How many of the steps that fit are simulated.
MOST_SIMULATED = 6
#: For how many seconds of processor time the command looks for what fits, the first step and its simulation at least.
MOST_SECONDS = 15.0
#: By how many times its GPU a step must be too large to rule out others, which roundings may make smaller.
_CLEARLY = 1.1


@dataclass(frozen=True, slots=True)
class Remedy:
    """Options under which a step fits, its seconds, and the bytes of its fullest rank, on the GPU and outside of it by tier."""

    options: Change
    step_time_s: float
    peak_bytes: int
    outside_bytes: Mapping[str, int]

    @property
    def shown(self) -> str:
        """The options as they stand on the command line."""
        return _shown(self.options)


@dataclass(frozen=True, slots=True)
class Remedies:
    """What makes a step fit, the quickest first, of how many changes that were ``tried``.

    Where the time was up, it is ``stopped``, and ``not_simulated`` are options under which a step fits, too.
    """

    found: tuple[Remedy, ...] = ()
    tried: int = 0
    stopped: bool = False
    not_simulated: tuple[str, ...] = ()


def remedies(trace: TraceLike, parallel: Any = "single", **options: Any) -> tuple[Remedy, ...]:
    """Return the changes of a step's options with which it fits the GPUs, the quickest first; ``options`` are ``simulate``'s.

    Raises ``TriosimError`` for whatever ``simulate`` does. A step that fits needs none.
    """
    return remedies_config(trace, RunConfig.of(parallel=parallel, **options)).found


def remedies_config(
    trace: TraceLike,
    config: RunConfig,
    started: Callable[[str], None] = lambda _: None,
    *,
    seconds: float | None = None,
) -> Remedies:
    """Do what ``remedies`` does, with the options in one value; ``started`` is called with those of each step that is tried.

    ``seconds`` is how much processor time it takes, two thirds of it for the memory; by default there is no limit. The first is
    computed in any case, another one where it would end in time if it took as long as the longest; none is interrupted.
    """
    priced = price(read(trace, config), config)
    if priced.subject.streams is not None:
        return Remedies()
    search = _Search(priced, config, started)
    search.plan(_TimeLimit(seconds and seconds * 2 / 3))
    search.simulate(_TimeLimit(seconds and seconds / 3))
    return search.found()


def does_not_fit(result: Result) -> bool:
    """Whether a result is of a step that does not fit its GPUs."""
    return result.memory is not None and not result.memory.fits


def search_command(subject: str, config: RunConfig, global_batch_size: int) -> str:
    """Return the command that searches for a step that fits, without a limit, among recomputation and offload."""
    varied = []
    for change in chain.from_iterable(_changes(config)):
        varied += [
            (name, str(value).replace(",", "+")) for name, value in change.items() if name in ("recompute", "offload")
        ]
    values = {name: ",".join(["none", *(value for one, value in varied if one == name)]) for name in dict(varied)}
    kept = config.replaced(**dict.fromkeys(values, "none"), global_batch_size=global_batch_size, batch_size=None)
    words = simulate_command(subject, kept).replace("triosim simulate", "triosim search", 1)
    return " ".join((words, *(f"--vary {name}={value}" for name, value in values.items())))


@dataclass(frozen=True, slots=True)
class _FittingStep:
    """A step with changed options that fits: its plan, and the seconds that it takes at least."""

    change: Change
    config: RunConfig
    planned: PlannedRun
    bound: float

    @property
    def outside(self) -> Mapping[str, int]:
        """The bytes of its fullest rank outside of the GPU, by tier."""
        return {tier: sum(sizes.values()) for tier, sizes in self.planned.memory.fullest.outside.items()}

    @property
    def key(self) -> tuple[float, str]:
        """By what those that are simulated are chosen."""
        return self.bound, _shown(self.change)

    def simulated(self) -> list[Remedy]:
        """Return what the step takes, or nothing where it cannot be simulated."""
        try:
            result = simulate_planned(self.planned, self.config)
        except TriosimError:
            return []
        peak = self.planned.memory.fullest.peak_bytes
        return [Remedy(self.change, result.step_time_s, peak, self.outside)]


class _TimeLimit:
    """A limit on the processor time of several computations, none of which is interrupted."""

    def __init__(self, seconds: float | None) -> None:
        self._left = seconds
        self._longest = 0.0
        self._begun: float | None = None

    def another(self) -> bool:
        """End the computation under way, and begin another: whether there is time for it, as there is for the first."""
        now = time.process_time()
        if self._begun is not None and self._left is not None:
            took = now - self._begun
            self._longest = max(self._longest, took)
            self._left -= took
            if self._left < self._longest:
                return False
        self._begun = now
        return True


class _Search:
    """Looks for steps that fit, and keeps what it found where it is stopped."""

    def __init__(self, priced: PricedSubject, config: RunConfig, started: Callable[[str], None]) -> None:
        config = config.replaced(fail_on_oom=False, timeline=False, links=False, draws=1, iterations=1)
        self._changes = _changes(config)
        if smaller := list(_smaller_micro_batches(priced.subject, config)):
            self._changes.append(smaller)
        self._planner = _Planner(priced, config, started)
        self._started = started
        self._fitting: list[_FittingStep] = []
        self._simulated: list[Remedy] = []
        self.stopped = False

    def plan(self, limit: _TimeLimit) -> None:
        """Find steps that fit, with as few changes as are enough, and with more while all need another memory."""
        for count in range(1, len(self._changes) + 1):
            for change in _combined(self._changes, count):
                if self._planner.rules_out(change):
                    continue
                if not limit.another():
                    self.stopped = True
                    return
                self._fitting += self._planner.fitting(change)
            if any(not any(step.outside.values()) for step in self._fitting):
                return

    def simulate(self, limit: _TimeLimit) -> None:
        """Simulate those of the steps that are worth it."""
        for step in self._chosen():
            if not limit.another():
                self.stopped = True
                return
            self._started(f"{_shown(step.change)}: simulated")
            self._simulated += step.simulated()

    def found(self) -> Remedies:
        """Return what is known now: what was simulated, but for what needs more changes and is no better for it."""
        best = _undominated(self._simulated, lambda one: (one.step_time_s, sum(one.outside_bytes.values())))
        least = min((len(one.options) for one in self._simulated), default=0)
        shown = [one for one in self._simulated if len(one.options) == least or one in best]
        known = [one.options for one in self._simulated]
        others = [_shown(step.change) for step in self._chosen() if self.stopped and step.change not in known]
        quickest = sorted(shown, key=lambda one: (one.step_time_s, one.shown))
        return Remedies(tuple(quickest), self._planner.tried, self.stopped, tuple(others))

    def _chosen(self) -> list[_FittingStep]:
        """Return the steps to simulate: those on the front of bound and bytes outside of the GPU, then the simplest."""
        front = _undominated(self._fitting, lambda step: (step.bound, sum(step.outside.values())))
        front.sort(key=lambda step: step.key)
        if len(front) > MOST_SIMULATED:
            front[MOST_SIMULATED - 1 :] = [min(front, key=lambda step: sum(step.outside.values()))]
        least = min((len(step.change) for step in self._fitting), default=0)
        others = [step for step in self._fitting if len(step.change) == least and step not in front]
        return front + heapq.nsmallest(MOST_SIMULATED - len(front), others, key=lambda step: step.key)


def _undominated(some: Sequence[_T], figures: Callable[[_T], tuple[float, float]]) -> list[_T]:
    """Return those that no other is better than in one figure and at least as good as in the other."""
    known = [figures(one) for one in some]
    return [
        one
        for one, mine in zip(some, known, strict=True)
        if not any(other != mine and other[0] <= mine[0] and other[1] <= mine[1] for other in known)
    ]


class _Planner:
    """Plans steps with changed options, and finds those that fit; ``started`` is called with the options of each."""

    def __init__(self, priced: PricedSubject, config: RunConfig, started: Callable[[str], None]) -> None:
        self._config, self._started = config, started
        self._priced: dict[object, PricedSubject] = {config.micro_batch_size: priced}
        self._idle: IdleCollectives | None = None
        self._too_large: list[Change] = []
        self.tried = 0

    def rules_out(self, change: Change) -> bool:
        """Whether a step that was planned shows that another one does not fit."""
        found = any(_needs_no_more(larger, change) for larger in self._too_large)
        self.tried += found
        return found

    def fitting(self, change: Change) -> Iterator[_FittingStep]:
        """Yield a step if it fits, and can be."""
        self._started(_shown(change))
        config = self._config.replaced(**change)
        try:
            Offload.of(config.offload, training=config.training)
            planned = plan(self._priced_with(config), config)
        except TriosimError:  # the memory is not there, say
            return
        memory = planned.memory
        self.tried += 1
        if memory.fits:
            self._idle = self._idle or IdleCollectives(planned.new_network())
            yield _FittingStep(change, config, planned, lower_bound(planned, self._idle))
        elif memory.fullest.peak_bytes > _CLEARLY * memory.capacity:
            self._too_large.append(change)

    def _priced_with(self, config: RunConfig) -> PricedSubject:
        """Return what is simulated, described anew where micro-batches have other samples."""
        size, known = config.micro_batch_size, self._priced
        if size not in known:
            first = known[self._config.micro_batch_size]
            known[size] = price(read(first.subject.source, config), config) if first.subject.described else first
        return known[size]


def _needs_no_more(one: Change, other: Change) -> bool:
    """Whether a step needs at most the memory of another: it recomputes and offloads as much, in micro-batches as small."""
    if one.keys() != other.keys():
        return False
    for name, value in one.items():
        compared = other[name]
        if name == "offload":
            less = set(str(value).split(",")) >= set(str(compared).split(","))
        elif name == "recompute":
            less = _RECOMPUTED.index(str(value)) >= _RECOMPUTED.index(str(compared))
        elif name == "micro_batch_size":
            less = int(value) <= int(compared)
        else:
            less = value == compared or name == "micro_batches"  # which follow from the size
        if not less:
            return False
    return True


def _combined(changes: Sequence[Sequence[Change]], count: int) -> list[Change]:
    """Return the combinations of changes of ``count`` options, first those that need the least memory of each option."""
    found = []
    for some in combinations(changes, count):
        for parts in product(*(enumerate(reversed(values)) for values in some)):
            change: Change = dict(chain.from_iterable(part.items() for _, part in parts))
            found.append((sum(place for place, _ in parts), change))
    return [change for _, change in sorted(found, key=lambda one: one[0])]


def _shown(options: Change) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())


def _changes(config: RunConfig) -> list[list[Change]]:
    """Return, for each option that may help, the values that are tried instead of what it is."""
    recompute: list[Change] = [
        {"recompute": value} for value in _RECOMPUTED if config.training and config.recompute == "none"
    ]
    sharded: list[Change] = [{"parallel": value} for value in _more_sharded(config.parallel)]
    offload: list[Change] = [{"offload": value} for value in _OFFLOADS if config.training and config.offload == "none"]
    if not config.training and config.offload == "none":
        offload = [{"offload": "parameters=host"}]
    everything = ",".join(dict.fromkeys((*_OFFLOADS[2].split(","), _OFFLOADS[1])))
    if config.training and config.offload != everything:
        offload.append({"offload": everything})
    return [some for some in (recompute, sharded, offload) if some]


def _smaller_micro_batches(subject: Subject, config: RunConfig) -> Iterator[Change]:
    """Yield the same batch in micro-batches of a half, a quarter and one of their samples."""
    try:
        parallelisms = Parallelisms.of(config.parallel, gpus_for(config.parallel, subject.gpus), config)
        batch, count = batches(
            parallelisms, with_batch(config) if subject.described else config, subject.trace.batch_size
        )
    except OptionError:  # only the topology says how many GPUs there are
        return
    samples = batch // count
    whole = config.micro_batches is not None or (config.global_batch_size is None and config.batch_size is None)
    for size in sorted({samples // 2, samples // 4, 1} - {0, samples}, reverse=True):
        if samples % size == 0:
            yield {"micro_batch_size": size, **({"micro_batches": batch // size} if whole else {})}


def _more_sharded(parallel: Any) -> Iterator[str]:
    """Yield parallelisms that divide more among the ranks which see other data."""
    if not isinstance(parallel, str):
        return
    parts = [part.strip() for part in parallel.split(",")]
    for index, part in enumerate(parts):
        name, equals, size = part.partition("=")
        for other in _SHARDED.get(name, ()):
            yield ",".join((*parts[:index], f"{other}{equals}{size}", *parts[index + 1 :]))
