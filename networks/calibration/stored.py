"""Reads and writes calibrations, as topology files have them under the key ``calibration``; finds those that ship with triosim.

    calibration:
      gpus_per_node: 8
      note: fitted to 168 rows of nccl.csv
      collectives:
        all_reduce:
          correction: [0.001, 0.0, 0.0, 0.0]
          groups:
            8: {latency: 2.1e-05, ceiling: 2.5e+11, steepness: 0.47, middle: 15.0, first: 512, residuals: [1.01, 0.99]}
      between_nodes:
        any: {latency: 1.2e-05, ceiling: 4.7e+10, steepness: 0.8, middle: 13.9}

``residuals`` are factors at ``first`` bytes and at every doubling from there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from triosim.errors import TopologyError, nearest
from triosim.networks.calibration.curves import NO_CORRECTION, Curve, KindCurves, Residuals, Sigmoid, Straggler
from triosim.networks.calibration.model import ANY, Calibration, InterNodeTimes, MeasuredNode

KINDS = ("all_gather", "all_reduce", "all_to_all", "broadcast", "gather", "reduce", "reduce_scatter", "scatter")
SHIPPED = Path(__file__).parent / "data"
LARGEST_MIDDLE = 100.0  # e^100 bytes; more is a slip of the pen
LARGEST_WEIGHT = 10.0  # of the linear correction of ln(seconds); so, too
_ROUND = 6  # digits that are written

Key = tuple[str | int, ...]
Where = Callable[[Key], str]


def names() -> list[str]:
    """Return the presets for which a calibration ships."""
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


def ships(preset: str) -> bool:
    """Return whether a calibration ships for a preset."""
    return preset in names()


@cache
def shipped(name: str) -> Calibration:
    """Return the calibration that ships for a preset, one of ``names``."""
    path = SHIPPED / f"{name}.json"
    return from_mapping(json.loads(path.read_text(encoding="utf-8")), lambda key: f"{path}: {_joined(key)}")


def to_mapping(calibration: Calibration) -> dict[str, Any]:
    """Return a calibration as plain values, rounded, for a file."""
    collectives: dict[str, Any] = {}
    for kind, curves in calibration.kinds.items():
        entry: dict[str, Any] = {"correction": [_rounded(weight) for weight in curves.weights]}
        if kind in calibration.stragglers:
            straggler = calibration.stragglers[kind]
            entry["straggler"] = {"offset": _rounded(straggler.offset), "slope": _rounded(straggler.slope)}
        entry["groups"] = {curve.gpus: _curve_mapping(curve) for curve in curves.curves}
        collectives[kind] = entry
    made = {"gpus_per_node": calibration.gpus_per_node, "note": calibration.note, "collectives": collectives}
    if calibration.node is not None:
        made["node"] = asdict(calibration.node)
    between = {kind: _curve_mapping(tier) for kind, tier in calibration.between.items()}
    return made | ({"between_nodes": between} if between else {})


def _curve_mapping(curve: Curve | InterNodeTimes) -> dict[str, Any]:
    sigmoid = {key: _rounded(value) for key, value in asdict(curve.sigmoid).items()}
    made: dict[str, Any] = {"latency": _rounded(curve.latency), **sigmoid}
    if isinstance(curve, Curve) and curve.residuals.sizes:
        made["first"] = int(curve.residuals.sizes[0])
        made["residuals"] = [_rounded(one) for one in curve.residuals.factors]
    return made


def _rounded(value: float) -> float:
    return float(f"{value:.{_ROUND}g}")


def from_mapping(said: Any, where: Where) -> Calibration:
    """Return the calibration that a mapping describes. Raises ``TopologyError`` that says which key is wrong."""
    top = _Entry(said, where, ())
    top.known("gpus_per_node", "note", "node", "collectives", "between_nodes")
    kinds: dict[str, KindCurves] = {}
    stragglers: dict[str, Straggler] = {}
    for kind, entry in top.at("collectives").by_kind(KINDS):
        entry.known("correction", "straggler", "groups")
        kinds[kind] = KindCurves(kind, _groups(entry), _weights(entry))
        if "straggler" in entry.said:
            slow = entry.at("straggler")
            slow.known("offset", "slope")
            stragglers[kind] = Straggler(slow.number("offset"), slow.number("slope"))
    between: dict[str, InterNodeTimes] = {}
    for kind, entry in top.at("between_nodes").by_kind((*KINDS, ANY)) if "between_nodes" in top.said else ():
        entry.known("latency", "ceiling", "steepness", "middle")
        between[kind] = InterNodeTimes(entry.number("latency", from_=0.0), _sigmoid(entry))
    if not kinds and not between:
        raise top.error("holds no collective", "collectives", fix="give one, or write 'calibration: none'")
    note, node = str(top.said.get("note", "")), _node(top) if "node" in top.said else None
    return Calibration(top.whole("gpus_per_node", from_=1.0), kinds, between, stragglers, note, node=node)


def _node(top: _Entry) -> MeasuredNode:
    entry = top.at("node")
    entry.known("bandwidth", "latency", "link", "reduces", "gpus_per_switch")
    link, reduces = entry.said.get("link", "nvlink"), entry.said.get("reduces", False)
    if link not in ("nvlink", "pcie"):
        raise entry.error(f"unknown link '{link}'", "link", fix="write nvlink or pcie")
    if not isinstance(reduces, bool):
        raise entry.error(f"'{reduces}' is not true or false", "reduces")
    boards = entry.whole("gpus_per_switch", from_=0.0) if "gpus_per_switch" in entry.said else 0
    return MeasuredNode(entry.number("bandwidth", above=0.0), entry.number("latency", from_=0.0), link, reduces, boards)


def _groups(entry: _Entry) -> tuple[Curve, ...]:
    groups = entry.at("groups")
    if not groups.said:
        raise entry.error("holds no group size", "groups", fix="give one or more")
    curves = []
    for gpus in groups.said:
        one = groups.at(gpus)
        count = int(gpus) if str(gpus).isdecimal() else 0
        if count < 2:
            raise one.error(f"'{gpus}' is not a group size", fix="write 2 or more")
        one.known("latency", "ceiling", "steepness", "middle", "first", "residuals")
        residuals = Residuals()
        if "residuals" in one.said:
            first, factors = one.number("first", above=0.0), one.numbers("residuals", above=0.0)
            residuals = Residuals(tuple(first * 2.0**place for place in range(len(factors))), factors)
        curves.append(Curve(count, one.number("latency", from_=0.0), _sigmoid(one), residuals))
    return tuple(sorted(curves, key=lambda curve: curve.gpus))


def _sigmoid(entry: _Entry) -> Sigmoid:
    steepness, middle = entry.number("steepness", above=0.0), entry.number("middle")
    if steepness > 1.0:
        raise entry.error(f"{steepness} is above 1, so that more bytes would take less time", "steepness")
    if abs(middle) > LARGEST_MIDDLE:
        raise entry.error(f"{middle:g} is not a logarithm of bytes", "middle", fix="write for example 13.9 for 1 MiB")
    return Sigmoid(entry.number("ceiling", above=0.0), steepness, middle)


def _weights(entry: _Entry) -> tuple[float, ...]:
    if "correction" not in entry.said:
        return NO_CORRECTION
    found = entry.numbers("correction")
    if len(found) != 4:
        raise entry.error(f"{len(found)} weights, not 4", "correction")
    if max(map(abs, found)) > LARGEST_WEIGHT:
        largest = max(found, key=abs)
        raise entry.error(f"{largest:g} is not a weight of the correction", "correction", fix="write a number near 0")
    return found


class _Entry:
    """A mapping in a file, with its location."""

    def __init__(self, said: Any, where: Where, path: Key) -> None:
        self.where = where
        self.path = path
        if not isinstance(said, Mapping):
            raise self.error(f"{said!r:.60} is not a mapping", fix="write '{key: value}'")
        self.said: Mapping[Any, Any] = said

    def error(self, what: str, *key: Any, fix: str | None = None) -> TopologyError:
        """Return an error in the mapping, or at one of its keys."""
        return TopologyError(what, where=self.where((*self.path, *key)), fix=fix)

    def at(self, key: Any) -> _Entry:
        return _Entry(self._value(key), self.where, (*self.path, key))

    def by_kind(self, kinds: tuple[str, ...]) -> Iterator[tuple[str, _Entry]]:
        for kind in self.said:
            if kind not in kinds:
                raise self.error(f"unknown collective '{kind}'", kind, fix=nearest(str(kind), kinds))
            yield kind, self.at(kind)

    def known(self, *keys: str) -> None:
        for key in self.said:
            if key not in keys:
                raise self.error("unknown key", key, fix=nearest(str(key), keys))

    def number(self, key: str, *, above: float = -math.inf, from_: float | None = None) -> float:
        return self._number(self._value(key), key, above, from_)

    def whole(self, key: str, *, from_: float) -> int:
        number = self.number(key, from_=from_)
        if number != int(number):
            raise self.error(f"{number:g} is not a whole number", key)
        return int(number)

    def numbers(self, key: str, *, above: float = -math.inf) -> tuple[float, ...]:
        values = self.said[key]
        if not isinstance(values, list):
            raise self.error(f"{values!r:.60} is not a list", key)
        return tuple(self._number(value, key, above, None) for value in values)

    def _value(self, key: Any) -> Any:
        if key not in self.said:
            raise self.error(f"'{key}' is missing")
        return self.said[key]

    def _number(self, value: Any, key: str, above: float, from_: float | None) -> float:
        try:  # YAML reads 1e-5, without a point, as text
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if math.isinf(number) or not (number > above if from_ is None else number >= from_):
            limit = f" from {from_:g}" if from_ is not None else "" if above == -math.inf else f" above {above:g}"
            raise self.error(f"{value!r:.60} is not a number{limit}", key)
        return number


def _joined(key: Key) -> str:
    return ".".join(str(part) for part in key)
