"""Under what conditions a system runs: unequal, slow or failing GPUs and links, computation that hampers communication.

A factor is by how many times longer something takes: 1.2 is a fifth longer. A topology file has these keys, and so has the
``conditions`` of ``simulate``; the command line has an option for each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

from triosim.errors import TriosimError, nearest
from triosim.units import parse_bandwidth, parse_time

#: What can run beside a computation: the kinds of collectives, sends (and receives), copies to or from the host.
COLLECTIVES = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter"),
    "send",
)
KINDS = (*COLLECTIVES, "copy")

LARGEST_FACTOR = 1e6
MOST_GPUS = 1_000_000

_EVENT = "at=0.5s,gpu=3,slowdown=2"

Factors = Mapping[str, float]
Distribution = Literal["uniform", "exponential", "lognormal"]
Often = Literal["run", "iteration"]


@dataclass(frozen=True, slots=True)
class Interference:
    """How much slower computation is while a transfer of some kind runs on its GPU, and the other way round.

    Kinds that are not named are not slower. Of several transfers at once the one that hampers most counts.
    """

    computation: Factors = field(default_factory=dict)
    communication: Factors = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(factor != 1.0 for factors in (self.computation, self.communication) for factor in factors.values())


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Factors of GPUs drawn by chance: uniform from 1 to 1 + spread, 1 + an exponential of mean spread, or lognormal.

    The lognormal has median 1, and ``spread`` is the standard deviation of its logarithm. Each GPU draws for the whole run, or
    anew in each iteration.
    """

    distribution: Distribution = "uniform"
    spread: float = 0.1
    seed: int = 0
    every: Often = "run"


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """From a time on a GPU is slower by a factor (1 is as before); an infinite one is a GPU that fails."""

    at: float
    rank: int
    slowdown: float


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """From a time on the links from one node to another have a bandwidth, in bytes per second; with 0 they fail."""

    at: float
    source: str
    destination: str
    bandwidth: float
    both: bool = False


@dataclass(frozen=True, slots=True)
class Conditions:
    """All of it. ``slow`` are factors by rank; ``kinds`` the names of the GPUs that are others than the trace's, by rank.

    ``slow_links`` are drawn for each link, both of its directions together.
    """

    interference: Interference = Interference()
    slow: Mapping[int, float] = field(default_factory=dict)
    kinds: Mapping[int, str] = field(default_factory=dict)
    stragglers: Stragglers | None = None
    slow_links: Stragglers | None = None
    gpu_events: tuple[GpuEvent, ...] = ()
    link_events: tuple[LinkEvent, ...] = ()

    @property
    def uneven(self) -> bool:
        """Whether operators take different times on different GPUs."""
        return bool(self.slow or self.kinds or self.stragglers)

    @property
    def changing(self) -> bool:
        """Whether a GPU's speed changes while it runs."""
        return bool(self.interference or self.gpu_events)


def read(
    said: Mapping[str, Any], error: Callable[[tuple[str | int, ...], str, str | None], Exception], known: Conditions
) -> Conditions:
    """Return conditions with what somebody said of them, key by key; what is wrong is raised as ``error(path, what, fix)``."""
    for key, value in said.items():
        if key not in _READ:
            raise error((key,), "unknown key", nearest(str(key), _READ))
        try:
            known = _READ[key](known, value)
        except TriosimError as found:
            raise error((key,), f"{found.where}: {found.what}" if found.where else found.what, found.fix) from None
    return known


def factors(value: Any) -> Factors:
    """Return factors by kind: one for all collectives and sends (``1.2``), ``all_reduce=1.2,send=1.1``, or a mapping."""
    if isinstance(value, str) and "=" in value:
        value = _pairs(value.split(","), "all_reduce=1.2,send=1.1")
    if not isinstance(value, Mapping):
        return dict.fromkeys(COLLECTIVES, _factor(value))
    for kind in value:
        if kind not in KINDS:
            raise TriosimError(f"there is no kind '{kind}' of communication", fix=nearest(str(kind), KINDS))
    return {kind: _factor(factor) for kind, factor in value.items()}


def ranks_of(text: Any) -> list[int]:
    """Return the ranks that ``3`` or ``0-3,8`` names."""
    parts = [re.fullmatch(r"\s*(\d{1,7})\s*(?:-\s*(\d{1,7})\s*)?", part) for part in str(text).split(",")]
    found: list[int] = []
    for part in parts:
        first, last = (int(part[1]), int(part[2] or part[1])) if part else (1, 0)
        if last < first or last >= MOST_GPUS:
            raise TriosimError(f"'{text}' names no ranks", fix="write for example 3, or 0-3,8")
        found.extend(range(first, last + 1))
    return found


def _interference(known: Conditions, side: str, value: Any) -> Conditions:
    return replace(known, interference=replace(known.interference, **{side: factors(value)}))


def _slow(known: Conditions, value: Any) -> Conditions:
    said = _by_ranks(value, "4-7=1.5")
    return replace(known, slow={**known.slow, **{rank: _factor(factor) for rank, factor in said.items()}})


def _kinds(known: Conditions, value: Any) -> Conditions:
    said = _by_ranks(value, "4-7=V100-SXM2-32GB")
    for name in said.values():
        if not isinstance(name, str) or not name.strip():
            raise TriosimError(f"{name!r:.40} is no GPU", fix="write one that 'triosim gpus' lists")
    return replace(known, kinds={**known.kinds, **{rank: str(name).strip() for rank, name in said.items()}})


def _by_ranks(value: Any, example: str) -> dict[int, Any]:
    if isinstance(value, str):
        value = [value]
    said = value if isinstance(value, Mapping) else _pairs(value, example)
    return {rank: what for ranks, what in said.items() for rank in ranks_of(ranks)}


def _pairs(parts: Any, example: str) -> dict[str, Any]:
    """Return ``key=value`` texts as a mapping."""
    if not isinstance(parts, Iterable) or not all(isinstance(part, str) and "=" in part for part in parts):
        raise TriosimError(f"{parts!r:.60} is no mapping", fix=f"write for example '{example}'")
    return {key.strip(): value.strip() for key, _, value in (part.partition("=") for part in parts)}


def _stragglers(key: str, known: Conditions, value: Any) -> Conditions:
    example = "lognormal,spread=0.1,seed=1,every=iteration"
    if isinstance(value, str):
        first, _, rest = value.partition(",")
        value = {"distribution": first.strip(), **(_pairs(rest.split(","), example) if rest else {})}
    if not isinstance(value, Mapping):
        raise TriosimError(
            f"{value!r:.60} is no mapping", fix="write '{distribution: lognormal, spread: 0.1, seed: 1}'"
        )
    allowed = [name for name in Stragglers.__dataclass_fields__ if name != "every" or key == "stragglers"]
    made = Stragglers()
    for word, one in value.items():
        if word in ("distribution", "every") and word in allowed:
            words = get_args(Distribution if word == "distribution" else Often)
            if one not in words:
                raise TriosimError(f"'{one}' is no {word}", fix=nearest(str(one), words))
            made = replace(made, **{word: one})
        elif word == "seed":
            made = replace(made, seed=_whole(one))
        elif word == "spread":
            made = replace(made, spread=_number(one, "a spread", 0.0))
        else:
            raise TriosimError(f"unknown key '{word}'", fix=nearest(str(word), allowed))
    return replace(known, stragglers=made) if key == "stragglers" else replace(known, slow_links=made)


def _events(known: Conditions, value: Any) -> Conditions:
    listed = [value] if isinstance(value, (str, Mapping)) else value
    if not isinstance(listed, (list, tuple)):
        raise TriosimError(f"{value!r:.60} is no list of events", fix=f"write for example '[{{{_EVENT}}}]'")
    events = sorted((_event(one) for one in listed), key=lambda event: event.at)
    return replace(
        known,
        gpu_events=(*known.gpu_events, *(event for event in events if isinstance(event, GpuEvent))),
        link_events=(*known.link_events, *(event for event in events if isinstance(event, LinkEvent))),
    )


def _event(value: Any) -> GpuEvent | LinkEvent:
    said = _pairs(value.split(","), _EVENT) if isinstance(value, str) else value
    if not isinstance(said, Mapping) or "at" not in said or ("gpu" in said) == ("from" in said and "to" in said):
        raise TriosimError(f"{value!r:.60} is no event", fix=f"write for example '{_EVENT}'")
    fails = _truth(said.get("fails", False))
    what = "slowdown" if "gpu" in said else "bandwidth"
    allowed = (
        {"at", "gpu", "slowdown", "fails"} if "gpu" in said else {"at", "from", "to", "bandwidth", "fails", "both"}
    )
    for key in said:
        if key not in allowed:
            raise TriosimError(f"unknown key '{key}'", fix=nearest(str(key), allowed))
    if fails == (what in said):
        raise TriosimError(f"{value!r:.80} says neither or both of '{what}' and 'fails'", fix="write one of the two")
    at = parse_time(said["at"])
    if not 0 <= at < math.inf:
        raise TriosimError(f"{said['at']} is no time at which something happens", fix="write 0 or more")
    if "gpu" in said:
        ranks = ranks_of(str(said["gpu"]).strip().removeprefix("gpu"))
        if len(ranks) != 1:
            raise TriosimError(f"'{said['gpu']}' is not one GPU", fix="write an event for each")
        return GpuEvent(at, ranks[0], math.inf if fails else _factor(said["slowdown"]))
    bandwidth = 0.0 if fails else parse_bandwidth(said["bandwidth"])
    if not (fails or 0 < bandwidth < math.inf):
        raise TriosimError(f"{said['bandwidth']} is no positive bandwidth", fix="write 'fails' where it has none")
    return LinkEvent(at, str(said["from"]), str(said["to"]), bandwidth, _truth(said.get("both", False)))


def _truth(value: Any) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if isinstance(value, bool) or str(value).lower() in words:
        return value if isinstance(value, bool) else words[str(value).lower()]
    raise TriosimError(f"'{value}' is neither true nor false")


def _factor(value: Any) -> float:
    return _number(value, "a factor, such as 1.2 (1 is no slower)", 1.0)


def _number(value: Any, what: str, least: float) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number <= LARGEST_FACTOR:
        raise TriosimError(f"'{value}' is not {what}", fix=f"write a number from {least:g} to {LARGEST_FACTOR:g}")
    return number


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not str(value).strip().isdecimal():
        raise TriosimError(f"'{value}' is no seed", fix="write a whole number of 0 or more")
    return int(value)


_READ: Mapping[str, Callable[[Conditions, Any], Conditions]] = {
    "compute_slowdown": lambda known, value: _interference(known, "computation", value),
    "collective_slowdown": lambda known, value: _interference(known, "communication", value),
    "slow_gpus": _slow,
    "gpu_kinds": _kinds,
    "stragglers": partial(_stragglers, "stragglers"),
    "slow_links": partial(_stragglers, "slow_links"),
    "events": _events,
}
KEYS = tuple(_READ)
