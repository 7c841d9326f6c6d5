"""``remedies``: finds what makes a step fit that does not, and simulates what each would cost.

Changes are tried that are usual against a lack of memory: to shard more (``zero1``, ``zero2``, ``fsdp`` in place of ``ddp``),
to recompute activations, to compute the batch in smaller micro-batches, and to offload to memories that the topology has. Those
of one option come first; several are combined where no single one is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import Any

from triosim.config import RunConfig
from triosim.config.offload import Offload
from triosim.errors import OptionError, TriosimError
from triosim.extrapolators.core.parallelisms import Parallelisms
from triosim.extrapolators.core.plan import batches
from triosim.pipeline.pricing import PricedSubject, price
from triosim.pipeline.reading import Subject, TraceLike, gpus_for, read, with_batch
from triosim.results.result import Result
from triosim.simulation import simulate_priced

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
#: Above this many ranks a step takes too long to be simulated ten times without being asked.
MOST_RANKS = 128


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
    config = config.replaced(fail_on_oom=True, timeline=False, links=False, draws=1, iterations=1)
    changes = _changes(config)
    if smaller := list(_smaller_micro_batches(priced.subject, config)):
        changes.insert(0, smaller)
    for count in range(1, len(changes) + 1):
        fitting = []
        for parts in (one for some in combinations(changes, count) for one in product(*some)):
            change = dict(chain.from_iterable(part.items() for part in parts))
            started(_shown(change))
            fitting += _tried(priced, config, change)
        if fitting:
            return tuple(sorted(fitting, key=lambda one: (one.step_time_s, one.shown)))
    return ()


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


def _tried(priced: PricedSubject, config: RunConfig, change: Change) -> list[Remedy]:
    """Return a step with changed options, simulated; nothing where it does not fit, or cannot be."""
    changed = config.replaced(**change)
    try:
        Offload.of(changed.offload, training=config.training)
        if "micro_batch_size" in change and priced.subject.described:
            priced = price(read(priced.subject.source, changed), changed)
        result = simulate_priced(priced, changed)
    except TriosimError:  # it does not fit, or the memory is not there
        return []
    assert result.memory is not None
    fullest = result.memory.fullest
    outside = {tier: sum(sizes.values()) for tier, sizes in fullest.outside.items()}
    return [Remedy(change, result.step_time_s, fullest.peak_bytes, outside)]
