"""``remedies``: finds what makes a step fit that does not, and simulates what each would cost.

Changes are tried that are usual against a lack of memory: to shard more (``zero1``, ``zero2``, ``fsdp`` in place of ``ddp``),
to recompute activations, to compute the batch in smaller micro-batches, and to offload to memories that the topology has. Those
of one option come first; several are combined where no single one is enough.

The memory of each is worked out first, without a simulation, and of those that fit the ones with the least lower bounds are
simulated. What another step rules out, which needs no more memory and is clearly short of it, is not planned.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import Any

from triosim.config import RunConfig
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
#: Options by name.
Change = Mapping[str, str | int]
#: Above this many ranks a step takes too long to be simulated several times without being asked.
MOST_RANKS = 128
#: How many of the steps that fit are simulated.
MOST_SIMULATED = 6
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


def remedies(trace: TraceLike, parallel: Any = "single", **options: Any) -> tuple[Remedy, ...]:
    """Return the changes of a step's options with which it fits the GPUs, the quickest first; ``options`` are ``simulate``'s.

    Raises ``TriosimError`` for whatever ``simulate`` does. A step that fits needs none.
    """
    return remedies_config(trace, RunConfig.of(parallel=parallel, **options))


def remedies_config(
    trace: TraceLike, config: RunConfig, started: Callable[[str], None] = lambda _: None
) -> tuple[Remedy, ...]:
    """Do what ``remedies`` does, with the options in one value; ``started`` is called with those of each step that is tried."""
    priced = price(read(trace, config), config)
    return () if priced.subject.streams is not None else _found(priced, config, started)


def could_be_tried(result: Result) -> bool:
    """Whether a result is of a step that does not fit, of few enough ranks to try others."""
    return result.memory is not None and not result.memory.fits and result.world <= MOST_RANKS


def _found(priced: PricedSubject, config: RunConfig, started: Callable[[str], None]) -> tuple[Remedy, ...]:
    config = config.replaced(fail_on_oom=False, timeline=False, links=False, draws=1, iterations=1)
    changes = _changes(config)
    if smaller := list(_smaller_micro_batches(priced.subject, config)):
        changes.insert(0, smaller)
    planner = _Planner(priced, config, started)
    for count in range(1, len(changes) + 1):
        fitting = (step for some in combinations(changes, count) for step in planner.fitting(some))
        simulated = []
        for step in heapq.nsmallest(MOST_SIMULATED, fitting, key=lambda one: (one.bound, _shown(one.change))):
            started(f"{_shown(step.change)}: simulated")
            simulated += step.simulated()
        if simulated:
            return tuple(sorted(simulated, key=lambda one: (one.step_time_s, one.shown)))
    return ()


@dataclass(frozen=True, slots=True)
class _FittingStep:
    """A step with changed options that fits: its plan, and the seconds that it takes at least."""

    change: Change
    config: RunConfig
    planned: PlannedRun
    bound: float

    def simulated(self) -> list[Remedy]:
        """Return what the step takes, or nothing where it cannot be simulated."""
        try:
            result = simulate_planned(self.planned, self.config)
        except TriosimError:
            return []
        fullest = self.planned.memory.fullest
        outside = {tier: sum(sizes.values()) for tier, sizes in fullest.outside.items()}
        return [Remedy(self.change, result.step_time_s, fullest.peak_bytes, outside)]


class _Planner:
    """Plans steps with changed options, and finds those that fit; ``started`` is called with the options of each."""

    def __init__(self, priced: PricedSubject, config: RunConfig, started: Callable[[str], None]) -> None:
        self._config, self._started = config, started
        self._priced: dict[object, PricedSubject] = {config.micro_batch_size: priced}
        self._idle: IdleCollectives | None = None
        self._too_large: list[Change] = []

    def fitting(self, changes: Sequence[Sequence[Change]]) -> Iterator[_FittingStep]:
        """Yield the steps with one change of each option that fit."""
        for parts in product(*map(reversed, changes)):  # those that need least first
            change = dict(chain.from_iterable(part.items() for part in parts))
            if not any(_needs_no_more(larger, change) for larger in self._too_large):
                self._started(_shown(change))
                yield from self._planned(change)

    def _planned(self, change: Change) -> Iterator[_FittingStep]:
        """Yield a step if it fits, and can be."""
        config = self._config.replaced(**change)
        try:
            Offload.of(config.offload, training=config.training)
            planned = plan(self._priced_with(config), config)
        except TriosimError:  # the memory is not there, say
            return
        memory = planned.memory
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
