"""Parses conditions from a topology file, the ``conditions`` of ``simulate`` or the command line, key by key.

Whatever is wrong raises ``TriosimError``; the caller says where the key stands.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from triosim.conditions.conditions import (
    Conditions,
    Distribution,
    DrawnEvery,
    GpuEvent,
    LinkEvent,
    SlowdownFactors,
    Stragglers,
)
from triosim.errors import TopologyError, TriosimError, nearest
from triosim.units import parse_bandwidth, parse_time

if TYPE_CHECKING:
    from triosim.networks.topology import Topology

#: The kinds of transfers that one factor without a kind is for: collectives, and sends with their receives.
_BETWEEN_GPUS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send",
)  # fmt: skip
#: All kinds of transfers; "copy" is to or from the host.
_TRANSFERS = (*_BETWEEN_GPUS, "copy")

_LARGEST_FACTOR = 1e6
#: Of the logarithm of a factor: a GPU of 10,000 would be 10^16 times slower.
_LARGEST_DEVIATION = 10.0
_MOST_GPUS = 1_000_000

_EVENT = "at=0.5s,gpu=3,slowdown=2"


def parse_conditions(
    settings: Mapping[str, Any], error: Callable[[tuple[str | int, ...], str, str | None], Exception], known: Conditions
) -> Conditions:
    """Return ``known`` with the settings added; a wrong one is raised as ``error(path, what, fix)``."""
    for key, value in settings.items():
        if key not in _PARSERS:
            raise error((key,), "unknown key", nearest(str(key), _PARSERS))
        try:
            known = _PARSERS[key](known, value)
        except TriosimError as found:
            raise error((key,), f"{found.where}: {found.what}" if found.where else found.what, found.fix) from None
    return known


def conditions_of(topology: Topology) -> Conditions:
    """Return the conditions that the file of a topology states. Raises ``TopologyError`` for a wrong section."""
    sections = {key: section for key, section in topology.sections.items() if key in KEYS}

    def wrong(path: tuple[str | int, ...], what: str, fix: str | None) -> TopologyError:
        return TopologyError(what, where=sections[str(path[0])].where(path[1:]), fix=fix)

    return parse_conditions({key: section.said for key, section in sections.items()}, wrong, Conditions())


def parse_factors(value: Any) -> SlowdownFactors:
    """Return factors by kind of transfer.

    ``value`` is one factor for all collectives and sends (``1.2``), a text (``all_reduce=1.2,send=1.1``), or a mapping.
    """
    if isinstance(value, str) and "=" in value:
        value = _pairs(value.split(","), "all_reduce=1.2,send=1.1")
    if not isinstance(value, Mapping):
        return dict.fromkeys(_BETWEEN_GPUS, _factor(value))
    for kind in value:
        if kind not in _TRANSFERS:
            raise TriosimError(f"unknown kind of communication '{kind}'", fix=nearest(str(kind), _TRANSFERS))
    return {kind: _factor(factor) for kind, factor in value.items()}


def ranks_of(text: Any) -> list[int]:
    """Return the ranks that a text such as ``3`` or ``0-3,8`` names."""
    found: list[int] = []
    for part in str(text).split(","):
        match = re.fullmatch(r"\s*(\d{1,7})\s*(?:-\s*(\d{1,7})\s*)?", part)
        ranks = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not ranks or ranks[-1] >= _MOST_GPUS:
            raise TriosimError(f"'{text}' is not a list of ranks", fix="write for example 3, or 0-3,8")
        found.extend(ranks)
    return found


def _interference(side: str, known: Conditions, value: Any) -> Conditions:
    return replace(known, interference=replace(known.interference, **{side: parse_factors(value)}))


def _slow_gpus(known: Conditions, value: Any) -> Conditions:
    said = _by_ranks(value, "4-7=1.5")
    return replace(known, slow_gpus={**known.slow_gpus, **{rank: _factor(factor) for rank, factor in said.items()}})


def _gpu_kinds(known: Conditions, value: Any) -> Conditions:
    said = _by_ranks(value, "4-7=V100-SXM2-32GB")
    for name in said.values():
        if not isinstance(name, str) or not name.strip():
            raise TriosimError(f"{name!r:.40} is not a GPU", fix="write one that 'triosim gpus' lists")
    return replace(known, gpu_kinds={**known.gpu_kinds, **{rank: str(name).strip() for rank, name in said.items()}})


def _by_ranks(value: Any, example: str) -> dict[int, Any]:
    if isinstance(value, str):
        value = [value]
    said = value if isinstance(value, Mapping) else _pairs(value, example)
    return {rank: what for ranks, what in said.items() for rank in ranks_of(ranks)}


def _pairs(parts: Any, example: str) -> dict[str, Any]:
    """Return ``key=value`` texts as a mapping."""
    fix = f"write for example '{example}'"
    if not isinstance(parts, Iterable):
        raise TriosimError(f"{parts!r:.60} is not a mapping", fix=fix)
    for part in parts:
        if not isinstance(part, str) or "=" not in part:
            raise TriosimError(f"'{part!s:.60}' is not a key and a value", fix=fix)
    return {key.strip(): value.strip() for key, _, value in (part.partition("=") for part in parts)}


def _stragglers(key: str, known: Conditions, value: Any) -> Conditions:
    example = "lognormal,spread=0.1,seed=1,every=iteration"
    if isinstance(value, str):
        first, _, rest = value.partition(",")
        value = {"distribution": first.strip(), **(_pairs(rest.split(","), example) if rest else {})}
    if not isinstance(value, Mapping):
        raise TriosimError(
            f"{value!r:.60} is not a mapping", fix="write '{distribution: lognormal, spread: 0.1, seed: 1}'"
        )
    allowed = [name for name in Stragglers.__dataclass_fields__ if name != "every" or key == "stragglers"]
    made = Stragglers()
    for word, one in value.items():
        if word in ("distribution", "every") and word in allowed:
            words = get_args(Distribution if word == "distribution" else DrawnEvery)
            if one not in words:
                raise TriosimError(f"{word}: unknown value '{one}'", fix=nearest(str(one), words))
            made = replace(made, **{word: one})
        elif word == "seed":
            made = replace(made, seed=_seed(one))
        elif word == "spread":
            made = replace(made, spread=_number(one, "a spread", 0.0))
        else:
            raise TriosimError(f"unknown key '{word}'", fix=nearest(str(word), allowed))
    if made.distribution == "lognormal" and made.spread > _LARGEST_DEVIATION:
        fix = f"it is a standard deviation of logarithms: write at most {_LARGEST_DEVIATION:g}"
        raise TriosimError(f"{made.spread:g} is not a spread", fix=fix)
    return replace(known, stragglers=made) if key == "stragglers" else replace(known, slow_links=made)


def _events(known: Conditions, value: Any) -> Conditions:
    listed = [value] if isinstance(value, (str, Mapping)) else value
    if not isinstance(listed, (list, tuple)):
        raise TriosimError(f"{value!r:.60} is not a list of events", fix=f"write for example '[{{{_EVENT}}}]'")
    events = sorted((_event(one) for one in listed), key=lambda event: event.at)
    return replace(
        known,
        gpu_events=(*known.gpu_events, *(event for event in events if isinstance(event, GpuEvent))),
        link_events=(*known.link_events, *(event for event in events if isinstance(event, LinkEvent))),
    )


def _event(value: Any) -> GpuEvent | LinkEvent:
    said = _pairs(value.split(","), _EVENT) if isinstance(value, str) else value
    if not isinstance(said, Mapping) or "at" not in said or ("gpu" in said) == ("from" in said and "to" in said):
        raise TriosimError(f"{value!r:.60} is not an event", fix=f"write for example '{_EVENT}'")
    effect, target = ("slowdown", ("gpu",)) if "gpu" in said else ("bandwidth", ("from", "to", "both"))
    allowed = {"at", *target, effect, "fails"}
    for key in said:
        if key not in allowed:
            raise TriosimError(f"unknown key '{key}'", fix=nearest(str(key), allowed))
    fails = _truth(said.get("fails", False))
    if fails == (effect in said):
        fix = f"write {effect}={'2' if effect == 'slowdown' else '10 GB/s'}, or fails=true"
        raise TriosimError(f"{value!r:.80} needs either '{effect}' or 'fails'", fix=fix)
    at = parse_time(said["at"])
    if not 0 <= at < math.inf:
        raise TriosimError(f"{said['at']} is not a time for an event", fix="write 0 or more")
    if "gpu" in said:
        ranks = ranks_of(str(said["gpu"]).strip().removeprefix("gpu"))
        if len(ranks) != 1:
            raise TriosimError(f"'{said['gpu']}' is not one GPU", fix="write an event for each")
        return GpuEvent(at, ranks[0], math.inf if fails else _factor(said["slowdown"]))
    bandwidth = 0.0 if fails else parse_bandwidth(said["bandwidth"])
    if not (fails or 0 < bandwidth < math.inf):
        raise TriosimError(
            f"{said['bandwidth']} is not a positive bandwidth", fix="write 'fails' instead for a failed link"
        )
    return LinkEvent(at, str(said["from"]), str(said["to"]), bandwidth, _truth(said.get("both", False)))


def _truth(value: Any) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if str(value).lower() not in words:
        raise TriosimError(f"'{value}' is neither true nor false")
    return words[str(value).lower()]


def _factor(value: Any) -> float:
    return _number(value, "a factor, such as 1.2 (1 is no slower)", 1.0)


def _number(value: Any, what: str, least: float) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number <= _LARGEST_FACTOR:
        raise TriosimError(f"'{value}' is not {what}", fix=f"write a number from {least:g} to {_LARGEST_FACTOR:g}")
    return number


def _seed(value: Any) -> int:
    if isinstance(value, bool) or not str(value).strip().isdecimal():
        raise TriosimError(f"'{value}' is not a seed", fix="write a whole number of 0 or more")
    return int(value)


_PARSERS: Mapping[str, Callable[[Conditions, Any], Conditions]] = {
    "compute_slowdown": partial(_interference, "computation"),
    "collective_slowdown": partial(_interference, "communication"),
    "slow_gpus": _slow_gpus,
    "gpu_kinds": _gpu_kinds,
    "stragglers": partial(_stragglers, "stragglers"),
    "slow_links": partial(_stragglers, "slow_links"),
    "events": _events,
}
#: The keys of conditions in a topology file and in ``simulate(conditions=...)``.
KEYS = tuple(_PARSERS)
